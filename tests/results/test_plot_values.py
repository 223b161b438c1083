"""Values of figures: which method and setting, over which seeds, in which unit."""

from collections.abc import Iterator
from dataclasses import replace

import matplotlib.pyplot as plt
import pytest

from fedloom.core.errors import ConfigError
from fedloom.results.comparison import Comparison
from fedloom.results.plot_values import plot_values
from fedloom.results.plots.palette import Curve, Estimate
from fedloom.results.result import Result
from toy_results import MakeResult, toy_scenario


@pytest.fixture(autouse=True)
def _no_window() -> Iterator[None]:
    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.fixture
def grid(make_result: MakeResult) -> list[Result]:
    """Three methods in two settings with three seeds."""
    return [
        make_result(
            method,
            seed,
            (0.4, 0.5 + 0.1 * rank + seed / 100),
            config={"scenario": {"source": "toy", "alpha": alpha, "seed": None}},
            metrics={"auroc": 0.9, "brier": 0.2},
            world=toy_scenario() | {"test_samples": 10_000},
        )
        for alpha in (0.1, 1.0)
        for rank, method in enumerate(("fedavg", "fedsc", "moon"))
        for seed in range(3)
    ]


def test_curves_are_means_over_seeds_in_percent_a_panel_a_setting(grid: list[Result]) -> None:
    plot = plot_values(grid, "curves")
    assert [panel.title for panel in plot.panels] == ["alpha=0.1", "alpha=1.0"]
    first = plot.panels[0].series[1]
    assert isinstance(first, Curve)
    assert (first.method, first.rounds, first.mean) == ("fedsc", [1, 2], pytest.approx([40.0, 61.0]))
    assert first.std == pytest.approx([0.0, 1.0])
    assert (plot.methods, plot.quantity) == (["fedavg", "fedsc", "moon"], "test accuracy (%)")
    assert plot.note == "Line: mean over 3 seeds; band: ± 1 sample standard deviation."
    assert plot_values(grid, "curves", "loss").quantity == "test loss (nats)"


def test_dots_have_the_t_interval_from_three_seeds_on(grid: list[Result]) -> None:
    plot = plot_values(grid, "dots")
    dot = plot.panels[1].series[2]
    assert isinstance(dot, Estimate)
    assert dot.bounds == pytest.approx((71 - 4.302653 / 3**0.5, 71 + 4.302653 / 3**0.5))
    fewer = plot_values([result for result in grid if result.numbers["seed"] < 2], "dots").panels[0].series[0]
    assert isinstance(fewer, Estimate)
    assert fewer.bounds is None
    auroc = plot_values(grid, "dots", "auroc")
    assert (auroc.quantity, auroc.panels[0].series[0].mean) == ("test AUROC (%)", pytest.approx(90))  # type: ignore[union-attr]
    brier = plot_values(grid, "dots", "brier")
    assert (brier.quantity, brier.panels[0].series[0].mean) == ("test brier", pytest.approx(0.2))  # type: ignore[union-attr]


def test_differences_from_one_method_are_filled_where_the_rule_says_ahead(grid: list[Result]) -> None:
    close = [result for result in grid if result.numbers["method"] != "moon"]
    noisy = [
        replace(result, numbers=result.numbers | {"method": "moon", "accuracy": 0.5 + 0.1 * (-1) ** seed})
        for result in close
        for seed in [result.numbers["seed"]]
        if result.numbers["method"] == "fedavg"
    ]
    plot = plot_values([*close, *noisy], "dots", against="fedavg")
    fedsc, moon = plot.panels[0].series
    assert isinstance(fedsc, Estimate)
    assert isinstance(moon, Estimate)
    assert (fedsc.method, fedsc.mean, fedsc.hollow, moon.hollow) == ("fedsc", pytest.approx(10.0), False, True)
    assert plot.drawn == ["fedsc", "moon"]
    assert (plot.quantity, plot.bounded) == ("test accuracy over fedavg (points)", None)
    brier_note = plot_values(grid, "dots", "brier", against="fedavg").note
    assert ("Filled: ahead or behind" in brier_note, "Lower is better." in brier_note) == (True, True)
    own = [replace(result, numbers=result.numbers | {"metrics": {"mae": 0.5}}) for result in grid]
    assert "Filled: told apart (adjusted p at most .05)" in plot_values(own, "dots", "mae", against="fedavg").note
    with pytest.raises(ConfigError, match="--against 'fedavgg': no finished row of it; did you mean 'fedavg'"):
        plot_values(grid, "dots", against="fedavgg")
    with pytest.raises(ConfigError, match="differences are drawn as dots, not as curves"):
        plot_values(grid, "curves", against="fedavg")


def test_names_of_a_study_split_into_method_and_setting(grid: list[Result]) -> None:
    cells = [
        replace(result, cell=("hard", f"{result.numbers['method']}/alpha={result.config['scenario']['alpha']}"))
        for result in grid
    ]
    plot = plot_values(cells, "dots")
    assert [panel.title for panel in plot.panels] == ["hard, alpha=0.1", "hard, alpha=1.0"]
    assert plot.methods == ["fedavg", "fedsc", "moon"]


def test_options_of_a_method_belong_to_its_name(make_result: MakeResult) -> None:
    runs = [make_result("fedprox", config={"fedprox": {"mu": mu}, "method": "fedprox"}) for mu in (0.1, 1.0)]
    plot = plot_values([make_result(), *runs], "dots")
    assert plot.methods == ["fedavg", "fedprox (mu=0.1)", "fedprox (mu=1.0)"]
    presets = [make_result("fedsc", preset=preset) for preset in ("sound", "paper")]
    assert plot_values(presets, "dots").methods == ["fedsc (sound)", "fedsc (paper)"]


def test_protocols_are_panels_of_their_own_and_diverged_runs_are_named(make_result: MakeResult) -> None:
    runs = [make_result(protocol="global/global"), make_result("ditto", protocol="personal/local")]
    assert [panel.title for panel in plot_values(runs, "dots").panels] == ["global/global", "personal/local"]
    broken = make_result("fedsc", test_loss=None)
    plot = plot_values([make_result(), broken], "dots")
    assert [series.method for series in plot.panels[0].series] == ["fedavg"]
    assert plot.note.endswith("Left out, because a run diverged: fedsc.")


def test_curves_that_diverged_are_missing_or_end_early_are_named(make_result: MakeResult) -> None:
    stopped = {"round": 2, "reason": "no gain"}
    runs = [
        make_result("fedavg", 0),
        make_result("fedsc", 0, test_loss=None),
        make_result("moon", 0, (0.5, 0.7), stopped=stopped, config={"rounds": 3}),
        make_result("moon", 1),
        make_result("ditto", 0),
        make_result("ditto", 1, (0.1, 0.2), config={"rounds": 3}),
    ]
    assert plot_values(runs, "curves").note == (
        "Line: mean over 1 to 2 seeds; band: ± 1 sample standard deviation. Only the rounds in which every seed has a "
        "finite value: moon and ditto. Ended early: moon. A run diverged: fedsc."
    )
    for row in runs[1].rows:
        row["value"] = float("nan") if row["name"] == "loss" else row["value"]
    plot = plot_values(runs[:2], "curves", "loss")
    assert plot.drawn == ["fedavg"]
    assert plot.note.endswith("Left out, because no round has a finite value of every seed: fedsc.")


def test_rows_without_a_difference_are_named(make_result: MakeResult) -> None:
    runs = [make_result(method, seed) for method in ("fedavg", "fedsc", "central") for seed in range(3)]
    runs += [make_result("moon", 0, test_loss=None), make_result("ditto", 9)]
    note = plot_values(runs, "dots", against="fedavg").note
    assert note.endswith(
        "Left out, because a run diverged: moon. Left out, because it is trained on pooled data: central. Left out, "
        "because no seed of its setting has both its value and one of fedavg: ditto."
    )
    with pytest.raises(ConfigError, match="--against 'moon': it diverged with seed 0, so nothing is compared with it"):
        plot_values(runs, "dots", against="moon")


@pytest.mark.parametrize(
    ("kind", "metric", "says"),
    [
        ("curve", "accuracy", "kind = 'curve': did you mean 'curves'?"),
        ("dots", "aurok", "metric = 'aurok': no run has it; did you mean 'auroc'?"),
        ("curves", "brier", "metric = 'brier': no run has it; known: accuracy, loss"),
    ],
)
def test_wrong_words_are_one_line(grid: list[Result], kind: str, metric: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        plot_values(grid, kind, metric)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_figure_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one finished run"):
        plot_values([], "dots")


@pytest.mark.parametrize("kind", ["curves", "dots"])
def test_a_comparison_plots_itself(grid: list[Result], kind: str) -> None:
    axes = Comparison(grid).plot(kind)
    assert [panel.get_title("left") for panel in axes.figure.axes] == ["alpha=0.1", "alpha=1.0"]
    axes.figure.draw_without_rendering()
