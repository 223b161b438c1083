"""What was sent and computed until a target: from a figure's CSV to a section of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.papers.recipe import find_recipe
from reproduction_page.cost_section import cost_section
from reproduction_page.figure_rows import read_rows
from reproduction_page.pages import pages

FIG5 = """panel,row,seed,x,accuracy,target,bytes,flops,changed
CIFAR-10,FedProto,0,"N=10, C=100 %",90.5,90.25,4000000,3e12,with rounds=100
CIFAR-10,FedProto,1,"N=10, C=100 %",91.5,90.25,8000000,5e12,with rounds=100
CIFAR-10,FedSSA,0,"N=10, C=100 %",95.0,90.25,2000000,2e12,with rounds=100
CIFAR-10,LG-FedAvg,2,"N=10, C=100 %",90.5,90.25,9000000,9e12,with rounds=100
CIFAR-100,FD,0,"N=10, C=100 %",30.0,30.0,5000000,2e12,with rounds=100
"""


def text_of(folder: Path) -> str:
    return "".join(pages(folder).values())


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "fedssa-fig5.csv"
    path.write_text(FIG5)
    return path


def cells(page: str, setting: str) -> list[list[str]]:
    lines = [line for line in page.splitlines() if line.startswith(f"| {setting}")]
    return [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in lines]


def test_each_row_is_a_mean_beside_how_many_times_the_papers_own(kept: Path) -> None:
    page = cost_section(find_recipe("fedssa/fig5"), read_rows(kept, "costs"))
    assert "Setting: with rounds=100." in page
    proto, own, other = cells(page, "CIFAR-10,")
    assert proto == ["FedProto", "2", "91.00", "90.25", "6.00", "2.00 x", "4.0", "1.50 x"]  # both ran seed 0 alone
    assert own == ["FedSSA", "1", "95.00", "90.25", "2.00", "1.00 x", "2.0", "1.00 x"]
    assert other == ["LG-FedAvg", "1", "90.50", "90.25", "9.00", "–", "9.0", "–"]  # no seed in common
    assert "multiples over the seeds that FedSSA has too" in page


def test_without_the_papers_own_method_nothing_is_compared(kept: Path) -> None:
    page = cost_section(find_recipe("fedssa/fig5"), read_rows(kept, "costs"))
    assert cells(page, "CIFAR-100,") == [["FD", "1", "30.00", "30.00", "5.00", "–", "2.0", "–"]]


def test_another_form_is_refused(kept: Path) -> None:
    kept.write_text("panel,row\nCIFAR-10,FedSSA\n")
    with pytest.raises(ValueError, match=r"fedssa-fig5\.csv: columns .*need panel, row, seed"):
        read_rows(kept, "costs")


def test_the_page_has_it_and_says_what_the_images_were(kept: Path) -> None:
    page = text_of(kept.parent)
    assert "## Fig. 5: accuracy against communication and computation" in page
    assert "The images of CIFAR were JPEG files" in page
    assert "| `fedssa/fig5` |" in page  # one point of a search is not the paper's own setting
    kept.unlink()
    assert "## Fig. 5: accuracy against" not in text_of(kept.parent)
