"""A study that leaves out each domain in turn: a setting for each, their accuracies and the mean."""

import json
from statistics import fmean

import numpy as np
import pytest

import command_line
from fedloom.core.errors import ConfigError
from fedloom.data.sources.cached import CachedSource
from fedloom.results.comparison import Comparison
from fedloom.results.report import write_report
from fedloom.results.table import grouped
from fedloom.results.unseen_tables import left_out_rows
from fedloom.runs.studies.plan import parse_study
from fedloom.runs.studies.run_study import run_study
from fedloom.runs.studies.study_folder import StudyFolder, read


def test_domains_that_the_keys_name_are_planned_without_data(monkeypatch):
    def read(self):
        raise AssertionError("data are read")

    monkeypatch.setattr(CachedSource, "load", read)
    plain = {"methods": ["fedavg"], "leave_out": "domain", "rounds": 1}
    for scenario, names in (
        ({"source": "office-caltech10"}, ["amazon", "caltech", "dslr", "webcam"]),
        ({"source": "domains", "parts": ["mnist", {"source": "usps", "name": "post"}]}, ["mnist", "post"]),
    ):
        study = parse_study({**plain, "scenario": scenario | {"partition": "domains"}})
        assert list(dict.fromkeys(cell.config.scenario.held_out.domain for cell in study.cells)) == names


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Three wards with 80 patients each, in a CSV file."""
    rng = np.random.default_rng(0)
    lines = ["a,b,c,ward,ill"]
    for ward in ("north", "south", "west"):
        for _ in range(80):
            a, b, c = rng.normal(size=3)
            lines.append(f"{a:.3f},{b:.3f},{c:.3f},{ward},{'yes' if a + b > 0 else 'no'}")
    path = tmp_path_factory.mktemp("wards") / "patients.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def plan(table, **keys):
    scenario = {"source": "csv", "path": str(table), "label": "ill", "owner": "ward", "partition": "natural"}
    plain = {"scenario": scenario, "model": "mlp", "rounds": 1, "local_epochs": 1, "engine": "serial", "seeds": 2}
    return parse_study({**plain, "methods": ["fedavg", "local"], "leave_out": "domain", **keys})


def test_each_domain_is_left_out_once_and_the_table_has_their_mean(table, tmp_path, capsys):
    study = plan(table, evaluation={"protocols": ["global/global", "personal/local"]})
    assert len(study.cells) == 3 * 2 * 2
    assert [cell.config.scenario.held_out.domain for cell in study.cells[::4]] == ["north", "south", "west"]
    out = tmp_path / "study"
    ended = run_study(study, StudyFolder(out), study.cells)
    assert not ended.failed
    assert read(out).values == study.values
    done = Comparison(list(ended.results.values()))
    fedavg, local = left_out_rows(grouped(done.results))
    assert (fedavg.label, list(fedavg.domains), fedavg.seeds) == ("fedavg", ["north", "south", "west"], 2)
    tests = {
        (result.numbers["seed"], result.config["scenario"]["held_out"]["domain"]): result.numbers["newcomers"]["tests"]
        for result in done.results
        if result.numbers["method"] == "fedavg"
    }
    by_seed = [fmean(tests[seed, domain]["zero-shot"]["accuracy"] for domain in fedavg.domains) for seed in (0, 1)]
    assert fedavg.mean == pytest.approx(fmean(by_seed))
    assert all(test["zero-shot"]["accuracy"] != 0 for test in tests.values())
    assert local.note == "its model is the initial one"
    text = done.domain_table()
    assert "without north %" in text
    assert "local (its model is the initial one)" in text
    assert done.domain_table("csv").splitlines()[0] == "label,north,south,west,mean,std,seeds"
    page = write_report(done.results, tmp_path / "report.html").read_text()
    assert "Domains left out" in page
    code, printed, _ = command_line.call(capsys, "table", str(out), "--domains")
    assert code == 0
    assert "without west %" in printed


def test_a_method_of_which_a_run_diverged_is_named(make_result):
    runs = []
    for seed, domain in [(0, "north"), (1, "north"), (0, "south"), (1, "south")]:
        tests = {"clients": [3], "tests": {"zero-shot": {"accuracy": 0.5, "clients": 1}}}
        scenario = {"source": "toy", "seed": None, "held_out": {"domain": domain}}
        runs.append(make_result("fedgh", seed, newcomers=tests, config={"scenario": scenario}))
    runs[3].numbers["degenerate"] = ["diverged: in round 2 the losses of 1 of 3 participants are not finite"]
    compared = Comparison(runs)
    assert "fedgh (diverged with seed 1)" in compared.domain_table()
    assert compared.domain_table("csv").splitlines() == [
        "label,north,south,mean,std,seeds,diverged",
        "fedgh,0.5,0.5,0.5,0.0,2,1",
    ]


def test_a_method_that_lacks_a_domain_has_no_mean(make_result):
    runs = []
    for method, domains in (("fedavg", ("north", "south")), ("fedprox", ("north",))):
        for domain in domains:
            tests = {"clients": [3], "tests": {"zero-shot": {"accuracy": 0.5, "clients": 1}}}
            scenario = {"source": "toy", "seed": None, "held_out": {"domain": domain}}
            runs.append(make_result(method, newcomers=tests, config={"scenario": scenario}))
    whole, partial = left_out_rows(grouped(runs))
    assert (whole.mean, partial.mean, partial.domains) == (0.5, None, {"north": 0.5})


def test_settings_and_runs_without_left_out_domains(table, make_result):
    study = plan(table, settings={"short": {"rounds": 1}, "long": {"rounds": 2}})
    settings = list(dict.fromkeys(cell.setting for cell in study.cells))
    assert settings[:2] == ["short, without north", "short, without south"]
    assert len(settings) == 6
    assert Comparison([make_result()]).domain_table() == ""


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"scenario": {"source": "digits"}}, "digits has no domains"),
        ({"leave_out": "client"}, "leave_out"),
        ({"scenario": {"source": ["digits", "csv"]}}, "need one source"),
        ({"scenario": {"source": "digits", "held_out": [1]}}, "holds out something else"),
    ],
)
def test_what_cannot_be_left_out_is_one_line(table, keys, says):
    with pytest.raises(ConfigError) as refused:
        plan(table, **keys)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_only_domain_is_one_line(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("a,ward,ill\n" + "\n".join(f"{k},north,{'yes' if k % 2 else 'no'}" for k in range(40)) + "\n")
    with pytest.raises(ConfigError, match="north is the only domain of csv"):
        plan(path)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_domain_of_which_one_set_has_nothing_is_one_line_before_any_cell(seed, tmp_path):
    """The only patient of west is in the training or in the test set."""
    path = tmp_path / "patients.csv"
    wards = ["north"] * 40 + ["south"] * 40 + ["west"]
    rows = [f"{k},{ward},{'yes' if k % 2 else 'no'}" for k, ward in enumerate(wards)]
    path.write_text("a,ward,ill\n" + "\n".join(rows) + "\n")
    with pytest.raises(ConfigError, match=r"csv has no (training|test) samples of west, so it cannot be left out"):
        plan(path, seed=seed)


def test_the_command_makes_the_study_again_from_its_folder(table, tmp_path):
    study = plan(table)
    StudyFolder(tmp_path / "kept").claim(study)
    again = read(tmp_path / "kept")
    assert [cell.name for cell in again.cells] == [cell.name for cell in study.cells]
    assert json.dumps(again.values, default=str) == json.dumps(study.values, default=str)
