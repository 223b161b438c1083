"""What a person sees: nothing is cut where the terminal is narrow, nothing lost where it knows ASCII alone."""

import io
from typing import Any

import pytest
from rich.console import Console

from fedloom.cli.shared import make_printable
from fedloom.cli.terminal import print_comparison, print_grid
from fedloom.results.report.holdings_table import print_holdings

ROW: dict[str, Any] = {
    "label": "fedprox+dw, model=[mlp]",
    "preset": "authors",
    "n": 3,
    "accuracy": 0.97512,
    "std": 0.0064,
    "best_val": 0.964,
    "bytes_up": 46_200_000,
    "bytes_down": 50_700_000,
    "seconds": 754.0,
    "protocol": "personal/local",
    "select": "best_val",
    "degenerate": ["term [ce] is lost"],
    "metrics": {},
    "stopped": [],
    "diverged": [],
    "figures": {},
    "attack": None,
    "attack_success": None,
}
CELLS = ["fedprox+dw, model=[mlp]", "authors", "97.5", "96.4", "46.2 MB", "50.7 MB", "12.6 min", "term [ce] is lost"]
PICTURE: dict[str, Any] = {
    "name": "digits",
    "clients": 2,
    "classes": [str(label) for label in range(10)],
    "class_counts": [[90, 0, 0, 10, 0, 0, 0, 0, 0, 50], [0, 7, 0, 0, 0, 0, 0, 0, 0, 0]],
    "domains": [],
    "classes_per_client": 2.0,
    "total_variation": 1.0,
    "size_ratio": 21.4,
    "acceptance": 1.0,
    "draws": 1,
    "feature_shift": None,
    "empty_classes": [2],
    "empty_clients": 0,
}


def printed(width: int, show: Any, *facts: Any, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    make_printable(stream)
    show(Console(file=stream, width=width, highlight=False), *facts)
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [20, 40, 60, 70, 80, 100, 200])
def test_no_cell_of_the_table_is_cut(width: int) -> None:
    text = printed(width, print_comparison, [ROW])
    for cell in [*CELLS, "97.5 ± 0.6"]:
        assert cell in text
    assert "…" not in text


@pytest.mark.parametrize("width", [30, 120, 200])
def test_attacks_have_columns_of_their_own(width: int) -> None:
    flip = ROW | {"attack": "label-flip 0.2", "attack_success": 0.25}
    text = printed(width, print_comparison, [flip, ROW | {"attack": "sign-flip 0.2"}])
    assert all(told in text for told in ["label-flip 0.2", "25.0", "sign-flip 0.2", "–", "All test data are clean"])
    assert "success" not in printed(width, print_comparison, [ROW])


def test_methods_stand_side_by_side_where_they_fit() -> None:
    assert len([line for line in printed(120, print_comparison, [ROW, ROW]).splitlines() if "97.5 ± 0.6" in line]) == 2
    assert [line for line in printed(40, print_comparison, [ROW]).splitlines() if line.startswith("accuracy %")]


@pytest.mark.parametrize("width", [30, 45, 60, 100])
def test_the_picture_shrinks_and_keeps_its_numbers(width: int) -> None:
    text = printed(width, print_holdings, PICTURE)
    assert "…" not in text
    assert "150" in text
    assert "nobody holds: 2" in " ".join(text.split())
    if width < 40:  # a line for each cell
        return
    (first,) = (line for line in text.splitlines() if "150" in line and "█" in line)
    assert len(first.rstrip()) <= width
    assert ("███" in first) == (width == 100)  # classes apart


def test_names_and_texts_are_whole() -> None:
    text = printed(30, print_grid, ("scenario", "description"), [("fedsc/tiny-imagenet-longtail-100", "one of [many]")])
    assert "fedsc/tiny-imagenet-longtail-100" in text
    assert "one of [many]" in text


def test_ascii_columns_stay_in_line() -> None:
    text = printed(100, print_comparison, [ROW, ROW | {"std": None}], encoding="ascii")
    for cell in [*CELLS, "97.5 +- 0.6"]:
        assert cell in text
    rows = [line for line in text.splitlines() if "46.2 MB" in line]
    assert len({line.index("46.2 MB") for line in rows}) == 1
    assert "..." not in text
    picture = printed(100, print_holdings, PICTURE, encoding="ascii")
    assert "###" in picture


SHAPES = PICTURE | {"classes": ["circle", "cross", "square"], "class_counts": [[3, 0, 9], [5, 5, 5]], "domains": []}


@pytest.mark.parametrize(("width", "names"), [(120, "circle cross square"), (42, "circ cros squa")])
def test_class_names_are_whole_where_there_is_room(width, names):
    shapes = SHAPES | {"clients": 2}
    header = next(line for line in printed(width, print_holdings, shapes).splitlines() if "samples" in line)
    assert header.split()[1:-1] == names.split()
