"""Tuning: the same values for every method, a choice on validation data alone, and its mention in tables."""

import builtins
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.files import json_text, parse_json
from fedloom.core.text import ACCURACY
from fedloom.results.comparison import Comparison
from fedloom.results.result import Result
from fedloom.runs.storage.finished_runs import tuning_choices
from fedloom.runs.storage.log import Row
from fedloom.runs.studies.outcome import collect
from fedloom.runs.studies.plan import parse_study
from fedloom.runs.studies.run_study import run_study
from fedloom.runs.studies.search_space import read_space, tried_in
from fedloom.runs.studies.study_folder import StudyFolder
from fedloom.runs.studies.tuning import Choices, jobs_of, trials_of, validation_value
from toy_results import MakeResult

RATE = {"optimizer.lr": {"low": 0.001, "high": 0.1, "log": True}}


def test_lists_are_combined() -> None:
    space = read_space({"a": [1, 2], "b": [None, "x"]})
    assert tried_in(space, None) == [{"a": a, "b": b} for a in (1, 2) for b in (None, "x")]


def test_keys_may_stand_in_sections_as_in_a_config() -> None:
    nested = {"optimizer": {"lr": RATE["optimizer.lr"], "momentum": [0, 0.9]}, "a": {"b": {"low": [1, 2]}}, "c": [3]}
    dotted = {**RATE, "optimizer.momentum": [0, 0.9], "a.b.low": [1, 2], "c": [3]}
    assert read_space(nested) == read_space(dotted)


def test_points_spread_over_a_logarithmic_range() -> None:
    rates = [point["optimizer.lr"] for point in tried_in(read_space(RATE), 32)]
    assert len(set(rates)) == 32
    assert all(0.001 <= rate <= 0.1 for rate in rates)
    assert 12 <= sum(rate < 0.01 for rate in rates) <= 20  # half of them below the middle of the exponents
    assert all(rate == float(f"{rate:.4g}") for rate in rates)


def test_few_points_are_spread_too() -> None:
    points = tried_in(read_space({"batch_size": [32, 64], **RATE}), 4)
    assert sorted(point["batch_size"] for point in points) == [32, 32, 64, 64]
    assert sum(point["optimizer.lr"] < 0.01 for point in points) == 2


def test_ranges_go_with_lists_and_whole_numbers() -> None:
    space = read_space({"local_epochs": {"low": 1, "high": 3}, "batch_size": [16, 32], **RATE})
    points = tried_in(space, 24)
    assert {point["local_epochs"] for point in points} == {1, 2, 3}
    assert {point["batch_size"] for point in points} == {16, 32}
    assert points == tried_in(space, 24)  # the same on every machine
    assert points[:5] == tried_in(space, 5)  # more tries go on from fewer


def test_every_method_tries_the_same_points() -> None:
    study = parse_study(
        {
            "scenario": {"source": "digits", "partition": "iid", "clients": 2, "val": 0.1},
            "methods": ["fedavg", "fedsc"],
            "tune": RATE,
            "tries": 6,
            "seeds": 1,
        }
    )
    fedavg, fedsc = ([trial.tried for trial in trials_of(study, cell)] for cell in study.cells)
    assert len(fedavg) == 6
    assert fedavg == fedsc
    again = parse_study(study.values)
    assert (again.hash, again.tried) == (study.hash, study.tried)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"tune": RATE}, "tune.optimizer.lr is a range: say with tries"),
        ({"tune": {"optimizer.lr": [0.1]}, "tries": 4}, "tries = 4: there is no range in tune"),
        ({"tune": RATE, "tries": 0}, "tries = 0"),
        ({"tune": {"optimizer.lr": 0.1}}, "tune.optimizer.lr = 0.1: need a list of values, or a range"),
        ({"tune": {"optimizer.lr": {"low": 0.1, "high": 0.1}}, "tries": 4}, "low = 0.1, high = 0.1: need two numbers"),
        ({"tune": {"optimizer.lr": {"low": 0, "high": 1, "log": True}}, "tries": 4}, "begins above 0"),
        ({"tune": {"optimizer.lr": {"low": 0.1}}, "tries": 4}, "tune.optimizer.lr.high is missing"),
        ({"tune": {"optimizer.lr": {"low": 0.1, "high": 1, "logs": True}}, "tries": 4}, "logs"),
        ({"tune": {"optimizer.lr": {"low": 0.1, "high": 1, 3: True}}, "tries": 4}, "tune.optimizer.lr.3 = "),
        ({"tune": {"optimizer": {"lr": 0.1}}}, "tune.optimizer.lr = 0.1: need a list of values, or a range"),
        ({"tune": {"optimizer": {}}}, "tune.optimizer = {}: need a list of values, or a range"),
        (
            {"tune": {"optimizer.lr": [0.1], "optimizer": {"lr": [0.2]}}},
            "tune.optimizer.lr stands twice, with dots and in a section; name it once",
        ),
    ],
)
def test_what_cannot_be_tried_is_one_line(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_study({"methods": ["fedavg"], "scenario": {"source": "digits"}} | keys)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_ranges_without_optuna_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def missing(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "optuna":
            raise ImportError(name)
        return imported(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"pip install 'fedloom\[tune\]'"):
        tried_in(read_space(RATE), 2)


TINY: dict[str, Any] = {
    "scenario": {"source": "digits", "partition": "iid", "clients": 2, "val": 0.2},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 1,
    "local_epochs": 1,
    "methods": ["fedavg", "fedprox"],
    "seeds": 2,
    "engine": "serial",
    "tune": {"optimizer.lr": [1.0e-5, 0.1]},
    "trials": {"seed": 100},
}


def test_every_method_has_the_same_trials_with_the_seed_of_the_trials() -> None:
    study = parse_study(TINY)
    jobs = jobs_of(study, study.cells)
    assert len(jobs) == 4 + 4
    for cell in study.cells:
        trials = trials_of(study, cell)
        assert [trial.tried for trial in trials] == [{"optimizer.lr": 1.0e-5}, {"optimizer.lr": 0.1}]
        assert {trial.config.seed for trial in trials} == {100}
        assert {trial.config.optimizer.momentum for trial in trials} == {0.9}
    methods = [job.config.method for job in jobs]
    assert methods == sorted(methods, key=methods.index)  # a method's cells follow its trials: rows are whole early


def test_cells_run_with_what_validation_chose_and_the_table_says_so(tmp_path: Path) -> None:
    study, out = parse_study(TINY), tmp_path / "s"
    ended = run_study(study, StudyFolder(out), study.cells)
    assert (len(ended.done), ended.failed, ended.remaining) == (4, {}, [])
    found = collect([out])
    assert len(found.results) == 4  # no trial among them
    assert {result.config["optimizer"]["lr"] for result in found.results} == {0.1}
    (note,) = Comparison(found.results).tuned()
    assert "optimizer.lr tuned per method on validation data (2 trials each" in note
    assert "fedavg optimizer.lr=0.1" in note
    records = [parse_json(path.read_text()) for path in (out / "trials").glob("choice-*.json")]
    for record in records:
        scores = [validation_value(Result.read(out / trial["folder"]), ACCURACY) for trial in record["trials"]]  # type: ignore[arg-type]
        assert [trial["validation_accuracy"] for trial in record["trials"]] == scores
        assert scores[1] > scores[0]
    (out / "trials" / "choice-fedavg.json").write_text("{")
    with pytest.raises(RunFolderError, match="chooses again"):
        Comparison(found.results).tuned()


def test_a_trial_that_failed_stops_its_method_alone(tmp_path: Path) -> None:
    study, study_folder = parse_study(TINY), StudyFolder(tmp_path)
    fedavg, fedprox = study.cells[0], study.cells[2]
    study_folder.claim(study)
    trial = trials_of(study, fedavg)[0]
    study_folder.write_error(trial.folder, "DataError: gone\n...")
    assert Choices(study, study_folder).of(fedavg) == (None, f"not tuned: {trial.name}: DataError: gone")
    assert Choices(study, study_folder).of(fedprox) == (None, None)  # it waits


def test_a_failed_trial_that_is_tried_again_stops_nothing(tmp_path: Path) -> None:
    study, study_folder = parse_study(TINY | {"methods": ["fedavg"], "seeds": 1}), StudyFolder(tmp_path / "s")
    study_folder.claim(study)
    (cell,) = study.cells
    trial = trials_of(study, cell)[0]
    study_folder.write_error(trial.folder, "DataError: gone\nyesterday")
    failed = (None, f"not tuned: {trial.name}: DataError: gone")
    assert Choices(study, study_folder).of(cell) == failed
    assert Choices(study, study_folder, earlier=study_folder.errors()).of(cell) == (None, None)
    assert Choices(study, study_folder, earlier={trial.folder: "DataError: gone\nlast week"}).of(cell) == failed
    held = threading.Event()

    def work_elsewhere() -> None:
        with StudyFolder(study_folder.path).cell_lock(trial.folder):
            held.set()
            time.sleep(1)

    other = threading.Thread(target=work_elsewhere)
    other.start()
    held.wait()
    assert Choices(study, study_folder).of(cell) == (None, None)
    ended = run_study(study, study_folder, study.cells)  # waits for the trial, and takes it over
    other.join()
    assert (list(ended.done), ended.failed, ended.remaining) == (["fedavg/seed0"], {}, [])


def test_a_choice_is_recorded_by_those_who_run_cells_alone(tmp_path: Path) -> None:
    study, study_folder = parse_study(TINY | {"methods": ["fedavg"], "seeds": 1}), StudyFolder(tmp_path / "s")
    run_study(study, study_folder, study.cells)
    (record,) = study_folder.path.glob("trials/choice-*.json")
    recorded = record.read_text()
    record.unlink()
    before = sorted(study_folder.path.rglob("*"))
    (cell,) = study.cells
    tuned, _ = Choices(study, study_folder).of(cell)
    assert tuned is not None
    assert study_folder.state(tuned.folder, tuned.config) == "done"
    assert len(collect([study_folder.path]).results) == 1
    assert sorted(study_folder.path.rglob("*")) == before
    run_study(study, study_folder, study.cells)
    assert record.read_text() == recorded


def test_a_damaged_trial_stops_its_method_alone(tmp_path: Path) -> None:
    study, study_folder = parse_study(TINY | {"seeds": 1}), StudyFolder(tmp_path / "s")
    run_study(study, study_folder, study.cells)
    for record in study_folder.path.glob("trials/choice-*.json"):
        record.unlink()
    trial = trials_of(study, study.cells[0])[0]
    (study_folder.cell(trial.folder) / "summary.json").write_text("{")
    ended = run_study(study, study_folder, study.cells)
    assert list(ended.done) == ["fedprox/seed0"]
    assert ended.failed["fedavg/seed0"].startswith(
        f"not tuned: {study_folder.cell(trial.folder)}/summary.json: damaged"
    )


def test_a_trial_of_another_config_chooses_nothing(tmp_path: Path) -> None:
    study, study_folder = parse_study(TINY | {"methods": ["fedavg"], "seeds": 1}), StudyFolder(tmp_path / "s")
    run_study(study, study_folder, study.cells)
    (record,) = study_folder.path.glob("trials/choice-*.json")
    record.unlink()
    one, other = (study_folder.cell(trial.folder) for trial in trials_of(study, study.cells[0]))
    shutil.rmtree(one)
    shutil.copytree(other, one)
    ended = run_study(study, study_folder, study.cells)
    why = f"not tuned: {one} holds a run of another config (optimizer.lr: 0.1 there, 1e-05 here); delete this folder"
    assert ended.failed["fedavg/seed0"].startswith(why)
    assert not record.exists()


def test_trials_of_another_version_do_not_choose_unawares(tmp_path: Path) -> None:
    study, study_folder = parse_study(TINY | {"methods": ["fedavg"], "seeds": 1}), StudyFolder(tmp_path / "s")
    run_study(study, study_folder, study.cells)
    env = study_folder.cell(trials_of(study, study.cells[0])[0].folder) / "env.json"
    told = parse_json(env.read_text())
    del told["checksums"]  # as in folders of earlier versions
    told["versions"]["fedloom"] = "0.0.1"
    env.write_text(json_text(told))
    with pytest.raises(ConfigError, match=r"1 run of 0\.0\.1 and 2 runs of .*; .*/s/trials/fedavg"):
        run_study(study, study_folder, study.cells)
    assert len(run_study(study, study_folder, study.cells, allow_mixed=True).done) == 1


@pytest.mark.parametrize(
    ("select", "expected"), [("last", 0.5), ("best_val", 0.9), ("best_test", 0.9), ("mean_last_k", 0.7)]
)
def test_the_score_is_validation_accuracy_by_the_study_s_rule(
    make_result: MakeResult, select: str, expected: float
) -> None:
    result = make_result(
        accuracies=[0.99, 0.99, 0.99], select=select, config={"evaluation": {"select": select, "last_k": 2}}
    )
    for round_, value in enumerate((0.2, 0.9, 0.5), start=1):
        row = Row(round=round_, client=None, split="val", protocol="global/global", name="accuracy", value=value)
        result.rows.append(row)
    assert validation_value(result, ACCURACY) == pytest.approx(expected)


def test_a_trial_that_diverged_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose model predicts the first class for every sample, and may be right more often than another."""
    study, study_folder = parse_study(TINY | {"methods": ["fedavg"], "seeds": 1}), StudyFolder(tmp_path / "s")
    ended = run_study(study, study_folder, study.cells)
    (choice,) = (tmp_path / "s" / "trials").glob("choice-*.json")
    record = parse_json(choice.read_text())
    assert record["chosen"] == {"optimizer.lr": 0.1}
    choice.unlink()
    diverged = parse_json((tmp_path / "s" / record["trials"][1]["folder"] / "summary.json").read_text())
    monkeypatch.setattr(
        "fedloom.runs.studies.tuning.has_diverged", lambda numbers: numbers["fingerprint"] == diverged["fingerprint"]
    )
    chosen, _ = Choices(study, study_folder, earlier={}).of(study.cells[0])
    assert chosen is not None
    assert chosen.config.optimizer.lr == 1.0e-5
    (row,) = tuning_choices(list(ended.results.values()))
    assert row.trials[1] == "optimizer.lr=0.1: diverged"


def test_a_tuned_study_grows_behind_its_first_seed() -> None:
    own = {key: value for key, value in TINY.items() if key != "trials"} | {"seeds": [5]}
    begun, longer, moved = parse_study(own), parse_study(own | {"seeds": [5, 0]}), parse_study(own | {"seeds": [0, 5]})
    assert longer.holds(begun)
    assert not moved.holds(begun)  # its trials would have another seed, and all of them would run again
    seed = {"trials": {"seed": 100}}
    assert parse_study(own | {"seeds": [0, 5]} | seed).holds(parse_study(own | seed))


@pytest.mark.parametrize("trials", [{"optimizer": {"lr": 0.1}}, {"optimizer.lr": 0.1}])
def test_what_is_tuned_cannot_be_the_same_for_all_trials(trials: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"trials: optimizer\.lr is tuned"):
        parse_study(TINY | {"trials": trials})


def test_no_validation_data_no_tuning() -> None:
    scenario = TINY["scenario"] | {"val": 0}
    study = parse_study(TINY | {"scenario": scenario})
    with pytest.raises(ConfigError, match=r"tune: fedavg has no validation data to choose on; set scenario\.val"):
        jobs_of(study, study.cells)
    plain = {key: value for key, value in scenario.items() if key != "val"}
    own = parse_study(TINY | {"scenario": plain | {"split": {"train": 0.8, "test": 0.2}}})
    with pytest.raises(ConfigError, match=r"set scenario\.split\.val above 0"):
        jobs_of(own, own.cells)
    allowed = parse_study(TINY | {"scenario": scenario, "trials": {"scenario": {"val": 0.2}}})
    assert jobs_of(allowed, allowed.cells)[0].config.scenario.val == 0.2
    assert allowed.cells[0].config.scenario.val == 0
