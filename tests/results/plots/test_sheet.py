"""Whole figures: small multiples, one legend, one colour a method, three kinds of files."""

import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fedloom.results.plots.drawing import light_colors
from fedloom.results.plots.palette import COLUMN, PAGE, Curve, Estimate, PlotData, PlotPanel
from fedloom.results.plots.sheet import draw_figure, save_figure

METHODS = ["fedavg", "fedsc", "moon"]
LIGHT = light_colors()


def curves(settings: int = 2) -> PlotData:
    panels = [
        PlotPanel(
            f"alpha={number}",
            [Curve(METHODS[k], k, [1, 2], [50.0, 60.0 + 10 * number], [1.0, 2.0]) for k in range(number % 2, 3)],
        )
        for number in range(settings)
    ]
    return PlotData("curves", panels, METHODS, "test accuracy (%)", "Line: mean.", (0.0, 100.0))


def estimates() -> PlotData:
    values = [Estimate("fedavg", 0, 50.0, None, "50.0", True), Estimate("moon", 2, 60.0, (55.0, 65.0), "60.0 ± 5.0")]
    return PlotData("dots", [PlotPanel("", values)], METHODS, "test accuracy (%)", "Dot: mean.")


def test_a_method_has_its_colour_in_every_setting_and_kind() -> None:
    drawn = draw_figure(curves(), Figure(), PAGE)
    colours = [{line.get_label(): to_hex(line.get_color()) for line in axes.get_lines()} for axes in drawn]
    assert colours[0] == {"fedavg": LIGHT["c0"], "fedsc": LIGHT["c1"], "moon": LIGHT["c2"]}
    assert colours[1] == {"fedsc": LIGHT["c1"], "moon": LIGHT["c2"]}
    (dots,) = draw_figure(estimates(), Figure(), COLUMN)
    assert {line.get_label(): to_hex(line.get_color()) for line in dots.get_lines()}["moon"] == LIGHT["c2"]


def test_settings_are_small_multiples_on_one_scale_with_one_legend_and_a_note() -> None:
    figure = Figure()
    drawn = draw_figure(curves(4), figure, PAGE)
    assert [axes.get_title("left") for axes in drawn] == [f"alpha={number}" for number in range(4)]
    assert len({axes.get_ylim() for axes in drawn}) == 1
    assert drawn[0].get_ylim()[1] >= 92.0  # the band of the highest curve, which another panel has
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == METHODS
    assert figure.get_supxlabel() == "Line: mean."
    assert figure.get_figwidth() == PAGE
    figure.draw_without_rendering()
    assert legend.get_window_extent().y0 > max(axes.get_window_extent().y1 for axes in drawn)


def test_dots_are_hollow_without_an_interval() -> None:
    (dots,) = draw_figure(estimates(), Figure(), COLUMN)
    faces = {line.get_label(): line.get_markerfacecolor() for line in dots.get_lines()}
    assert (faces["fedavg"], faces["moon"]) == (LIGHT["page"], LIGHT["c2"])
    assert [tick.get_text() for tick in dots.get_yticklabels()] == ["fedavg", "moon"]


@pytest.mark.parametrize("kind", ["curves", "dots"])
@pytest.mark.parametrize("width", [2.0, COLUMN, PAGE])
def test_long_names_and_values_below_zero_still_fit(kind: Any, width: float) -> None:
    methods = [f"{'a very long name of a method ' * 4}{number}" for number in range(12)]
    series = {"curves": [Curve(method, 1, [1], [-1.0], None) for method in methods]}.get(
        kind, [Estimate(method, 1, -1.0, (-3.0, 1.0), "-1.0 ± 2.0") for method in methods]
    )
    panels = [PlotPanel(f"setting {number}, {'clients=100, ' * 8}", series) for number in range(3)]
    figure = Figure()
    drawn = draw_figure(PlotData(kind, panels, methods, "own metric", "Note. " * 60), figure, width)
    figure.draw_without_rendering()
    assert all(axes.get_window_extent().width > 20 for axes in drawn)
    assert figure.get_figwidth() == width


@pytest.mark.parametrize("kind", ["curves", "dots"])
def test_methods_that_differ_at_the_end_of_their_names_have_different_ones(kind: Any) -> None:
    methods = [f"fedprox, proximal weight mu = {mu}" for mu in (0.1, 1.0, 10)]
    series = {"curves": [Curve(method, 1, [1, 2], [50.0, 60.0], None) for method in methods]}.get(
        kind, [Estimate(method, 1, 50.0, (40.0, 60.0), "") for method in methods]
    )
    figure = Figure()
    plot = PlotData(kind, [PlotPanel("", series)], methods, "test accuracy (%)", "")
    (axes,) = draw_figure(plot, figure, COLUMN / 2 if kind == "curves" else COLUMN)
    legends = [text for legend in figure.legends for text in legend.get_texts()]
    names = {text.get_text() for text in (*axes.get_yticklabels(), *legends)}
    assert len({name for name in names if name.startswith("fedprox, ") or "…" in name}) == 3


def test_a_scale_ends_where_the_measure_does() -> None:
    wide = [Estimate("fedavg", 0, 30.0, (-60.0, 120.0), "30.0")]
    plot = PlotData("dots", [PlotPanel("", wide)], METHODS, "test accuracy (%)", "", (0.0, 100.0))
    (axes,) = draw_figure(plot, Figure(), COLUMN)
    assert axes.get_xlim() == (-2.0, 102.0)


@pytest.mark.parametrize("ending", ["pdf", "svg", "png"])
def test_files_have_the_size_of_the_column_and_the_same_bytes_again(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"figure.{ending}"
    save_figure(curves(1), path, COLUMN)
    first = path.read_bytes()
    save_figure(curves(1), path, COLUMN)
    assert path.read_bytes() == first
    if ending == "pdf":
        assert first.startswith(b"%PDF")
        assert b"/FontFile2" in first  # the fonts are embedded, as TrueType
        assert float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", first)[1]) == pytest.approx(72 * COLUMN)
    if ending == "svg":
        assert b"<text" not in first  # letters are outlines, which need no font
