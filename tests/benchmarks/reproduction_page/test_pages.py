"""The reproduction pages are what their generator makes, and say what was not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom.papers.measurements import measure, measurements_csv
from fedloom.papers.recipe import find_recipe, recipes
from fedloom.results.result import Result
from reproduction_page.pages import pages
from reproduction_page.setting import with_other_images
from toy_results import MakeResult, with_test_samples

ROOT = Path(__file__).parents[3]


@pytest.fixture
def make_result(make_result: MakeResult) -> MakeResult:
    return with_test_samples(make_result, 10_000)


def text_of(folder: Path) -> str:
    return "".join(pages(folder).values())


def test_the_pages_are_those_of_the_committed_values() -> None:
    generated = pages(ROOT / "benchmarks" / "results" / "reproduction")
    committed = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reproduction").iterdir()}
    assert committed == generated


def test_the_index_counts_what_each_paper_gave(tmp_path: Path, make_result: MakeResult) -> None:
    done = {("mnist-practical", "FedAvg"): [make_result("fedavg", seed, [0.9931]) for seed in range(3)]}
    recipe = find_recipe("feddw/table1")
    (tmp_path / "feddw-table1.csv").write_text(measurements_csv(measure(recipe, done, {})))
    (tmp_path / "feddw-table2-mlp.csv").write_text(measurements_csv(measure(recipe, done, {}, "with model=mlp", False)))
    index = pages(tmp_path)["index.md"]
    assert "| [FedDW](feddw.md) | 9 | 1 | 1 | 1 / 0 / 0 | – | – | – |" in index
    assert "| [FedSC](fedsc.md) | 10 | 0 | 0 | – | – | – | – |" in index


def test_without_values_every_table_is_named_as_not_run(tmp_path: Path) -> None:
    page = text_of(tmp_path)
    assert page.count("No table has been run and committed yet.") == 5
    for name in recipes():
        assert f"| `{name}` |" in page


def test_what_was_not_run_has_its_hours(tmp_path: Path) -> None:
    tables = [{"name": name, "hours": 1234.56} for name in recipes() if name != "fedsc/table4"]
    (tmp_path / "planned.json").write_text(json.dumps({"machine": "a fast one", "tables": tables}))
    page = text_of(tmp_path)
    assert "`fedloom reproduce --list` on a fast one" in page
    assert "Table 3: label skew on CIFAR | 36 | 1,234.6 |" in page
    assert "Table 6: clients of the data sets | nothing is run | – |" in page
    assert "Table 4: parts taken out | 96 | – |" in page


def test_values_make_a_section(tmp_path: Path, make_result: MakeResult) -> None:
    done = {("mnist-practical", "FedAvg"): [make_result("fedavg", seed, [0.9931]) for seed in range(3)]}
    recipe = find_recipe("feddw/table1")
    (tmp_path / "feddw-table1.csv").write_text(measurements_csv(measure(recipe, done, {})))
    other = measure(recipe, done, {}, "with model=mlp", False)
    (tmp_path / "feddw-table1-mlp.csv").write_text(measurements_csv(other))
    (tmp_path / "fedskc-table5-small.csv").write_text(measurements_csv(other))
    page = text_of(tmp_path)
    assert "| `fedskc/table5` |" in page  # what was run is another setting
    assert "Setting: the paper's own." in page
    assert "Setting: with model=mlp." in page
    assert "another setting: only order and gains are compared" in page
    assert "practical and pathological | the paper's own | 3 | 1 / 0 / 0 | – | – | – |" in page
    assert "| with model=mlp | 3 | – | – | – | – |" in page
    assert "## Table I: accuracy on four data sets" in page
    assert "| 3       | 99.31 ± 0.00 |" in page
    assert "| `feddw/table1` |" not in page


def test_a_long_setting_is_whole_in_its_section_alone(tmp_path: Path, make_result: MakeResult) -> None:
    done = {("mnist-practical", "FedAvg"): [make_result("fedavg", 0, [0.9931])]}
    told = "with scenario={source: domains, parts: [mnist, usps, mnist-m]} fedsc={cpdr: 'off'}"
    (tmp_path / "feddw-table1-long.csv").write_text(
        measurements_csv(measure(find_recipe("feddw/table1"), done, {}, told, False))
    )
    page = text_of(tmp_path)
    assert "| other data, with scenario={...} fedsc={cpdr: 'off'} | 1 |" in page
    assert f"Setting: {told}." in page


def test_rows_within_the_promised_factor_are_counted(tmp_path: Path, make_result: MakeResult) -> None:
    names = ("FedAvg", "FedProx", "FedDW", "Local")
    done = {("mnist-practical", name): [make_result(name.lower(), 0, [0.9])] for name in names}
    seconds = {"FedAvg": 5.0, "FedProx": 2.0, "FedDW": 1.0}  # each took 2.5; Local was not foreseen
    foreseen = {f"mnist-practical/{name}": value for name, value in seconds.items()}
    (tmp_path / "feddw-table1.csv").write_text(measurements_csv(measure(find_recipe("feddw/table1"), done, foreseen)))
    page = text_of(tmp_path)
    assert "1 of 3 rows are within a factor of 1.5." in page
    assert "goes from 0.50 to 2.50." in page


def test_gains_that_are_claimed_are_counted(tmp_path: Path, make_result: MakeResult) -> None:
    def runs(method: str, *accuracies: float) -> list[Result]:
        return [make_result(method, seed, [accuracy]) for seed, accuracy in enumerate(accuracies)]

    done = {
        ("mnist-practical", "FedAvg"): runs("fedavg", 0.50, 0.60, 0.70),
        ("mnist-practical", "FedDW"): runs("feddw", 0.52, 0.62, 0.72),  # printed above FedAvg and FedProx
        ("mnist-practical", "FedProx"): runs("fedprox", 0.49, 0.63, 0.68),  # printed above FedAvg
        ("mnist-practical", "FedUV"): runs("feduv", 0.9),  # one seed
        ("mnist-practical", "FedDW [sound]"): runs("feddw", 0.9, 0.9, 0.9),  # not what is printed
    }
    (tmp_path / "feddw-table1.csv").write_text(measurements_csv(measure(find_recipe("feddw/table1"), done, {})))
    page = text_of(tmp_path)
    assert "| 1 of 2, 0 contradicted | 0 of 1, 0 contradicted |" in page
    assert "- own method: 1 of 2 printed gains seen, 0 contradicted, 1 no difference seen\n" in page


def test_cifar_is_not_the_papers_own_data(tmp_path: Path, make_result: MakeResult) -> None:
    recipe = find_recipe("feddw/table1")
    done = {
        (column, "FedAvg"): [make_result("fedavg", seed, [0.9]) for seed in range(3)]
        for column in ("mnist-practical", "cifar10-practical")
    }
    values = with_other_images(recipe, measure(recipe, done, {}))
    (tmp_path / "feddw-table1.csv").write_text(measurements_csv(values))
    page = text_of(tmp_path)
    assert (
        "Setting: the paper's own (mnist-practical); CIFAR from JPEG files of quality 95 (cifar10-practical)." in page
    )
    assert "not comparable | CIFAR from JPEG files of quality 95, not the paper's own pixels; +26.56" in page


def test_claims_of_the_text_have_their_verdict(tmp_path: Path, make_result: MakeResult) -> None:
    recipe = find_recipe("feddw/table1")
    accuracies = {"cifar10-practical": (0.66, 0.67, 0.68), "cifar10-pathological": (0.57, 0.58, 0.60)}
    done = {
        (column, "FedDW"): [make_result("feddw", seed, [value]) for seed, value in enumerate(values)]
        for column, values in accuracies.items()
    }
    (tmp_path / "feddw-table1.csv").write_text(measurements_csv(measure(recipe, done, {})))
    page = text_of(tmp_path)
    (drop,) = [line for line in page.splitlines() if "Drop of FedDW from practical to pathological CIFAR-10 " in line]
    assert [cell.strip() for cell in drop.split("|")[2:5]] == ["8.51 points", "8.67", "undecided"]
    assert "FedSSA over the best baseline with different nets" in page
    assert "| 108 values" in page
