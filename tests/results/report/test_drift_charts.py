"""The picture of the parts of drift shows the values that it is given."""

import pytest

from fedloom.results.page_sections import SectionPicture
from fedloom.results.report.sections import draw_parts


@pytest.mark.parametrize("size", [(640.0, 420.0), (360.0, 400.0)])
def test_parts_stack_above_and_below_zero(size: tuple[float, float]) -> None:
    parts = {"local": [2.0, 1.0], "sampling": [0.5, -0.25], "server": [-1.0, 0.0]}
    (ax,) = draw_parts(SectionPicture("parts", [1, 5], parts, "", "", ""), size).axes
    bars = [(bar.get_y(), bar.get_height()) for bar in ax.patches]
    assert bars == [(0, 2), (0, 1), (2, 0.5), (0, -0.25), (0, -1), (1, 0)]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "5"]
