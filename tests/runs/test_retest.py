"""Finished runs are tested again: the same bits where a test was recorded, and a sentence where there is none."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedloom as fl
from command_line import call
from fedloom.core.errors import CheckpointError, ConfigError, DataError, RunFolderError
from fedloom.data import from_arrays
from fedloom.evaluation import Predictions
from fedloom.runs.storage.data_record import OtherDataError
from typed_commands import commands_of

METHODS = ["fedavg", "fedrep", "fedco2", "fedssa", "ditto", "fedproto", "fedpac", "fedavg+finetune"]
PROTOCOLS = ["global/global", "personal/local"]
DIGITS = {"partition": "dirichlet", "alpha": 0.5, "clients": 5, "val": 0.2, "held_out": {"share": 0.2}}
SHORT = {"rounds": 2, "local_epochs": 1, "engine": "serial", "progress": False}


def trained(out: Path, method: str = "ditto", **keys):
    evaluation = {"protocols": PROTOCOLS, "metrics": ["auroc"], **keys.pop("evaluation", {})}
    scenario = keys.pop("scenario", None) or fl.scenario("digits", **DIGITS)
    return fl.run(method, scenario=scenario, out=out, evaluation=evaluation, **SHORT, **keys)


@pytest.fixture(scope="module")
def ditto(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("ditto") / "run")


def rows_of_tests(result, *splits):
    kept = [row for row in result.rows if row["split"] in splits and row["round"] == result.numbers["rounds"]]
    return sorted(map(json.dumps, kept))


@pytest.mark.parametrize("method", METHODS)
def test_recorded_tests_come_back_bit_for_bit(method, tmp_path):
    run = trained(tmp_path / "run", method)
    before = (tmp_path / "run" / "summary.json").read_bytes()
    again = fl.read(tmp_path / "run").evaluate(newcomers=True)
    assert rows_of_tests(again, "test", "val", "newcomers") == rows_of_tests(run, "test", "val", "newcomers")
    assert again.numbers["evaluation"]["repeated"] > 50
    assert again.numbers["evaluation"]["differing"] == 0
    assert again.protocols == run.protocols
    same = ("metrics", "details", "newcomers", "accuracy", "test_loss", "degenerate", "bytes_up")
    for protocol in run.protocols:
        tested, recorded = again.in_protocol(protocol).numbers, run.in_protocol(protocol).numbers
        assert {key: tested.get(key) for key in same} == {key: recorded.get(key) for key in same}
    assert again.confusions() == run.confusions()
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
    assert fl.Result.read(tmp_path / "run") is not None


def test_tests_that_the_run_never_had_are_those_of_a_run_that_had_them(ditto, tmp_path):
    asked = {"protocols": ["personal/global", "personal/others"], "metrics": ["brier", "auroc"]}
    newcomers = {"shots": [1, 3], "tunes": ["head"], "epochs": 2}
    known = trained(tmp_path / "run", evaluation={**asked, "newcomers": newcomers})
    again = ditto.evaluate(**asked, newcomers=newcomers)
    assert rows_of_tests(again, "test", "val", "newcomers") == rows_of_tests(known, "test", "val", "newcomers")
    assert again.protocols == ("personal/global", "personal/others")
    assert again.numbers["newcomers"] == known.numbers["newcomers"]


def test_a_stored_evaluation_is_read_and_not_made_again(ditto, monkeypatch):
    first = ditto.evaluate(metrics=["mcc"])
    monkeypatch.setattr("fedloom.runs.retest._tests", lambda *_: pytest.fail("tested again"))
    assert ditto.evaluate(metrics=["mcc"]) == first
    assert fl.read(ditto.folder).evaluate(metrics="mcc").numbers == first.numbers
    (path,) = [
        path for path in (ditto.folder / "evaluations").iterdir() if first.numbers["evaluation"]["digest"] in path.name
    ]
    for text in (path.read_text().replace('"mcc": 0.', '"mcc": 1.', 1), "{}", "[1]", "{"):
        path.write_text(text)
        with pytest.raises(
            RunFolderError, match=r"evaluations/.*json: damaged .* delete this file, and evaluate again"
        ):
            ditto.evaluate(metrics=["mcc"])
    path.unlink()


def test_a_function_that_may_have_changed_is_counted_again(ditto):
    def is_certain(predictions: Predictions):
        return predictions.probabilities.amax(1) > 0.9

    first = ditto.evaluate(metrics=[is_certain]).numbers["metrics"]["is_certain"]

    def is_certain(predictions: Predictions):
        return predictions.probabilities.amax(1) <= 0.9

    assert ditto.evaluate(metrics=[is_certain]).numbers["metrics"]["is_certain"] == pytest.approx(1 - first)


def test_a_run_in_memory_is_tested_from_its_weights():
    run = trained(None)
    again = run.evaluate(newcomers=True)
    assert rows_of_tests(again, "test", "newcomers") == rows_of_tests(run, "test", "newcomers")


def test_the_best_round_and_any_round_with_a_checkpoint(tmp_path):
    run = trained(tmp_path / "run", evaluation={"select": "best_val"}, checkpoint={"seconds": 0, "keep": 2})
    best = run.evaluate()
    assert best.numbers["select"] == "best_val"
    assert best.numbers["accuracy"] == run.numbers["accuracy"]
    first = run.evaluate(at=1)
    assert (first.numbers["select"], first.numbers["evaluation"]["round"]) == ("round 1", 1)
    assert first.numbers["accuracy"] == run.curve()[1][0]
    for wrong in (0, 3):
        with pytest.raises(CheckpointError, match=rf"no checkpoint of round {wrong} .* kept are those of 1, 2;"):
            run.evaluate(at=wrong)
    with pytest.raises(ConfigError, match="need last, best_val or the number of a round"):
        run.evaluate(at="frist")


def test_values_by_group_are_those_of_the_samples_of_the_group(tmp_path):
    rng = np.random.default_rng(0)
    lines = [
        f"{x:.3f},{'fm'[int(s)]},{int(a)},{'ill' if x > 0.5 else 'well'}"
        for x, s, a in zip(rng.random(300), rng.integers(0, 2, 300), rng.integers(20, 90, 300), strict=True)
    ]
    (tmp_path / "data.csv").write_text("\n".join(["pressure,sex,age,state", *lines]) + "\n")
    scenario = fl.scenario("csv", path=str(tmp_path / "data.csv"), label="state", partition="iid", clients=3)
    run = trained(tmp_path / "run", scenario=scenario, model="logistic")
    by_sex = run.evaluate(by="sex").numbers["evaluation"]["groups"]
    test_set = scenario.build(0).test_set
    for record in by_sex:
        if record["protocol"] == "global/global":
            column = test_set.features.index(record["group"])
            of = (test_set.x[:, column] == 1).nonzero().flatten()
            correct = run.model()(test_set.gather(of)).argmax(1) == test_set.y[of]
            assert record["samples"] == len(of)
            assert record["accuracy"] == pytest.approx(correct.double().mean().item())
    assert {(record["protocol"], record["group"]) for record in by_sex} == {
        (p, s) for p in PROTOCOLS for s in ("sex=f", "sex=m")
    }
    ages = run.evaluate(by="age", protocols=["global/global"]).numbers["evaluation"]["groups"]
    assert len(ages) == 4
    assert sum(record["samples"] for record in ages) == len(test_set)
    owners = run.evaluate(by="owner", protocols=["personal/local"])
    accuracies = [record["accuracy"] for record in owners.numbers["evaluation"]["groups"]]
    last = {row["client"]: row["value"] for row in owners.rows if row["name"] == "accuracy" and row["split"] == "test"}
    assert accuracies == pytest.approx([last[client] for client in range(3)])
    with pytest.raises(ConfigError, match=r"by = 'group': scenario.group names none"):
        run.evaluate(by="group")
    with pytest.raises(ConfigError, match=r"by = 'sexx': .*sex"):
        run.evaluate(by="sexx")


def test_values_by_group_are_those_of_newcomers_too(ditto):
    newcomers = {"shots": [1], "tunes": ["head"], "epochs": 1}
    again = ditto.evaluate(by="owner", newcomers=newcomers)
    records = {(r["protocol"], r["group"]): r for r in again.numbers["evaluation"]["groups"]}
    rows = [row for row in again.rows if row["split"] == "newcomers" and row["client"] is not None]
    assert {row["protocol"] for row in rows} == {"zero-shot", "1-shot/head/1", "1-shot/local/1"}
    for row in rows:
        record = records[row["protocol"], f"client {row['client']}"]
        assert row["name"] != "accuracy" or record["accuracy"] == pytest.approx(row["value"])
        assert record["auroc"] is None  # a newcomer's model has scores of its own
    assert ("global/global", "client 0") in records


def test_intervals_are_added_by_group_or_row(ditto, tmp_path):
    with pytest.raises(ConfigError, match=r"interval = 'group': scenario\.group names none in this run; take 'row'"):
        ditto.evaluate(interval="group")
    y = np.arange(200) // 5 % 2
    x = (np.random.default_rng(0).normal(size=(200, 3)) + y[:, None]).astype(np.float32)
    scenario = fl.scenario(from_arrays(x, y, groups=np.arange(200) // 5), clients=2, partition="iid")
    keys = {"evaluation": {"protocols": ["global/global"]}, "checkpoint": {"predictions": True}}
    run = trained(tmp_path / "run", "fedavg", scenario=scenario, model="logistic", **keys)
    assert "intervals" not in run.numbers
    for by, groups in (("group", 8), ("row", 40)):
        found = run.evaluate(data=scenario, interval=by).numbers["intervals"]
        assert (found["by"], found["groups"]) == (by, groups)
        assert found["values"]["accuracy"]["value"] == run.numbers["accuracy"]
    with pytest.raises(ConfigError, match=r"evaluation\.intervals\.by = 'person'"):
        run.evaluate(interval="person")
    with pytest.raises(ConfigError, match="few-shot has an interval over episodes"):
        run.evaluate(interval="row", protocols="few-shot")


def test_values_by_group_are_those_of_each_person(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"p{person},{rng.normal():.3f},{'ab'[person % 2]}" for person in range(30) for _ in range(5)]
    (tmp_path / "data.csv").write_text("\n".join(["id,pressure,state", *lines]) + "\n")
    keys = {"path": str(tmp_path / "data.csv"), "label": "state", "group": "id", "partition": "iid", "clients": 3}
    run = trained(tmp_path / "run", "fedavg", scenario=fl.scenario("csv", **keys), model="logistic")
    persons = run.evaluate(by="group").numbers["evaluation"]["groups"]
    assert {record["samples"] for record in persons} == {5}
    mean = sum(record["samples"] * record["accuracy"] for record in persons) / run.scenario["test_samples"]
    assert mean == pytest.approx(run.numbers["accuracy"])


def test_new_data_replace_the_test_set(ditto, tmp_path):
    test_set = fl.scenario("digits", **DIGITS).build(0).test_set
    data = test_set.x.numpy(), test_set.y.numpy()
    again = ditto.evaluate(data, protocols=["global/global", "personal/global"])
    assert again.numbers["accuracy"] == ditto.numbers["accuracy"]
    assert again.numbers["source"] == "new data"
    assert (
        again.in_protocol("personal/global").numbers["accuracy"]
        == (ditto.evaluate(protocols=["personal/global"]).numbers["accuracy"])
    )
    assert ditto.evaluate(data).metrics["accuracy"] == pytest.approx(ditto.numbers["accuracy"])
    with pytest.raises(ConfigError, match="protocol personal/local: new data do not say which client"):
        ditto.evaluate(data, protocols=["personal/local"])
    with pytest.raises(ConfigError, match="newcomers: new data name no clients"):
        ditto.evaluate(data, protocols=["global/global"], newcomers=True)
    with pytest.raises(ConfigError, match="client = 1: protocols test all clients"):
        ditto.evaluate(data, 1, protocols=["personal/global"])


def test_data_from_python_are_passed_again_and_others_refused(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 4)).astype(np.float32), rng.integers(0, 2, 200)
    scenario, other = (fl.scenario(from_arrays(x + shift, y), clients=2) for shift in (0, 1))
    run = trained(tmp_path / "run", "fedavg", scenario=scenario)
    read = fl.read(tmp_path / "run")
    with pytest.raises(DataError, match=r"made in Python; pass it again.*result.evaluate\(data=...\)"):
        read.evaluate()
    assert read.evaluate(data=scenario).numbers["accuracy"] == run.numbers["accuracy"]
    with pytest.raises(ConfigError, match="data: not the scenario that this run was given"):
        fl.read(tmp_path / "run").evaluate(data=other, metrics=["mcc"])


def test_changed_data_are_refused_by_their_digest(tmp_path):
    rows = [f"{k % 17},{k % 5},{'ab'[k % 2]}" for k in range(100)]
    (tmp_path / "data.csv").write_text("\n".join(["u,v,label", *rows]) + "\n")
    scenario = fl.scenario("csv", path=str(tmp_path / "data.csv"), label="label", partition="iid", clients=2)
    trained(tmp_path / "run", "fedavg", scenario=scenario, model="logistic")
    (tmp_path / "data.csv").write_text("\n".join(["u,v,label", *rows[1:], "3,3,a"]) + "\n")
    with pytest.raises(OtherDataError, match="not the data that the run in"):
        fl.read(tmp_path / "run").evaluate()


def test_what_cannot_be_tested_says_why(ditto, tmp_path):
    plain = trained(tmp_path / "run", "fedavg", scenario=fl.scenario("digits", partition="iid", clients=3))
    for message, asked in {
        "every client of this run trained, so none is new to it": {"newcomers": True},
        "fedavg has no personal model": {"protocols": ["personal/local"]},
        r"personal/lokal.*did you mean": {"protocols": ["personal/lokal"]},
        "twice in its list": {"protocols": ["global/global", "global/global"]},
        "metrics = 'aurocc'": {"metrics": ["aurocc"]},
        "by = 'sex': ": {"by": "sex"},
        "few-shot draws episodes": {"protocols": ["few-shot"], "by": "owner"},
    }.items():
        with pytest.raises(ConfigError, match=message):
            plain.evaluate(**asked)
    with pytest.raises(ConfigError, match=r"evaluation\.newcomers"):
        ditto.evaluate(newcomers={"share": 0.5})
    for wrong in ("foo", 3, ["all"]):
        with pytest.raises(ConfigError, match=r"evaluation\.newcomers"):
            ditto.evaluate(newcomers=wrong)
    with pytest.raises(ConfigError, match="unknown key 'protocol': did you mean 'protocols'"):
        ditto.evaluate(protocol=["global/global"])
    assert plain.evaluate(protocols=["few-shot"]).numbers["protocol"] == "few-shot"


def test_a_study_is_tested_again_cell_by_cell(tmp_path, capsys, monkeypatch):
    study = fl.Study(
        ["fedavg", "ditto", "fedrep"],
        scenario=fl.scenario("digits", **DIGITS),
        seeds=2,
        out=tmp_path / "s",
        rounds=1,
        local_epochs=1,
        evaluation={"protocols": PROTOCOLS},
    )
    study.run(progress=False)
    folder = str(tmp_path / "s")
    words = ["--protocol", "global/local", "--protocol", "personal/local", "--metric", "auroc", "--newcomers", "true"]
    code, out, err = call(capsys, "evaluate", folder, *words)
    assert code == 0, err
    assert err.count("fedrep has no global model, so") == 1  # of two seeds
    digest = out.split("evaluation ")[-1].split()[0]
    assert f"fedloom table {folder} --evaluation {digest}" in out
    assert "Accuracy after the last round on the test data of clients that never trained" in out
    assert len([*(tmp_path / "s").glob(f"*/evaluations/{digest}.json")]) == 6
    monkeypatch.setattr("fedloom.runs.retest._tests", lambda *_: pytest.fail("tested again"))
    again = study.evaluate(protocols=["global/local", "personal/local"], metrics=["auroc"], newcomers=True)
    assert {row["protocol"] for row in again.rows()} == {"global/local", "personal/local"}
    assert all("auroc" in row["metrics"] for row in again.rows())
    code, table, err = call(capsys, "table", folder, "--evaluation", digest[:6])
    assert code == 0, err
    assert "global/local" in table
    assert "global/global" not in table
    assert f"tested after training (evaluation {digest})" in err
    page = tmp_path / "page.html"
    assert call(capsys, "report", folder, "--evaluation", digest, "--out", str(page))[0] == 0
    assert digest in page.read_text()
    code, _, err = call(capsys, "table", folder, "--evaluation", "zzz")
    assert code == 2
    assert f"0 of these begin so: {digest}" in err
    shutil.rmtree(next((tmp_path / "s").glob("fedavg*/evaluations")))
    assert "left out" in call(capsys, "table", folder, "--evaluation", digest)[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--newcomers", "{shots: ["], "the value is not YAML"),
        (["--newcomers", "foo"], "evaluation.newcomers"),
        (["--newcomers", "{shots: [0]}"], "evaluation.newcomers.shots"),
        (["--client", "1"], "--client and exported files go with DATA alone"),
        (["--at", "frist"], "need last, best_val or the number of a round"),
        (["--at", "7"], "no checkpoint of round 7"),
    ],
)
def test_wrong_words_are_one_line(ditto, capsys, words, message):
    code, _, err = call(capsys, "evaluate", str(ditto.folder), *words)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_cells_without_such_a_model_are_left_out_with_a_line(tmp_path, capsys, caplog):
    for method in ("fedavg", "ditto"):
        trained(tmp_path / "runs" / method, method)
    code, out, _ = call(capsys, "evaluate", str(tmp_path / "runs"), "--protocol", "personal/local", "--json")
    assert (code, len(json.loads(out)["numbers"])) == (0, 1)
    assert "fedavg is left out: evaluation.protocol = 'personal/local': fedavg has no personal model" in caplog.text
    caplog.clear()
    code, _, err = call(capsys, "evaluate", str(tmp_path / "runs"), "--newcomers", "zero-shot")
    assert (code, len(err.splitlines()), caplog.text) == (2, 1, "")


def test_the_commands_of_the_page_run_as_they_are_typed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained(Path("runs/mine"))
    page = Path(__file__).parents[2] / "docs" / "how-to" / "metrics.md"
    lines = [
        typed.text.partition(" #")[0] for typed in commands_of(page) if typed.section == "Test finished runs again"
    ]
    lines = [line for line in lines if line.startswith("fedloom ") and "runs/mine" in line]
    assert len(lines) == 4
    name = ""
    for line in lines:
        code, out, err = call(capsys, *shlex.split(line.replace("NAME", name))[1:])
        assert code == 0, f"{line}: {err}"
        name = out.rpartition(" --evaluation ")[2].strip() or name
