"""Several protocols from one run: the same numbers as separate runs have, no protocol mixed with another."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from fedloom.cli.terminal import print_result
from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data import from_arrays, make_scenario
from fedloom.data.partitions.natural import Natural
from fedloom.evaluation import METRICS, PROTOCOLS, MetricStates, Predictions
from fedloom.evaluation.metric import details_of_clients
from fedloom.evaluation.protocols import offered_protocols
from fedloom.flower.in_process import run_in_process
from fedloom.methods import METHODS
from fedloom.methods.catalogue import abilities
from fedloom.results.comparison import Comparison
from fedloom.results.fairness import fairness_rows
from fedloom.results.group import client_accuracies
from fedloom.results.report import write_report
from fedloom.results.result import Result
from fedloom.results.table import grouped
from fedloom.runs.config.keys import UserModelConfig
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from fedloom.runs.storage.log import curve
from fedloom.runs.studies.plan import parse_study
from fedloom.runs.studies.run_study import run_study
from fedloom.runs.studies.study_folder import StudyFolder
from fedloom.runs.trackers import measures
from flower_world import DEALT, settings_of
from support import Notes, Stop

ALL = list(PROTOCOLS)
SCENARIO = {**DEALT, "val": 0.1}


def config(method="fedavg", evaluation=None, **keys):
    values = {
        "method": method,
        "model": "mlp",
        "rounds": 2,
        "local_epochs": 1,
        "scenario": SCENARIO,
        "engine": "serial",
    }
    return parse({**values, **keys, "evaluation": {"protocols": ALL} if evaluation is None else evaluation})


def scores(rows):
    return [tuple(row.values()) for row in rows if row["split"] in ("train", "test", "val")]


def measured(numbers):
    """What a summary says of accuracy; costs in seconds differ."""
    names = (
        "protocol",
        "accuracy",
        "best_val_accuracy",
        "best_test_accuracy",
        "test_loss",
        "metrics",
        "details",
        "select",
    )
    return {name: numbers[name] for name in names}


@pytest.fixture(scope="module")
def ditto():
    return run(config("ditto"))


def assert_as_alone(together, method, evaluation=None, **keys):
    for protocol in together.protocols:
        alone = run(config(method, {**(evaluation or {}), "protocol": protocol}, **keys))
        view = together.in_protocol(protocol)
        assert scores(view.rows) == scores(alone.rows)
        assert measured(view.numbers) == measured(alone.numbers)
        assert view.numbers["bytes_up"] == alone.numbers["bytes_up"]


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedsc", "fedbn", "fedper", "local", "central"])
def test_values_are_those_of_runs_in_one_protocol(method):
    best = {"select": "best_val"}  # each protocol selects its own round
    together = run(config(method, {**best, "protocols": ALL}))
    assert len(together.protocols) == len(ALL) - len(together.numbers["not_offered"])
    assert_as_alone(together, method, best)


@pytest.mark.parametrize("engine", ["processes", "threads", "batched"])
def test_engines_find_the_same(engine, ditto):
    other = run(config("ditto", engine={"name": engine, "workers": 2} if engine == "processes" else engine))
    assert other.protocols == ditto.protocols
    if engine == "batched":
        assert other.numbers["protocols"].keys() == ditto.numbers["protocols"].keys()
    else:
        assert scores(other.rows) == scores(ditto.rows)


@pytest.mark.parametrize("method", ["ditto", "fedavg"])
def test_over_messages_the_numbers_are_those_of_the_simulation(method, ditto):
    here = ditto if method == "ditto" else run(config(method))
    there = run_in_process(config(method))
    assert scores(there.rows) == scores(here.rows)
    assert there.numbers["protocols"] == here.numbers["protocols"]


def test_matrices_of_clients_add_up_to_the_pooled_one(ditto):
    view = ditto.in_protocol("personal/local")
    matrices = [np.array(view.confusion(client)) for client in range(view.numbers["clients"])]
    assert (sum(matrices) == np.array(view.confusion())).all()
    accuracies = client_accuracies(view.rows)
    for client, matrix in enumerate(matrices):
        assert matrix.trace() / matrix.sum() == accuracies[client]
    foreign = np.array(ditto.in_protocol("personal/others").confusion(0))
    assert (foreign.sum(1) == sum(matrices).sum(1) - matrices[0].sum(1)).all()  # the samples of all others
    assert run_in_process(config("ditto")).client_details == ditto.client_details


def test_a_matrix_that_was_not_recorded_is_one_line(ditto):
    with pytest.raises(ConfigError, match="client = 1: no confusion by client in global/global; it is recorded where"):
        ditto.confusion(1)
    with pytest.raises(ConfigError, match="client = 99: no confusion of this client in personal/local; 4 of 4 clients"):
        ditto.in_protocol("personal/local").confusion(99)


def test_matrices_are_kept_for_as_many_clients_as_fit(monkeypatch):
    predictions = Predictions(torch.eye(3), torch.tensor([0, 1, 0]))
    states = MetricStates.new(predictions, {"recall": METRICS.get("recall")})
    pairs = [0, 0, 1, 0, 2, 1, 1, 1, 1]  # true class, predicted class, samples
    assert details_of_clients({4: states, 7: states}) == {4: {"confusion": pairs}, 7: {"confusion": pairs}}
    monkeypatch.setattr("fedloom.evaluation.metric._MOST_NUMBERS", len(pairs))
    assert list(details_of_clients({4: states, 7: states})) == [4]


def test_foreign_accuracy_by_sample_is_in_the_summary(ditto):
    metrics = ditto.numbers["protocols"]["personal/others"]["metrics"]
    rows = ditto.in_protocol("personal/others").rows
    assert metrics["accuracy_by_sample"] == curve(rows, "accuracy_by_sample", "test")[1][-1]
    assert "accuracy_by_sample" not in ditto.numbers["protocols"]["personal/local"]["metrics"]


def test_one_protocol_in_the_list_is_the_key_of_old():
    one, old = config(evaluation={"protocols": ["global/local"]}), config(evaluation={"protocol": "global/local"})
    assert (one.fingerprint(), one.resolved()) == (old.fingerprint(), old.resolved())
    assert "protocols" not in old.resolved()["evaluation"]
    assert config().fingerprint() != old.fingerprint()
    assert "protocols" not in run(old).numbers


@pytest.mark.parametrize(
    ("evaluation", "says"),
    [
        ({"protocols": ["global/globl"]}, "did you mean 'global/global'"),
        ({"protocols": ["global/global", 7]}, "evaluation.protocols = 7"),
        ({"protocols": ["global/global", "few-shot"]}, "take evaluation.protocol=few-shot"),
        ({"protocols": ["global/global", "global/global"]}, "stands twice"),
        ({"metrics": ["auroc", "brier", "auroc"]}, "evaluation.metrics = 'auroc' stands twice"),
        ({"also": ["nearest", "nearest"]}, "evaluation.also = 'nearest' stands twice"),
        ({"protocols": ["global/global", "global/local"], "protocol": "global/local"}, "leave evaluation.protocol out"),
        ({"protocols": "global/global"}, "evaluation.protocols"),
        ({"protocols": {"global": "local"}}, "evaluation.protocols"),
    ],
)
def test_wrong_lists_are_one_line(evaluation, says):
    with pytest.raises(ConfigError) as refused:
        config(evaluation=evaluation)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_others_data_of_a_single_client_are_one_line_before_training():
    alone = {"source": "digits", "partition": "iid", "clients": 1}
    with pytest.raises(ConfigError, match="'personal/others': digits has fewer than two clients with test samples"):
        run(config("ditto", {"protocols": ["personal/local", "personal/others"]}, scenario=alone))


class _Notes(Notes):
    rounds = 0

    def on_round(self, config, round_, rows):
        self.rounds += 1
        assert len(curve(rows, "accuracy", "test")[1]) == 1


def test_a_protocol_without_a_model_is_named_once_and_the_others_are_tested():
    notes = _Notes()
    result = run(config("local", {"protocols": ["global/global", "global/local", "personal/local"]}), callbacks=[notes])
    about = [text for text in notes.texts if "not tested" in text]
    assert about == ["local has no global model, so it is not tested in global/global and global/local"]
    assert result.numbers["protocol"] == "personal/local"
    with pytest.raises(ConfigError, match="local has no global model; it was tested in personal/local"):
        result.in_protocol("global/global")


def test_protocols_that_the_method_lacks_are_one_line_before_training():
    notes = _Notes()
    with pytest.raises(ConfigError, match=r"protocols = \[personal/local, personal/global\]: fedavg has no personal"):
        run(config(evaluation={"protocols": ["personal/local", "personal/global"]}), callbacks=[notes])
    assert notes.rounds == 0


def test_predictors_of_also_are_tested_where_they_are_offered():
    personal = {"protocols": ["personal/local", "personal/global"], "also": ["online"]}
    result = run(config("fedco2", personal, model="mlp"))
    assert {row["protocol"] for row in result.rows if row["name"] == "accuracy/online"} == {*personal["protocols"]}
    with pytest.raises(ConfigError, match=r"evaluation.also = 'onlin'"):
        run(config("ditto", {"protocols": ALL, "also": ["onlin"]}))


# -- what people and programs see ------------------------------------------------------------------------------
def test_nothing_mixes_protocols(ditto, tmp_path):
    fedavg, ditto = Result.of(run(config())), Result.of(ditto)
    done = Comparison([fedavg, ditto])
    rows = done.rows()
    assert Counter((row["method"], row["protocol"]) for row in rows) == Counter(
        [("fedavg", p) for p in fedavg.protocols] + [("ditto", p) for p in ditto.protocols]
    )
    for row in rows:
        result = ditto if row["method"] == "ditto" else fedavg
        assert row["accuracy"] == result.numbers["protocols"][row["protocol"]]["accuracy"]
        assert row["protocol"] in row["label"]
    assert {pair.label.partition(" (")[2] for pair in done.paired()} == {"global/global)", "global/local)"}
    assert "With protocol personal/local" in done.verdict()
    assert done.not_offered() == [
        "fedavg has no personal model: not tested in personal/global, personal/local and personal/others"
    ]
    assert "protocol" in done.fairness_table()
    assert "protocol" in done.target_table(0.1)
    assert done.cost_table().count("ditto") == 1  # it trained once
    pandas = done.to_frame()
    assert len(pandas) == len(rows)
    assert set(pandas["protocol"]) == set(ALL)
    frame = ditto.to_frame()
    assert len(frame.query("name == 'accuracy' and split == 'test' and round == 2 and client.isna()")) == 5
    assert [row["protocol"] for row in ditto.summary()] == list(ditto.protocols)
    page = write_report([fedavg, ditto], tmp_path / "report.html").read_text()
    assert all(f"<h3>{protocol}</h3>" in page for protocol in ALL)
    assert len(page.split('id="')) == len(set(page.split('id="')))


def test_curves_clients_and_trackers_know_the_main_protocol(ditto):
    alone = run(config("ditto", {"protocol": ALL[0]}))
    assert ditto.curve() == alone.curve()
    found = measures([row for row in ditto.rows if row["round"] == 2])
    assert found["test/accuracy"] == ditto.numbers["last_accuracy"]
    assert found["test/personal/local/accuracy"] == ditto.numbers["protocols"]["personal/local"]["last_accuracy"]


def test_a_folder_gives_back_all_protocols(tmp_path):
    kept = run(config("ditto"), out=tmp_path / "run")
    again = Result.read(tmp_path / "run")
    assert again.protocols == kept.protocols == tuple(ALL)
    assert (
        again.in_protocol("personal/local").numbers["accuracy"]
        == kept.numbers["protocols"]["personal/local"]["accuracy"]
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "protocols" in json.dumps(summary)


def test_a_resumed_run_has_the_numbers_of_all_protocols(ditto, tmp_path):
    stopped = config("ditto", checkpoint={"seconds": 0})
    with pytest.raises(ConnectionError):
        run(stopped, out=tmp_path / "run", callbacks=[Stop(1)])
    resumed = run(stopped, out=tmp_path / "run", existing="resume")
    assert scores(resumed.rows) == scores(ditto.rows)
    assert resumed.numbers["protocols"] == ditto.numbers["protocols"]


def test_a_run_in_several_protocols_compares_with_runs_in_one(ditto):
    single = run(config("fedavg", {"protocol": "global/local"}))
    rows = [group.row for group in grouped([single, ditto])]
    assert all("evaluation.protocols" not in row["setting"] for row in rows)


def test_foreign_accuracy_and_clients_hurt_come_from_one_run(ditto):
    by_protocol = {protocol: client_accuracies(ditto.in_protocol(protocol).rows) for protocol in ditto.protocols}
    own, foreign, before = (by_protocol[name] for name in ("personal/local", "personal/others", "global/local"))
    (row,) = [row for row in fairness_rows(grouped([ditto])) if row.protocol == "personal/local"]
    assert row.foreign == pytest.approx(sum(foreign.values()) / len(foreign))
    assert row.drop == pytest.approx(sum(own[k] - foreign[k] for k in own) / len(own))
    assert row.against["its global model"].worse == sum(own[k] < before[k] for k in own) / len(own)
    table = Comparison([ditto]).fairness_table("csv")
    others = [row for row in fairness_rows(grouped([ditto, run(config("local"))])) if "/local" not in row.protocol]
    assert others
    assert not any(row.against for row in others)  # tested on other samples than the references
    assert "worse_than_its_global_model" in table.splitlines()[0]
    assert "on others' data" in Comparison([ditto]).fairness_table()
    alone = fairness_rows(grouped([run(config("ditto", {"protocol": "personal/local"}))]))
    assert (alone[0].foreign, alone[0].against) == (None, {})


# -- studies -----------------------------------------------------------------------------------------------------
def study(**keys):
    plain = {"scenario": SCENARIO, "model": "mlp", "rounds": 1, "local_epochs": 1, "engine": "serial", "seeds": 2}
    return parse_study({**plain, "methods": ["fedavg", "ditto", "local"], **keys})


def test_global_and_personal_tables_take_half_the_runs(tmp_path):
    two = {"protocols": ["global/global", "personal/local"]}
    apart = study(settings={name: {"evaluation": {"protocol": name}} for name in two["protocols"]})
    together = study(evaluation=two)
    assert (len(together.cells), len(apart.cells)) == (6, 12)
    ended = run_study(together, StudyFolder(tmp_path), together.cells)
    assert not ended.failed
    assert len(list(tmp_path.glob("*/summary.json"))) == 6
    rounds = sum(row["name"] == "bytes_up" for result in ended.results.values() for row in result.rows)
    assert rounds == 6  # one round for each method and seed, not two
    done = Comparison(list(ended.results.values()))
    labels = {row["label"]: row["protocol"] for row in done.rows()}
    assert labels == {
        "fedavg": "global/global",
        "ditto (global/global)": "global/global",
        "ditto (personal/local)": "personal/local",
        "local": "personal/local",
    }
    assert all(row["n"] == 2 for row in done.rows())
    assert [note.partition(":")[0] for note in done.not_offered()] == [
        "fedavg has no personal model",
        "local has no global model",
    ]


# -- what methods offer --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", METHODS.names())
def test_what_a_method_offers_is_true(method):
    """Protocols that `fedloom methods` names give a value; others are refused by name."""
    settings = settings_of(method) | {"rounds": 1}
    settings["scenario"] = settings.get("scenario", DEALT)
    if method == "fedbn":  # it keeps batch norm private, and without that it is FedAvg
        layers = nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10)
        data = config().scenario.build(0).train_set
        settings["model"] = UserModelConfig.from_object(nn.Sequential(*layers), data)
    result = run(config(method, **{**settings, "evaluation": {"protocols": ALL}}))
    offered = offered_protocols(abilities(METHODS.get(method)).predicts)
    assert set(result.protocols) == set(offered)
    for protocol in ALL:
        if protocol in offered:
            assert 0 <= result.numbers["protocols"][protocol]["accuracy"] <= 1
        else:
            assert f"{method} has no {protocol.partition('/')[0]} model" == result.numbers["not_offered"][protocol]
            with pytest.raises(ConfigError, match=f"{method} has no"):
                run(config(method, **{**settings, "evaluation": {"protocol": protocol}}))


def test_clients_without_test_samples_are_counted_where_clients_are_tested(capsys):
    x, y = np.random.default_rng(0).normal(size=(41, 3)), np.arange(41) % 2
    data = from_arrays(x, y, owners=np.repeat(["ann", "bob", "eve"], [20, 20, 1]))
    owned = make_scenario("owned", data, Natural(), clients=3, val=0.0, streams=Streams(0))
    notes = _Notes()
    for protocol in ("global/local", "global/global"):
        told = {"source": "given", "partition": "iid", "digest": owned.digest(), "clients": 3}
        result = run(
            config(model="logistic", rounds=1, scenario=told, evaluation={"protocol": protocol}),
            scenario=owned,
            callbacks=[notes],
        )
        print_result(Console(width=200), result)
    about_tests = [text for text in notes.texts if "without test samples" in text]
    assert about_tests == ["clients without test samples: 1 of 3; means over clients leave them out"]
    printed = capsys.readouterr().out
    assert "(global/local over 2 of 3 clients, last)" in printed
    assert "(global/global, last)" in printed
