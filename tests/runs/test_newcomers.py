"""Tests on clients that never trained: golden numbers, support samples, and training that does not see them."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.core.records import to_bytes
from fedloom.data.views import Views
from fedloom.engine import Federation
from fedloom.evaluation import Evaluator
from fedloom.flower.in_process import run_in_process
from fedloom.methods import METHODS
from fedloom.methods.catalogue import abilities
from fedloom.runs.config.run_config import parse
from fedloom.runs.config.sections import EvaluationConfig
from fedloom.runs.newcomers import NewcomerService, NewcomerTests
from fedloom.runs.run import run
from fedloom.runs.trackers import measures
from golden_world import golden_run, golden_scenario, probe
from support import Notes, Stop, sampled

GOLD = json.loads((Path(__file__).parents[1] / "golden" / "newcomers.json").read_text())["held_out_clients"]
KEYS = {"partition": "dirichlet", "alpha": 0.3, "clients": 7, "held_out": [1, 5]}
SERVED = {"evaluation": {"newcomers": {"shots": [1, 3, "all"], "tunes": ["all", "head", "lp_ft", "own"], "epochs": 2}}}


def config(method="fedavg", scenario=KEYS, **keys):
    plain = {
        "method": method,
        "rounds": 2,
        "local_epochs": 1,
        "model": "mlp",
        "scenario": {"source": "digits", **scenario},
    }
    return parse({**plain, **SERVED, **keys})


# -- golden numbers ------------------------------------------------------------------------------------------
def golden_tests(kind):
    """The tests of client 2, which never trains, in the golden world after two rounds."""
    federation, _ = golden_run(METHODS.get(kind), drawn=[[0], [0, 1]])
    worker, scenario = federation.engine.worker, golden_scenario()
    first_row = 8  # clients 0 and 1 have 5 and 3 samples
    rows = [np.array(GOLD[name]) + first_row for name in ("support", "test")]
    newcomers = replace(scenario, train=Views.from_lists(rows[:1]), test=Views.from_lists(rows[1:]))
    training = replace(scenario, train=scenario.train.of_clients(np.arange(2)), newcomers=newcomers, newcomer_ids=(2,))
    worker.evaluators = {"global/local": Evaluator(training, "global/local", batch=9)}
    federation.scenario = training
    tests = NewcomerTests(federation, worker, training, EvaluationConfig(newcomers={"epochs": 3}))
    (newcomer,) = tests.service.newcomers()
    support = torch.from_numpy(rows[0])
    tests.service.evaluator.scenario = newcomers
    return SimpleNamespace(service=tests.service, newcomer=newcomer, support=support, worker=worker)


@pytest.mark.parametrize("kind", ["fedavg", "fedper"])
def test_golden_models_and_accuracies(kind):
    world, expected = golden_tests(kind), GOLD["out"][kind]
    service, newcomer = world.service, world.newcomer
    predictor = service.predictor(newcomer, service.first_state(newcomer, world.support))
    assert abs(probe(predictor.tree) - expected["start_probe"]) < 1e-7
    zero_shot = service.test(newcomer, predictor, world.support, None)
    assert zero_shot.value("accuracy") == expected["zero_shot"]
    for tuned in ("all", "head"):
        states = service.test(newcomer, predictor, world.support, tuned)
        tree = world.worker.net_of_client(2).tree
        assert abs(probe(tree) - expected["tuned"][tuned]["probe"]) < 1e-7
        assert states.value("accuracy") == expected["tuned"][tuned]["accuracy"]
        assert states.total == len(GOLD["test"])  # the support is not tested
    wrong = [GOLD["WRONG_fedper_mean_of_heads"], GOLD["WRONG_fedper_last_client_head"]]
    assert all(abs(probe(predictor.tree) - value) > 1e-5 for value in wrong)


def test_statistics_of_batch_norm_are_means_over_all_batches():
    """Seven samples in batches of three: a single sample has no spread, so the last one does not count."""
    x, net = torch.tensor([[1.0], [2.0], [6.0], [0.0], [4.0], [8.0], [100.0]]), torch.nn.BatchNorm1d(1)
    net.running_mean.fill_(50.0)
    data = SimpleNamespace(gather=lambda rows: x[rows])
    service = SimpleNamespace(evaluator=SimpleNamespace(batch=3), worker=SimpleNamespace(data=data))
    NewcomerService._estimate_statistics(service, net, torch.arange(7))
    assert float(net.running_mean) == pytest.approx((3 + 4) / 2)
    assert float(net.running_var) == pytest.approx((7 + 16) / 2)
    assert net.momentum == 0.1


@pytest.mark.parametrize("tuned", ["all", "head"])
def test_newcomers_tune_at_the_rate_of_the_last_round(tuned):
    """Of twice the golden rate half is left in round 2, which is the last; the tuning itself decays no further."""
    world = golden_tests("fedavg")
    task, service = world.newcomer.task, world.service
    decaying = replace(task.optimizer, lr=2 * task.optimizer.lr, decay=0.5)
    newcomer = replace(world.newcomer, task=replace(task, optimizer=decaying))
    predictor = service.predictor(newcomer, service.first_state(newcomer, world.support))
    service.test(newcomer, predictor, world.support, tuned)
    expected = GOLD["out"]["fedavg"]["tuned"][tuned]["probe"]
    assert abs(probe(world.worker.net_of_client(2).tree) - expected) < 1e-7


# -- support -------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def tests_of_run():
    """The tests of a small run, and its scenario."""
    kept = {}

    class Keeping(NewcomerTests):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            kept["tests"] = self

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedloom.runs.run.NewcomerTests", Keeping)
        kept["result"] = run(config())
    return SimpleNamespace(**kept)


def test_a_support_has_k_samples_of_each_class_and_is_nested(tests_of_run):
    service = tests_of_run.tests.service
    labels = service.scenario.train_set.y
    for newcomer in service.newcomers():
        rows = service.scenario.train[newcomer.index]
        supports = [service.support(newcomer, shots).tolist() for shots in (1, 3, "all")]
        assert set(supports[0]) < set(supports[1]) < set(supports[2]) == set(rows.tolist())
        for support, shots in zip(supports[:2], (1, 3), strict=True):
            held, counts = (
                torch.bincount(labels[torch.tensor(list(s))], minlength=10) for s in (rows.tolist(), support)
            )
            assert counts.tolist() == held.clamp(max=shots).tolist()


def test_each_way_of_serving_is_a_protocol_of_its_own(tests_of_run):
    numbers = tests_of_run.result.numbers["newcomers"]
    served = [f"{k}-shot/{tuned}/2" for k in (1, 3, "all") for tuned in ("all", "head", "lp_ft", "local")]
    assert set(numbers["tests"]) == {"zero-shot", *served}  # FedAvg has no round of its own for a newcomer
    assert numbers["clients"] == [1, 5]
    assert numbers["zero_shot_note"] is None
    rows = [row for row in tests_of_run.result.rows if row["split"] == "newcomers"]
    assert {row["round"] for row in rows} == {2}
    assert {row["client"] for row in rows} == {None, 1, 5}
    by_client = [r["value"] for r in rows if r["client"] and (r["protocol"], r["name"]) == ("zero-shot", "accuracy")]
    assert numbers["tests"]["zero-shot"]["accuracy"] == pytest.approx(np.mean(by_client))


@pytest.mark.parametrize(
    ("method", "note", "own"),
    [
        ("fedper", "its head is the initial one", True),
        ("lgfedavg", "its body is the initial one", True),
        ("local", "its model is the initial one", True),
        ("ditto", None, True),
        ("fedrod", None, True),
        ("fedbn", None, True),
        ("fedssa", "its model is the initial one", True),
        ("fedkd", None, True),
        ("scaffold", None, False),
    ],
)
def test_methods_serve_newcomers_from_what_the_server_has(method, note, own):
    personal = {} if method in ("ditto", "fedrod", "scaffold") else {"protocol": "personal/local"}
    result = run(config(method, evaluation={**SERVED["evaluation"], **personal}))
    numbers = result.numbers["newcomers"]
    assert numbers["zero_shot_note"] == note
    assert ("3-shot/own" in numbers["tests"]) == own


def test_a_personal_model_that_is_still_the_initial_one_gives_way_to_the_global_model():
    ditto, fedavg = (run(config(method)).numbers["newcomers"]["tests"] for method in ("ditto", "fedavg"))
    assert ditto["zero-shot"] == fedavg["zero-shot"]
    fedas = run(config("fedas")).numbers["newcomers"]  # keeps its last model in its state
    first = run(config("local", evaluation={"protocol": "personal/local"})).numbers["newcomers"]
    assert (fedas["zero_shot_note"], first["zero_shot_note"]) == (None, "its model is the initial one")
    assert fedas["tests"]["zero-shot"]["accuracy"] != first["tests"]["zero-shot"]["accuracy"]


def batch_norm_net():
    blocks = [(1, 8), (8, 16)]
    layers = [layer for c, d in blocks for layer in (nn.Conv2d(c, d, 3, padding=1), nn.BatchNorm2d(d), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))


def test_tuned_models_have_statistics_of_the_support_where_they_are_private():
    """A head that is tuned on the features of untrained statistics, 0 and 1, falls far behind."""
    digits = {"source": "digits", "clients": 4, "partition": "iid", "held_out": [0]}
    served = {"newcomers": {"shots": ["all"], "tunes": ["head"], "epochs": 1}, "protocol": "personal/local"}
    more = {"rounds": 6, "model": batch_norm_net(), "optimizer": {"lr": 0.05}, "evaluation": served}
    newcomers = fl.run("fedbn", scenario=digits, progress=False, **more).numbers["newcomers"]
    accuracy = {way: test["accuracy"] for way, test in newcomers["tests"].items()}
    assert newcomers["zero_shot_note"] == "batch norm has the statistics of the newcomer's own samples"
    assert accuracy["all-shot/head/1"] > accuracy["zero-shot"] - 0.05
    assert accuracy["zero-shot"] > 0.8


@pytest.mark.parametrize("method", ["fedcp", "fedpcl", "fedrod", "gpfl"])
def test_what_a_newcomer_reaches_alone_is_the_same_whatever_the_method(method):
    """Without a head, prototypes or embeddings of the server's, which the method's predictions may use."""
    keys = {**SERVED, "evaluation": {**SERVED["evaluation"], "protocol": "personal/local"}}
    alone, beside = (run(config(name, **keys)).numbers["newcomers"]["tests"] for name in ("local", method))
    ways = [way for way in alone if "/local/" in way]
    assert ways
    assert {way: beside[way] for way in ways} == {way: alone[way] for way in ways}


# -- training does not see them ------------------------------------------------------------------------------
def noise_for_newcomers(scenario):
    """The scenario with other samples and labels of the newcomers."""
    data, rows = scenario.train_set, torch.from_numpy(scenario.newcomers.train.order)
    x, y = data.x.clone(), data.y.clone()
    x[rows], y[rows] = (torch.rand(x[rows].shape) * 16).to(x.dtype), (y[rows] + 1) % scenario.num_classes
    train_set = replace(data, x=x, y=y)
    return replace(scenario, train_set=train_set, newcomers=replace(scenario.newcomers, train_set=train_set))


def trained(result):
    """All rows of a run but those of newcomers and of seconds."""
    return [row for row in result.rows if row["split"] != "newcomers" and not row["name"].startswith("seconds")]


SERVER_DATA = {"feddf": {"public": 0.05}, "fedgen": {"public": 0.05}, "fedmd": {"public": 0.05}}


@pytest.mark.parametrize("method", sampled(METHODS.names(), "fedper", "scaffold"))
def test_changing_their_data_changes_no_weight(method, monkeypatch):
    keys = {"augment": {"crop": 1}} if method == "fedclassavg" else {}
    personal = "global" not in offered(method)
    keys["evaluation"] = {"newcomers": {"epochs": 1}} | ({"protocol": "personal/local"} if personal else {})
    described = config(method, {**KEYS, **SERVER_DATA.get(method, {})}, **keys)
    scenario = described.scenario.build(described.seed)
    servers = []
    step = Federation.step

    def stepping(federation):
        report = step(federation)
        servers.append(bits(federation))
        return report

    monkeypatch.setattr(Federation, "step", stepping)
    results = [run(described, scenario=variant) for variant in (scenario, noise_for_newcomers(scenario))]
    assert servers[:2] == servers[2:]
    assert trained(results[0]) == trained(results[1])
    assert results[0].numbers["newcomers"] != results[1].numbers["newcomers"]


def offered(method):
    return abilities(METHODS.get(method)).predicts


def bits(federation):
    return [to_bytes(federation.server), *(to_bytes(federation.states[k]) for k in sorted(federation.states))]


@pytest.mark.parametrize("engine", ["processes", "flower"])
def test_every_engine_finds_the_same(engine):
    serial = run(config("fedsc", engine={"name": "serial"}))
    if engine == "flower":
        other = run_in_process(config("fedsc"))
    else:
        other = run(config("fedsc", engine={"name": "processes", "workers": 2}))
    assert serial.numbers["newcomers"] == other.numbers["newcomers"]


def test_a_resumed_run_has_the_tests_once(tmp_path):
    whole = run(config(), out=tmp_path / "whole")
    keys = {"checkpoint": {"seconds": 0}}
    with pytest.raises(ConnectionError):
        run(config(**keys), out=tmp_path / "cut", callbacks=[Stop(1)])
    resumed = run(config(**keys), out=tmp_path / "cut", existing="resume")
    assert resumed.numbers["newcomers"] == whole.numbers["newcomers"]
    assert trained(resumed)[-1]["value"] == trained(whole)[-1]["value"]


def test_a_test_that_fails_loses_no_training(tmp_path, monkeypatch):
    whole, tests_of = run(config()), NewcomerService.tests

    def failing(*_):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(NewcomerService, "tests", failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            run(config(), out=tmp_path)
    assert NewcomerService.tests is tests_of
    monkeypatch.setattr(Federation, "step", failing)  # all rounds are there
    resumed = run(config(), out=tmp_path, existing="resume")
    assert resumed.numbers["newcomers"] == whole.numbers["newcomers"]
    assert trained(resumed)[-1]["value"] == trained(whole)[-1]["value"]


def test_newcomers_of_a_scenario_made_in_python_are_in_its_fingerprint():
    made = fl.scenario("digits", clients=4, held_out=[0])
    keys = {"rounds": 1, "model": "mlp", "scenario": made, "progress": False}
    served = [{"newcomers": {"shots": [1]}}, {"newcomers": {"shots": [5]}}]
    first, second = (fl.run("fedavg", evaluation=evaluation, **keys) for evaluation in served)
    assert first.numbers["fingerprint"] != second.numbers["fingerprint"]
    assert first.config["evaluation"]["newcomers"]["shots"] == [1]


def test_a_round_of_fedfomo_at_a_newcomer():
    tests = run(config("fedfomo", evaluation={**SERVED["evaluation"], "protocol": "personal/local"})).numbers
    assert "all-shot/own" in tests["newcomers"]["tests"]


def test_a_run_that_is_stopped_early_tests_them_too():
    class Enough(fl.Callback):
        def on_round(self, config, round_, rows):
            return "enough" if round_ == 1 else None

    result = run(config(), callbacks=[Enough()])
    assert {row["round"] for row in result.rows if row["split"] == "newcomers"} == {1}
    assert "zero-shot" in result.numbers["newcomers"]["tests"]


def test_an_early_end_that_was_cut_off_before_its_summary_has_the_tests_once(tmp_path, monkeypatch):
    keys = {"rounds": 5, "early_stopping": {"patience": 1, "min_delta": 0.99}, "checkpoint": {"seconds": 1000}}
    with monkeypatch.context() as patch:
        patch.setattr("fedloom.runs.run.summarise", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(config(**keys), out=tmp_path / "cut")
    resumed = run(config(**keys), out=tmp_path / "cut", existing="resume")
    rows = [(r["protocol"], r["name"], r["client"]) for r in resumed.rows if r["split"] == "newcomers"]
    assert resumed.numbers["stopped"]["round"] == 2
    assert len(set(rows)) == len(rows) > 0


def interrupt(*_):
    raise KeyboardInterrupt


def test_scores_of_models_that_were_tuned_apart_are_not_pooled():
    metrics = {"metrics": ["auroc"], "newcomers": {"shots": [3], "epochs": 1}}
    tests = run(config(evaluation=metrics)).numbers["newcomers"]["tests"]
    for test in tests.values():
        assert "auroc" in test
        assert "auroc_pooled" not in test
    binned = run(config(evaluation={**metrics, "scores_mib": 0})).numbers["newcomers"]["tests"]
    assert binned["zero-shot"]["auroc"] != tests["zero-shot"]["auroc"]
    assert binned["zero-shot"]["auroc"] == pytest.approx(tests["zero-shot"]["auroc"], abs=0.01)


def test_trackers_have_a_measure_for_each_way_of_serving(tests_of_run):
    tests = tests_of_run.result.numbers["newcomers"]["tests"]
    logged = measures(tests_of_run.result.rows)
    assert {logged[f"newcomers/{name}/accuracy"] for name in tests} == {test["accuracy"] for test in tests.values()}
    assert "newcomers/accuracy" not in logged


# -- bad input -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"shots": [0]}, "evaluation.newcomers.shots"),
        ({"shots": ["some"]}, "evaluation.newcomers.shots"),
        ({"tunes": ["body"]}, "evaluation.newcomers.tunes"),
        ({"tunes": []}, "evaluation.newcomers.tunes = "),
        ({"epochs": 0}, "evaluation.newcomers.epochs"),
        ({"shots": [1, 5, 1]}, "evaluation.newcomers.shots = 1 stands twice"),
        ({"tunes": ["all", "all"]}, "evaluation.newcomers.tunes = 'all' stands twice"),
    ],
)
def test_bad_keys_are_refused_in_one_line(keys, message):
    with pytest.raises(ConfigError, match=message) as error:
        config(evaluation={"newcomers": keys})
    assert "\n" not in str(error.value)


def test_shots_that_no_newcomer_has_are_refused_and_those_of_some_are_noted():
    with pytest.raises(
        ConfigError, match=r"shots = 100000: no client that never trains has more than \d+ samples of a"
    ):
        run(config("fedavg", evaluation={"newcomers": {"shots": [1, 100000]}}))
    scenario = config("fedavg").scenario.build(0)
    labels, train = scenario.train_set.y, scenario.newcomers.train
    largest = sorted(int(labels[train.tensor(k)].bincount().max()) for k in range(2))
    notes = Notes()
    run(config("fedavg", evaluation={"newcomers": {"shots": [largest[1]], "epochs": 1}}), callbacks=[notes])
    assert largest[0] < largest[1]
    said = f"{largest[1]} shots: tuning has fewer samples of every class at 1 of 2 newcomers"
    assert [text for text in notes.texts if "shots" in text] == [said]


def test_keys_of_newcomers_without_effect_are_said_once():
    notes = Notes()
    run(config("fedavg"), callbacks=[notes])
    own = [text for text in notes.texts if "tunes: own" in text]
    assert own == [
        "fedavg has no personal model, so newcomers are not tested after the method's client round (tunes: own)"
    ]
    notes = Notes()
    nobody = {key: value for key, value in KEYS.items() if key != "held_out"}
    run(config("fedavg", scenario=nobody), callbacks=[notes])
    assert [text for text in notes.texts if "no effect" in text] == [
        "evaluation.newcomers has no effect: no client is held out; set scenario.held_out, e.g. {share: 0.2}"
    ]
