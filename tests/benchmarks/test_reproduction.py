"""Sections of the reproduction pages, from values and figures in files."""

import gzip
from pathlib import Path

import pytest

from benchmarks.data import write_rows
from benchmarks.tables.reproduction import cost_section, read_figure, sections, sweep_section, with_other_images
from fedloom.papers.measurements import measure, measurements_csv
from fedloom.papers.recipe import find_recipe, recipes
from fedloom.results.result import Result
from toy_results import MakeResult, with_test_samples


@pytest.fixture
def make_result(make_result: MakeResult) -> MakeResult:
    return with_test_samples(make_result, 10_000)


def keep(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    return path


def text_of(folder: Path) -> str:
    return "".join(sections(folder).values())


def test_the_index_counts_what_each_paper_gave(tmp_path: Path, make_result: MakeResult) -> None:
    done = {("mnist-practical", "FedAvg"): [make_result("fedavg", seed, [0.9931]) for seed in range(3)]}
    recipe = find_recipe("feddw/table1")
    keep(tmp_path, "feddw-table1", measurements_csv(measure(recipe, done)))
    keep(tmp_path, "feddw-table2-mlp", measurements_csv(measure(recipe, done, "with model=mlp", False)))
    index = sections(tmp_path)["glance"]
    assert "| [FedDW](feddw.md) | 9 | 1 | 1 | 1 / 0 / 0 | – | – | – |" in index
    assert "| [FedSC](fedsc.md) | 10 | 0 | 0 | – | – | – | – |" in index


def test_what_was_not_run_has_its_hours(tmp_path: Path) -> None:
    names = [name for name in recipes() if name != "fedsc/table4"]
    write_rows(
        tmp_path / "planned.csv.gz", [{"name": name, "hours": 1234.56, "machine": "a fast one"} for name in names]
    )
    page = text_of(tmp_path)
    assert "were estimated on a fast one" in page
    assert "Table 3: label skew on CIFAR | 36 | 1,234.6 |" in page
    assert "Table 6: clients of the data sets | nothing is run | – |" in page
    assert "Table 4: parts taken out | 96 | – |" in page


def test_values_make_a_section(tmp_path: Path, make_result: MakeResult) -> None:
    done = {("mnist-practical", "FedAvg"): [make_result("fedavg", seed, [0.9931]) for seed in range(3)]}
    recipe = find_recipe("feddw/table1")
    keep(tmp_path, "feddw-table1", measurements_csv(measure(recipe, done)))
    other = measure(recipe, done, "with model=mlp", False)
    keep(tmp_path, "feddw-table1-mlp", measurements_csv(other))
    keep(tmp_path, "fedskc-table5-small", measurements_csv(other))
    page = text_of(tmp_path)
    assert "| `fedskc/table5` |" in page  # what was run is another setting
    assert "Setting: the paper's own." in page
    assert "Setting: with model=mlp." in page
    assert "another setting: only their order is compared" in page
    assert "practical and pathological | the paper's own | 3 | 1 / 0 / 0 | – | – | – |" in page
    assert "| with model=mlp | 3 | – | – | – | – |" in page
    assert "## Table I: accuracy on four data sets" in page
    assert "| 3       | 99.31 ± 0.00 |" in page
    assert "| `feddw/table1` |" not in page


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
    keep(tmp_path, "feddw-table1", measurements_csv(measure(find_recipe("feddw/table1"), done)))
    page = text_of(tmp_path)
    assert "| 1 of 2, 0 contradicted | 0 of 1, 0 contradicted |" in page
    assert "- own method: 1 of 2 printed gains seen, 0 contradicted, 1 undecided\n" in page


def test_cifar_is_not_the_papers_own_data(tmp_path: Path, make_result: MakeResult) -> None:
    recipe = find_recipe("feddw/table1")
    done = {
        (column, "FedAvg"): [make_result("fedavg", seed, [0.9]) for seed in range(3)]
        for column in ("mnist-practical", "cifar10-practical")
    }
    values = with_other_images(recipe, measure(recipe, done))
    keep(tmp_path, "feddw-table1", measurements_csv(values))
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
    keep(tmp_path, "feddw-table1", measurements_csv(measure(recipe, done)))
    page = text_of(tmp_path)
    (drop,) = [line for line in page.splitlines() if "Drop of FedDW from practical to pathological CIFAR-10 " in line]
    assert [cell.strip() for cell in drop.split("|")[2:5]] == ["8.51 points", "8.67", "undecided"]
    assert "FedSSA over the best baseline with different nets" in page
    assert "| 108 values" in page


FIG5 = """panel,row,seed,x,accuracy,target,bytes,flops,changed
CIFAR-10,FedProto,0,"N=10, C=100 %",90.5,90.25,4000000,3e12,with rounds=100
CIFAR-10,FedProto,1,"N=10, C=100 %",91.5,90.25,8000000,5e12,with rounds=100
CIFAR-10,FedSSA,0,"N=10, C=100 %",95.0,90.25,2000000,2e12,with rounds=100
CIFAR-10,LG-FedAvg,2,"N=10, C=100 %",90.5,90.25,9000000,9e12,with rounds=100
CIFAR-100,FD,0,"N=10, C=100 %",30.0,30.0,5000000,2e12,with rounds=100
"""


def cells(page: str, setting: str) -> list[list[str]]:
    lines = [line for line in page.splitlines() if line.startswith(f"| {setting}")]
    return [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in lines]


def test_each_row_is_a_mean_beside_how_many_times_the_papers_own(tmp_path: Path) -> None:
    page = cost_section(find_recipe("fedssa/fig5"), read_figure(keep(tmp_path, "fedssa-fig5", FIG5), "costs"))
    assert "Setting: with rounds=100." in page
    proto, own, other = cells(page, "CIFAR-10,")
    assert proto == ["FedProto", "2", "91.00", "90.25", "6.00", "2.00 x", "4.0", "1.50 x"]  # both ran seed 0 alone
    assert own == ["FedSSA", "1", "95.00", "90.25", "2.00", "1.00 x", "2.0", "1.00 x"]
    assert other == ["LG-FedAvg", "1", "90.50", "90.25", "9.00", "–", "9.0", "–"]  # no seed in common
    assert "multiples over the seeds that FedSSA has too" in page


def test_the_page_has_the_costs_and_says_that_the_images_were_jpeg_files(tmp_path: Path) -> None:
    path = keep(tmp_path, "fedssa-fig5", FIG5)
    page = text_of(tmp_path)
    assert "## Fig. 5: accuracy against communication and computation" in page
    assert "The images of CIFAR were JPEG files" in page
    assert "| `fedssa/fig5` |" in page  # one point of a search is not the paper's own setting
    path.unlink()
    assert "## Fig. 5: accuracy against" not in text_of(tmp_path)


# Over mu 0.01, mu 1 gains 1, 2, 3: 2 ± 4.3027 / sqrt(3); mu 10 gains 2.0, 2.1, 1.9: 2 ± 0.43027 / sqrt(3).
FIG6 = """panel,row,seed,x,accuracy,changed
"CIFAR-10, practical",FedDW,0,0.01,60.0,"5 rounds of one local epoch, three seeds"
"CIFAR-10, practical",FedDW,1,0.01,62.0,"5 rounds of one local epoch, three seeds"
"CIFAR-10, practical",FedDW,2,0.01,64.0,"5 rounds of one local epoch, three seeds"
"CIFAR-10, practical",FedDW,0,1,61.0,"5 rounds of one local epoch, three seeds"
"CIFAR-10, practical",FedDW,1,1,64.0,"5 rounds of one local epoch, three seeds"
"CIFAR-10, practical",FedDW,2,1,67.0,"5 rounds of one local epoch, three seeds"
"CIFAR-10, practical",FedDW,2,10,65.9,"5 rounds of one local epoch, three seeds"
"CIFAR-10, practical",FedDW,1,10,64.1,"5 rounds of one local epoch, three seeds"
"CIFAR-10, practical",FedDW,0,10,62.0,"5 rounds of one local epoch, three seeds"
"CIFAR-10, pathological",FedDW,0,0.01,50.0,"5 rounds of one local epoch, three seeds"
"CIFAR-10, pathological",FedDW,0,1,49.5,"5 rounds of one local epoch, three seeds"
"CIFAR-10, pathological",FedDW,1,100,48.0,"5 rounds of one local epoch, three seeds"
"""


def test_each_value_of_the_axis_is_a_mean_beside_its_gain_over_the_first(tmp_path: Path) -> None:
    page = sweep_section(find_recipe("feddw/fig6"), read_figure(keep(tmp_path, "feddw-fig6-small", FIG6), "sweep"))
    assert "Setting: 5 rounds of one local epoch, three seeds." in page
    assert [row[1:] for row in cells(page, "CIFAR-10, practical")] == [
        ["0.01", "3", "62.00 ± 2.00", "–", "–", "–"],
        ["1", "3", "64.00 ± 3.00", "+2.00", "-0.48 to +4.48", "undecided (needs about 5 seeds)"],
        ["10", "3", "64.00 ± 1.95", "+2.00", "+1.75 to +2.25", "ahead"],
    ]


def test_the_page_has_the_sweep_and_a_reduction_still_counts_as_not_run(tmp_path: Path) -> None:
    keep(tmp_path, "feddw-fig6-small", FIG6)
    page = text_of(tmp_path)
    assert "## Fig. 6: accuracy by mu" in page
    assert "| `feddw/fig6` |" in page
    keep(tmp_path, "feddw-fig6-small", FIG6.replace('"5 rounds of one local epoch, three seeds"', ""))
    assert "| `feddw/fig6` |" not in text_of(tmp_path)


def test_rows_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = keep(tmp_path, "feddw-fig6-small", FIG6)
    with pytest.raises(ValueError, match=r"fig6-small\.csv\.gz: columns .*need panel, row, seed, x, accuracy, target"):
        read_figure(path, "costs")
