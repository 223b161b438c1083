"""Accuracy by one option: from a figure's CSV to a section of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.papers.recipe import find_recipe
from reproduction_page.figure_rows import read_rows
from reproduction_page.pages import pages
from reproduction_page.sweep_section import sweep_section

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


def text_of(folder: Path) -> str:
    return "".join(pages(folder).values())


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "feddw-fig6-small.csv"
    path.write_text(FIG6)
    return path


def cells(page: str, setting: str) -> list[list[str]]:
    lines = [line for line in page.splitlines() if line.startswith(f"| {setting}")]
    return [[cell.strip() for cell in line.strip("|").split("|")][2:] for line in lines]


def test_each_value_of_the_axis_is_a_mean_beside_its_gain_over_the_first(kept: Path) -> None:
    page = sweep_section(find_recipe("feddw/fig6"), read_rows(kept, "sweep"))
    assert "Setting: 5 rounds of one local epoch, three seeds." in page
    assert cells(page, "CIFAR-10, practical") == [
        ["0.01", "3", "62.00 ± 2.00", "–", "–", "–"],
        ["1", "3", "64.00 ± 3.00", "+2.00", "-0.48 to +4.48", "no difference seen"],
        ["10", "3", "64.00 ± 1.95", "+2.00", "+1.75 to +2.25", "ahead"],
    ]


def test_one_seed_and_other_seeds_are_shown_as_such(kept: Path) -> None:
    page = sweep_section(find_recipe("feddw/fig6"), read_rows(kept, "sweep"))
    assert cells(page, "CIFAR-10, pathological") == [
        ["0.01", "1", "50.00", "–", "–", "–"],
        ["1", "1", "49.50", "-0.50", "–", "too few seeds"],
        ["100", "1", "48.00", "–", "–", "–"],
    ]


def test_the_page_has_it_and_a_reduction_still_counts_as_not_run(kept: Path) -> None:
    page = text_of(kept.parent)
    assert "## Fig. 6: accuracy by mu" in page
    assert "The images of CIFAR were JPEG files" in page
    assert "| `feddw/fig6` |" in page
    kept.write_text(FIG6.replace('"5 rounds of one local epoch, three seeds"', ""))
    assert "| `feddw/fig6` |" not in text_of(kept.parent)


def test_rows_of_another_kind_are_refused(kept: Path) -> None:
    with pytest.raises(
        ValueError, match=r"feddw-fig6-small\.csv: columns .*need panel, row, seed, x, accuracy, target"
    ):
        read_rows(kept, "costs")
