"""Pictures of drift show the values that they are given."""

import pytest

from fedloom.results.report.sections import draw_matrix, draw_parts, draw_round_lines, draw_weights

SIZES = [(640.0, 420.0), (360.0, 400.0)]


@pytest.mark.parametrize("size", SIZES)
def test_parts_stack_above_and_below_zero(size: tuple[float, float]) -> None:
    values = {"rounds": [1, 5], "parts": {"local": [2.0, 1.0], "sampling": [0.5, -0.25], "server": [-1.0, 0.0]}}
    (ax,) = draw_parts(values, size).axes
    bars = [(bar.get_y(), bar.get_height()) for bar in ax.patches]
    assert bars == [(0, 2), (0, 1), (2, 0.5), (0, -0.25), (0, -1), (1, 0)]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "5"]


def test_a_matrix_leaves_out_what_is_not_defined() -> None:
    values = {"clients": [3, 8], "cells": [[None, -0.5], [-0.5, None]]}
    (ax,) = draw_matrix(values, SIZES[0]).axes
    assert [text.get_text() for text in ax.texts] == ["-0.50", "-0.50"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["3", "8"]
    image = ax.images[0].get_array()
    assert image[0, 0, 3] == 0  # empty
    assert image[0, 1, 0] > image[0, 1, 2]  # orange: below zero
    (empty,) = draw_matrix({"clients": [0, 1], "cells": [[None, None], [None, None]]}, SIZES[0]).axes
    assert not empty.texts


def test_lines_skip_rounds_without_a_value() -> None:
    values = {"rounds": [1, 2, 3], "unit": "cosine", "lines": {"two clients": [0.5, None, 0.25]}}
    (ax,) = draw_round_lines(values, SIZES[1]).axes
    assert ax.lines[0].get_xydata().tolist() == [[1, 0.5], [3, 0.25]]  # type: ignore[union-attr]


def test_weights_stand_beside_equal_ones() -> None:
    (ax,) = draw_weights({"clients": [4, 7], "weights": [0.8, 0.2]}, SIZES[0]).axes
    assert [bar.get_height() for bar in ax.patches] == [0.8, 0.2]
    assert ax.lines[0].get_ydata()[0] == 0.5  # type: ignore[index]
