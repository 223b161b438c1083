"""Figures from tidy rows: what is drawn where, a legend beside the panels, and three files."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.figures.drawing import figure, save

Made = list[dict[str, Any]]


def accuracies(**more: Any) -> Made:
    """Two methods in two panels, two seeds."""
    return [
        {"panel": panel, "row": row, "seed": seed, "x": x, "accuracy": 50.0 + x + 10 * seed} | more
        for panel in ("one", "two")
        for row in ("FedAvg", "FedSC")
        for seed in (0, 1)
        for x in (0.01, 1, 100)
    ]


def test_lines_are_means_over_seeds_with_one_legend_beside_them() -> None:
    drawn = figure("sweep", accuracies(), "mu")
    one, two = drawn.axes
    assert [line.get_ydata() for line in one.get_lines()] == [pytest.approx([55.01, 56.0, 155.0])] * 2
    assert (one.get_xlabel(), one.get_xscale(), two.get_title("left")) == ("mu", "log", "two")
    assert one.get_ylabel() == "test accuracy (%)"
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedAvg", "FedSC"]
    drawn.draw_without_rendering()
    assert legend.get_window_extent().x0 > max(ax.get_window_extent().x1 for ax in drawn.axes)


def test_unequal_seeds_are_told_and_a_missing_point_is_a_gap() -> None:
    missing = {("one", "FedSC", 0, 1), ("one", "FedSC", 1, 1), ("one", "FedAvg", 1, 0.01)}
    rows = [row for row in accuracies() if (row["panel"], row["row"], row["seed"], row["x"]) not in missing]
    drawn = figure("sweep", rows, "mu")
    fedavg, fedsc = drawn.axes[0].get_lines()
    assert fedavg.get_ydata() == pytest.approx([50.01, 56.0, 155.0])
    assert fedsc.get_ydata() == pytest.approx([55.01, float("nan"), 155.0], nan_ok=True)
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["FedAvg (n = 1 to 2)", "FedSC (n = 2)"]
    rounds = figure("curves", rows).axes[0].get_lines()
    assert list(rounds[1].get_xdata()) == [0.01, 100]  # its own tests: another's rounds are none that it lacks
    one = [row for row in accuracies() if row["x"] == 1 and (row["row"], row["seed"]) != ("FedSC", 1)]
    assert [text.get_text() for text in figure("bars", one).axes[0].texts] == ["56.0 ± 7.1, n = 2", "51.0, n = 1"]
    equal = [row for row in accuracies() if row["x"] == 1]
    assert [text.get_text() for text in figure("bars", equal).axes[0].texts] == ["56.0 ± 7.1"] * 2


def test_boxes_bars_and_costs_have_a_place_for_every_row() -> None:
    rows = accuracies()
    assert [tick.get_text() for tick in figure("clients", rows).axes[0].get_xticklabels()] == ["FedAvg", "FedSC"]
    fewer = figure("clients", rows[:-1]).axes[1]
    assert [tick.get_text() for tick in fewer.get_xticklabels()] == ["FedAvg\nn = 6", "FedSC\nn = 5"]
    bars = figure("bars", rows).axes[0]
    assert [bar.get_width() for bar in bars.patches] == pytest.approx([(55.01 + 56 + 155) / 3] * 2)
    many = [row | {"row": f"method {k}"} for k, row in enumerate(rows)]
    assert figure("bars", many).get_figheight() == pytest.approx(0.8 + 0.28 * len(rows))
    costs = figure("costs", accuracies(bytes=2e6, flops=1e9))
    assert costs.axes[0].get_ylabel() == "sent until the target (MB)"
    assert [text.get_text() for text in costs.legends[0].get_texts()] == ["FedAvg", "FedSC", "0.01", "1", "100"]


def test_bars_of_groups_stand_together_and_a_legend_names_the_rows() -> None:
    rows = [
        {"panel": "Digits", "group": group, "row": row, "seed": 0, "accuracy": accuracy}
        for group, accuracies in (("mean", (80.0, 70.0)), ("MNIST", (90.0, 95.0)))
        for row, accuracy in zip(("BN", "head"), accuracies, strict=True)
    ]
    drawn = figure("bars", rows)
    bars = drawn.axes[0]
    found = [number for bar in bars.patches for number in (bar.get_width(), bar.get_y() + bar.get_height() / 2)]
    assert found == pytest.approx([80, 0, 70, 1, 90, 3, 95, 4])
    assert [tick.get_text() for tick in bars.get_yticklabels()] == ["mean", "MNIST"]
    assert list(bars.get_yticks()) == [0.5, 3.5]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["BN", "head"]
    assert drawn.get_figheight() == pytest.approx(3.0)


def test_heat_maps_hold_the_matrices_and_say_how_far_they_are_apart() -> None:
    values = {"SL": np.array([[0.9, 0.1], [0.3, 0.7]]), "CR": np.array([[0.8, 0.2], [0.4, 0.6]])}
    rows = [
        {"panel": "p", "row": "FedDW", "seed": 0, "matrix": name, "i": i, "j": j, "value": float(matrix[i, j])}
        | ({"distance": 0.01, "correlation": 1.0} if name == "CR" else {})
        for name, matrix in values.items()
        for i in range(2)
        for j in range(2)
    ]
    drawn = figure("relations", rows)
    soft, related, bar = drawn.axes
    assert [ax.get_title("left") for ax in (soft, related)] == ["SL", "CR"]
    assert np.array_equal(related.images[0].get_array(), values["CR"])
    assert (soft.get_xlabel(), related.get_xlabel()) == ("class", "class\n0.01 apart from SL, r = +1.00")
    assert [ax.images[0].norm.vmax for ax in (soft, related)] == [0.9, 0.9]
    assert bar.get_ylabel() == "probability"


def test_surfaces_share_a_scale_and_only_the_lowest_seed_is_drawn() -> None:
    rows = [
        {"panel": "p", "row": row, "seed": seed, "x": x, "y": y, "loss": height * (1 + x * x + y * y) + seed}
        for row, height in (("FedAvg", 1.0), ("FedSC", 2.0))
        for seed in (0, 1)
        for x in (-1.0, 0.0, 1.0)
        for y in (-1.0, 0.0, 1.0)
    ]
    drawn = figure("surface", rows)
    scales = [(ax.collections[0].norm.vmin, ax.collections[0].norm.vmax) for ax in drawn.axes[:2]]
    assert scales == [pytest.approx((1.0, 6.0))] * 2
    assert drawn.axes[2].get_ylabel() == "cross-entropy (nats)"


def test_bubbles_show_three_clients_and_points_name_their_classes() -> None:
    norms = [
        {"panel": "p", "row": "r", "seed": 0, "client": client, "class": c, "share": c / 3, "norm": (3 - c) / 6}
        | {"rank_correlation": -1.0}
        for client in range(4)
        for c in range(3)
    ]
    (ax,) = figure("norms", norms).axes
    texts = [text.get_text() for text in ax.texts]
    assert texts.count("−1.00") == 3
    assert texts[:3] == [".500", ".333", ".167"]
    assert ax.get_xlabel() == "class\n3 of 4 clients; median rank correlation −1.00"
    points = [
        {"panel": "p", "row": "r", "seed": 0, "kind": kind, "class": c, "name": f"class {c}", "x": c, "y": c}
        for kind in ("sample", "means")
        for c in range(3)
    ]
    drawn = figure("points", points)
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == [
        "class 0",
        "class 1",
        "class 2",
        "class means",
    ]
    assert [text.get_text() for text in drawn.axes[0].texts] == ["class 0", "class 1", "class 2"]


def test_three_files_and_the_same_bytes_again(tmp_path: Path) -> None:
    rows = accuracies()
    written = save("bars", rows, tmp_path)
    assert [path.name for path in written] == ["figure.png", "figure.svg", "figure.csv"]
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    first = (tmp_path / "figure.svg").read_bytes()
    assert b"<svg" in first
    save("bars", rows, tmp_path)
    assert (tmp_path / "figure.svg").read_bytes() == first
    kept = list(csv.DictReader((tmp_path / "figure.csv").read_text().splitlines()))
    assert [float(row["accuracy"]) for row in kept] == [row["accuracy"] for row in rows]


def test_nothing_done_is_no_picture(tmp_path: Path) -> None:
    assert save("bars", [], tmp_path) == []
    assert not list(tmp_path.iterdir())
