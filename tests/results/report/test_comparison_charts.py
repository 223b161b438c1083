"""The chart of differences: zero's line is as short as a row leaves it beside names."""

import pytest

from fedloom.results.plot_values import chart_rows
from fedloom.results.plots.drawing import TEXT
from fedloom.results.report.line_charts import difference_rows, draw_differences
from fedloom.results.table import grouped


@pytest.mark.parametrize("width", [360.0, 900.0])
def test_the_line_at_zero_keeps_clear_of_the_names_above_and_below(make_result, width: float) -> None:
    """All intervals are above zero, as in the demo, so that its line stands below the beginning of each name."""
    gains = {"fedavg": 0.0, "fedsc": 0.2, "fedgpjy": 0.1}
    runs = [
        make_result(method, seed, [0.5 + gain + seed * gain / 100])
        for method, gain in gains.items()
        for seed in range(3)
    ]
    (rows,) = difference_rows(chart_rows(grouped(runs))).values()
    figure = draw_differences([row.drawn for row in rows], width, (0.0, 21.0), "points")
    (axes,) = figure.axes
    zeros = [line.get_ydata() for line in axes.lines if list(line.get_xdata()) == [0, 0]]
    baselines = sorted({text.get_position()[1] for text in axes.texts})
    assert len(zeros) == len(baselines) == 2
    for first, last in zeros:
        for baseline in baselines:
            top, bottom = baseline - 0.9 * TEXT, baseline + 0.3 * TEXT
            assert first - bottom >= TEXT / 2 or top - last >= TEXT / 2.5
