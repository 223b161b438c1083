"""Pivots of finished runs: which value stands where, what is bold, what is refused."""

import csv
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import ConfigError
from fedloom.results.comparison import Comparison
from fedloom.results.data_table import escaped, table_row
from fedloom.results.result import Result
from toy_results import MakeResult, cells_of, runs_by_seed, toy_scenario

WORLD = toy_scenario() | {"test_samples": 10_000}
# By method: its accuracy in each setting, and what each seed adds. FedSC is ahead of both, MOON is not told apart.
SCORES = {"fedavg": (0.60, (0, 0.01, 0.02)), "fedsc": (0.70, (0.001, 0.01, 0.019)), "moon": (0.69, (0.05, 0, 0.001))}


def runs_of(
    make_result: MakeResult, alphas: tuple[float, ...] = (0.1, 1.0), seeds: int = 3, **config: Any
) -> list[Result]:
    return [
        make_result(
            method,
            seed,
            (0.1, score + added[seed] + alpha / 100),
            config={"scenario": {"source": "toy", "alpha": alpha, "seed": None, "shards": 2}} | config,
            metrics={"auroc": 0.9 + seed / 100, "brier": 0.3 - score / 10, "majority_global": 0.1},
            world=WORLD,
        )
        for alpha in alphas
        for method, (score, added) in SCORES.items()
        for seed in range(seeds)
    ]


@pytest.fixture
def grid(make_result: MakeResult) -> Comparison:
    return Comparison(runs_of(make_result))


def test_one_key_goes_down_another_across_and_measures_fill_the_cells(grid: Comparison) -> None:
    table = grid.pivot("method", "alpha", "accuracy,auroc", "markdown")
    head, fedavg, fedsc, moon = cells_of(table)
    assert head == [
        *("method", "alpha = 0.1, accuracy (%)", "alpha = 0.1, AUROC (%)"),
        *("alpha = 1.0, accuracy (%)", "alpha = 1.0, AUROC (%)"),
    ]
    assert [row[:2] for row in (fedavg, fedsc, moon)] == [
        ["fedavg", "61.1 ± 1.0"],
        ["fedsc", "**71.1 ± 0.9**"],
        ["moon", "**70.8 ± 2.9**"],  # not told apart from the best
    ]
    assert fedavg[2] == "91.0 ± 1.0"  # all alike: none is bold
    turned = cells_of(grid.pivot("scenario.alpha", "method", "accuracy", "markdown"))
    assert turned[0] == ["alpha", *(f"{method}, accuracy (%)" for method in SCORES)]
    assert turned[1] == ["0.1", "61.1 ± 1.0", "**71.1 ± 0.9**", "**70.8 ± 2.9**"]  # methods compare, not alphas


def test_notes_say_seeds_protocol_what_bold_means_and_the_majority(grid: Comparison) -> None:
    note = grid.pivot("method", "alpha", format="markdown").splitlines()[-1]
    assert note.startswith(
        "Mean ± sample standard deviation over 3 seeds; protocol global/global, selected round: last."
    )
    assert "Bold: methods that no other one of their setting is ahead of, over all pairs (weighted Holm, 5 %)." in note
    assert note.endswith("Always predicting the most frequent class reaches 10.0 % accuracy.")
    assert "Star: methods that no other one" in grid.pivot("method", "alpha", format="text")


def test_the_accuracy_of_the_most_frequent_class_is_never_bold(grid: Comparison) -> None:
    assert "**" not in grid.pivot("method", "alpha", "majority_global", "markdown").partition("\n\n")[0]
    assert "10.0 $\\pm$ 0.0 \\\\" in grid.table("latex")
    assert "textbf{10.0" not in grid.table("latex")


def with_seeds(make_result: MakeResult, **accuracies: dict[int, float]) -> Comparison:
    pairs = [(method, seed, last) for method, by_seed in accuracies.items() for seed, last in by_seed.items()]
    return Comparison([make_result(method, seed, (0.1, last), world=WORLD) for method, seed, last in pairs])


def test_the_best_is_chosen_among_rows_that_can_be_compared(make_result: MakeResult) -> None:
    """One lucky seed left all rows plain, and the note said that none had three seeds."""
    done = with_seeds(
        make_result,
        fedavg={seed: 0.8 + seed / 100 for seed in range(5)},
        moon={seed: 0.8 + (seed + seed % 2 / 10) / 100 for seed in range(1, 5)},
        fedprox={0: 0.7999, 1: 0.8099},
        scaffold={4: 0.99},
        feddw={seed: 0.7 + seed / 100 for seed in range(5)},
    )
    text = done.pivot(format="markdown", interval=True)
    _, fedavg, moon, fedprox, scaffold, feddw = cells_of(text)
    assert feddw[1] == "72.0 ± 1.6 (n = 5)"
    assert (fedavg[1], moon[1]) == ("**82.0 ± 1.6 (n = 5)**", "**82.6 ± 1.3 (n = 4)**")
    assert (fedprox[1], scaffold[1]) == ("80.5 ± 0.7 (n = 2)", "99.0 (n = 1)")
    assert [row[2].partition("] ")[2] for row in (moon, fedprox)] == ["(n = 4)", "(n = 2)"]
    assert scaffold[2] == "+15.0 (n = 1)"
    assert text.endswith("Not compared, with fewer than 3 seeds in common with another row: fedprox and scaffold.")
    numbers = list(csv.DictReader(done.pivot(format="csv", interval=True).splitlines()))
    assert [line["over fedavg [95 %] n"] for line in numbers] == ["", "4", "2", "1", "5"]
    assert "(n = 5)" not in done.pivot(cells="accuracy,n", format="markdown")


def test_nothing_is_bold_without_three_common_seeds(make_result: MakeResult) -> None:
    apart = with_seeds(make_result, fedavg={0: 0.6, 1: 0.6, 2: 0.6}, moon={5: 0.9, 6: 0.9, 7: 0.9})
    for done in (apart, Comparison(runs_of(make_result, seeds=2))):
        table = done.pivot(format="markdown")
        assert "**" not in table
        assert "Nothing is bold: with 3 seeds or more, no two rows of a setting are told apart." in table


def test_the_lowest_is_best_where_a_metric_says_so_and_costs_have_units(grid: Comparison) -> None:
    rows = cells_of(grid.pivot("alpha,method", None, "brier,up,time,n", "markdown", units="share"))
    assert rows[0] == ["alpha", "method", "brier", "up (kB)", "time (s)", "n"]
    assert rows[1] == ["0.1", "fedavg", "0.240 ± 0.000", "1.0", "4.0", "3"]
    assert rows[2][2] == "**0.230 ± 0.000**"
    assert "accuracy (share)" in grid.pivot("method", "alpha", units="share")


@pytest.mark.parametrize(("higher", "bold"), [(False, "fedsc"), (True, "fedavg"), (None, None)])
def test_a_metric_of_a_plugin_is_bold_in_the_direction_that_its_runs_record(
    make_result: MakeResult, higher: bool | None, bold: str | None
) -> None:
    recorded = {} if higher is None else {"higher_is_better": {"mae": higher}}
    errors = {"fedavg": 3.0, "fedsc": 0.2}
    pairs = [(method, error, seed) for method, error in errors.items() for seed in range(3)]
    done = Comparison(
        [make_result(m, seed, metrics={"mae": error + seed / 100}, world=WORLD, **recorded) for m, error, seed in pairs]
    )
    table = done.pivot(cells="mae", format="markdown")
    assert [method for method, value in cells_of(table)[1:] if "**" in value] == ([bold] if bold else [])
    assert ("Nothing is bold by mae: no run says whether the highest value is the best." in table) == (higher is None)
    latex = done.table("latex")
    assert (r"\textbf{0.210 $\pm$ 0.010}" in latex, r"\textbf{3.010" in latex) == (higher is False, higher is True)


def test_intervals_and_p_values_are_of_one_family_a_setting(grid: Comparison) -> None:
    head, fedavg, fedsc, moon = cells_of(grid.pivot(format="markdown", interval=True, p_value=True))
    assert head[:4] == ["method", "alpha=0.1, accuracy (%)", "alpha=0.1, over fedavg [95 %]", "alpha=0.1, p"]
    assert fedavg[2:4] == ["–", "–"]
    pairs = {pair.label: pair.outcome for pair in grid.paired() if "alpha=0.1" in pair.label}
    outcome = pairs["fedsc (alpha=0.1)"]
    assert fedsc[2] == f"+10.0 [{outcome.interval_text(100)}]"
    assert (fedsc[3], moon[3]) == ("<0.001", f"{pairs['moon (alpha=0.1)'].adjusted:.3f}")
    other = grid.pivot(format="markdown", interval=True, against="fedsc")
    assert "over fedsc [95 %]" in other


def test_headline_lines_and_tables_correct_over_the_same_family(make_result: MakeResult) -> None:
    """Pooled data are no method: as one more comparison they took the word from FedSC in two of the three places."""
    accuracies = {"fedavg": (0.6, 0.6, 0.6), "fedsc": (0.62, 0.625, 0.635), "central": (0.6, 0.99, 0.7)}
    done = Comparison(runs_by_seed(make_result, accuracies))
    (pair,) = done.paired()
    assert (pair.label, pair.outcome.word, pair.outcome.tested) == ("fedsc", "ahead", 1)
    assert 0.025 < (pair.outcome.adjusted or 0) < 0.05
    assert "fedsc is ahead of fedavg" in done.verdict()
    _, _, fedsc, central = cells_of(done.pivot(format="markdown", p_value=True))
    assert (fedsc[-1], central[-1]) == (f"{pair.outcome.adjusted:.3f}", "–")


def test_few_test_samples_give_headline_lines_and_tables_the_same_word(make_result: MakeResult) -> None:
    """With 100 test images one image more on each of three seeds proves less than 0.01 points would."""
    accuracies = {"fedavg": (0.6, 0.6, 0.6), "fedsc": (0.61, 0.61, 0.61), "moon": (0.58, 0.62, 0.6)}
    done = Comparison(runs_by_seed(make_result, accuracies, world=toy_scenario() | {"test_samples": 100}))
    outcome = next(pair.outcome for pair in done.paired() if pair.label == "fedsc")
    assert (outcome.word, round(outcome.p or 0, 3)) == ("undecided", 0.027)  # equal differences of one step: t = 6
    assert "fedsc against fedavg: undecided" in done.verdict()
    text = done.pivot(format="markdown", p_value=True)
    assert cells_of(text)[2][-1] == f"{outcome.adjusted:.3f}"
    assert "Nothing is bold: with 3 seeds or more, no two rows of a setting are told apart." in text


def test_two_rows_of_the_baseline_are_one_family_and_a_table_names_one(make_result: MakeResult) -> None:
    slow_runs = runs_by_seed(make_result, {"fedavg": (0.6, 0.61, 0.62)}, config={"optimizer": {"lr": 0.01}})
    accuracies = {"fedavg": (0.5, 0.53, 0.51), "fedsc": (0.62, 0.63, 0.65)}
    done = Comparison(slow_runs + runs_by_seed(make_result, accuracies, config={"optimizer": {"lr": 0.1}}))
    slow = [pair for pair in done.paired() if "0.01" in pair.reference]
    assert {pair.outcome.tested for pair in slow} == {2}
    with pytest.raises(
        ConfigError, match=r"--against 'fedavg': one setting has fedavg \(lr=0\.01\) and fedavg \(lr=0\.1\)"
    ):
        done.pivot(p_value=True)
    table = cells_of(done.pivot(format="markdown", p_value=True, against="fedavg (lr=0.01)"))
    holm = next(pair.outcome.adjusted for pair in slow if pair.label.startswith("fedsc"))
    assert table[-1][-1] == f"{holm:.3f}"


def test_runs_that_ended_early_are_named_below_a_table(make_result: MakeResult) -> None:
    early = {"stopped": {"round": 2, "reason": "no gain"}}
    runs = [make_result("fedavg", seed) for seed in range(3)]
    runs += [make_result("moon", seed, **(early if seed else {})) for seed in range(3)]
    done = Comparison(runs)
    for text in (done.pivot(format="markdown"), done.pivot(format="latex"), done.table("latex")):
        assert "Ended early: moon (seeds 1 and 2)." in text
    assert done.run_notes() == [f"moon: seed {seed} stopped after round 2 of 3: no gain." for seed in (1, 2)]


def test_ways_of_selecting_a_round_are_columns_unless_keys_are_named(make_result: MakeResult) -> None:
    runs = [make_result("fedavg"), make_result("fedprox", select="best_val")]
    head, fedavg, _ = cells_of(Comparison(runs).pivot(format="markdown"))
    assert head == ["method", "last, accuracy (%)", "best_val, accuracy (%)"]
    assert fedavg == ["fedavg", "90.0", "–"]


def test_a_protocol_without_a_majority_leaves_that_of_the_others(make_result: MakeResult) -> None:
    metrics = {"local": {"majority_own": 0.4, "majority_global": 0.2}, "global": {"majority_global": 0.2}, "others": {}}
    runs = [make_result("fedrep", protocol=f"personal/{data}", metrics=of) for data, of in metrics.items()]
    note = Comparison(runs).pivot(format="markdown").splitlines()[-1]
    assert "the most frequent class of each client's own data reaches 40.0 %" in note
    assert "the most frequent class reaches 20.0 %" in note


def test_csv_has_plain_numbers_with_spread_seeds_and_bold(grid: Comparison) -> None:
    rows = list(csv.DictReader(grid.pivot("method", "alpha", format="csv", interval=True).splitlines()))
    name = "alpha = 0.1, accuracy (%)"
    assert float(rows[1][name]) == pytest.approx(71.1)
    assert [rows[1][f"{name} {ending}"] for ending in ("n", "bold")] == ["3", "1"]
    low, high = (float(rows[1][f"alpha = 0.1, over fedavg [95 %] {end}"]) for end in ("low", "high"))
    assert low < 10 < high


def test_keys_that_end_alike_keep_their_whole_names(make_result: MakeResult) -> None:
    runs = [make_result(method, config={method: {"mu": mu}}) for method in ("fedprox", "moon") for mu in (1, 2)]
    done = Comparison(runs)
    lines = list(csv.DictReader(done.pivot("method,fedprox.mu,moon.mu", format="csv").splitlines()))
    assert [(line["fedprox.mu"], line["moon.mu"]) for line in lines] == [("1", "–"), ("2", "–"), ("–", "1"), ("–", "2")]
    head = cells_of(done.pivot("method,fedprox.mu", "moon.mu", format="markdown"))[0]
    assert head[:3] == ["method", "fedprox.mu", "moon.mu = –, accuracy (%)"]


def test_a_diverged_cell_names_its_seeds_for_programs(make_result: MakeResult) -> None:
    done = Comparison([make_result(), make_result("fedsc", 4, test_loss=None)])
    sound, diverged = csv.DictReader(done.pivot(format="csv").splitlines())
    name = "accuracy (%)"
    assert set(sound) == {"method", name, *(f"{name} {ending}" for ending in ("std", "n", "bold", "diverged"))}
    assert (sound[f"{name} diverged"], diverged[name], diverged[f"{name} diverged"]) == ("", "", "4")


def test_a_bar_in_a_name_ends_no_cell_in_markdown(make_result: MakeResult) -> None:
    done = Comparison([replace(make_result(), cell=("a|b", "Fed|Avg")), replace(make_result(), cell=("c", "Fed|Avg"))])
    for table in (done.pivot("method", "setting", format="markdown"), done.table(), done.target_table(0.5)):
        head, rule, *body = [line.replace(r"\|", "") for line in table.splitlines() if line.startswith("|")]
        assert {line.count("|") for line in (head, *body)} == {rule.count("|")}


def test_diverged_and_pooled_runs_are_never_best(make_result: MakeResult) -> None:
    runs = runs_of(make_result, alphas=(0.1,))
    runs += runs_by_seed(make_result, {"central": (0.99,) * 3}, config=runs[0].config)
    runs += runs_by_seed(make_result, {"local": (0.999,) * 3}, config=runs[0].config, test_loss=None)
    table = Comparison(runs).pivot(format="markdown")
    assert "**99.0" not in table
    assert ["local", "diverged"] in cells_of(table)
    assert "central: trained on pooled data, not ranked." in table


def test_methods_of_two_protocols_are_not_ranked_together(make_result: MakeResult) -> None:
    runs = runs_of(make_result, alphas=(0.1,))
    runs += runs_by_seed(make_result, {"ditto": (0.9,) * 3}, protocol="personal/local", config=runs[0].config)
    table = Comparison(runs).pivot("method", format="markdown")
    assert "**71.1 ± 0.9**" in table
    assert "Bold: methods that no other one of their setting and protocol is ahead of" in table


def test_protocols_of_one_method_are_columns_unless_keys_are_named(make_result: MakeResult) -> None:
    protocols = ("global/global", "personal/local")
    runs = [run for name in protocols for run in runs_by_seed(make_result, {"ditto": (0.9, 0.9)}, protocol=name)]
    head, _ = cells_of(Comparison(runs).pivot(format="markdown"))
    assert head == ["method", "global/global, accuracy (%)", "personal/local, accuracy (%)"]
    with pytest.raises(ConfigError, match=r"protocol still varies \(global/global and personal/local\)"):
        Comparison(runs).pivot("method")


def test_names_of_settings_stand_alone_above_columns(make_result: MakeResult) -> None:
    runs = [
        replace(run, cell=("mild" if run.config["scenario"]["alpha"] == 1 else "hard", run.numbers["method"].upper()))
        for run in runs_of(make_result)
    ]
    rows = cells_of(Comparison(runs).pivot("method", "setting", format="markdown"))
    assert rows[0] == ["method", "hard, accuracy (%)", "mild, accuracy (%)"]
    assert rows[1][0] == "FEDAVG"


@pytest.mark.parametrize(
    ("rows", "columns", "cells", "says"),
    [
        (
            "method",
            None,
            "accuracy",
            "two values in a cell (method fedavg): scenario.alpha still varies (0.1 and 1.0); add",
        ),
        ("alpha", "protocol", "accuracy", "protocol global/global): method still varies (fedavg and fedsc)"),
        ("method", "shards", "accuracy", "two values in a cell (method fedavg, shards 2): scenario.alpha still varies"),
        ("method", "alhpa", "accuracy", "'alhpa': no run has this key; did you mean 'alpha'?"),
        ("metod", "alpha", "accuracy", "'metod': no run has this key; did you mean 'method'?"),
        ("method", "alpha", "acuracy", "--cells 'acuracy': no run has it; did you mean 'accuracy'?"),
        ("method,seed", "alpha", "accuracy", "seed: each cell is a mean over seeds"),
        ("method", "method", "accuracy", "--columns method: it names the rows already"),
        ("", "alpha", "accuracy", "--rows: need at least one name"),
        ("method", "alpha", " , ", "--cells: need at least one name"),
    ],
)
def test_what_cannot_be_is_one_line(grid: Comparison, rows: str, columns: str | None, cells: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        grid.pivot(rows, columns, cells)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_other_wrong_words_are_one_line(grid: Comparison) -> None:
    with pytest.raises(ConfigError, match="--against 'fedavgg': no finished row of it; did you mean 'fedavg'"):
        grid.pivot(interval=True, against="fedavgg")
    with pytest.raises(ConfigError, match="format = 'latx': did you mean 'latex'"):
        grid.pivot(format="latx")


def test_a_seed_of_the_scenario_that_is_fixed_is_named(make_result: MakeResult) -> None:
    runs = [
        make_result(seed=seed, config={"scenario": {"source": "toy", "seed": dealt}})
        for dealt in (7, 8)
        for seed in (0, 1)
    ]
    with pytest.raises(ConfigError, match=r"scenario\.seed still varies \(7 and 8\)"):
        Comparison(runs).pivot("method")


def test_latex_has_rules_caption_label_and_two_lines_of_headings(grid: Comparison) -> None:
    text = grid.pivot("method", "alpha", "accuracy,auroc", "latex", label="mine study_1")
    assert r"\begin{tabular}{@{}lrrrr@{}}" in text
    assert r"\toprule" in text
    assert r" & \multicolumn{2}{c}{alpha = 0.1} & \multicolumn{2}{c}{alpha = 1.0} \\" in text
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in text
    assert r"fedsc & \textbf{71.1 $\pm$ 0.9} & " in text
    assert r"\caption{Accuracy (\%) and AUROC (\%) by method and alpha.}" in text
    assert r"\label{tab:mine-study-1}" in text
    single = grid.pivot("method", "alpha", format="latex", caption="A & B", label="fig:x")
    assert r" & \multicolumn{2}{c}{accuracy (\%)} \\" in single
    assert r"\caption{A \& B.}" in single
    assert r"\label{fig:x}" in single
    assert r"$-$" in grid.pivot(format="latex", interval=True, against="fedsc")


def test_latex_rows_that_begin_with_a_bracket_or_a_star_are_no_option_of_the_line_above() -> None:
    assert [table_row([name, "1"]) for name in ("[12] Ditto", "* FedAvg", "FedAvg [1]", "")] == [
        *(r"{}[12] Ditto & 1 \\", r"{}* FedAvg & 1 \\", r"FedAvg [1] & 1 \\", r" & 1 \\")
    ]


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="pdflatex is not installed")
def test_latex_compiles_with_every_sign_in_the_names(grid: Comparison, make_result: MakeResult, tmp_path: Path) -> None:
    odd = make_result(r"a_b%&#$~^{}\<>|", 0, (0.5,), world=WORLD)
    cited = [make_result("ditto", 0, (0.5,), world=WORLD), make_result("fedavg", 0, (0.5,), world=WORLD)]
    cited = [replace(run, cell=("", name)) for run, name in zip(cited, ("[12] Ditto", "* FedAvg"), strict=True)]
    tables = [
        grid.pivot("method", "alpha", "accuracy,auroc,brier", "latex", interval=True, p_value=True),
        Comparison(cited).table("latex"),
        Comparison(cited[::-1]).pivot(format="latex"),
        Comparison(cited).cost_table("latex"),
        Comparison([*runs_of(make_result), odd]).table("latex"),
        grid.cost_table("latex"),
        grid.target_table(0.5, "latex"),
    ]
    begin, end = (
        r"\documentclass{article}\usepackage{booktabs}\begin{document}",
        r"See \ref{tab:results}.\end{document}",
    )
    source = "\n".join((begin, *tables, end))
    (tmp_path / "paper.tex").write_text(source, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout.decode(errors="replace")[-2000:]
    assert (tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF")


def test_every_sign_of_latex_is_escaped() -> None:
    assert escaped("50 % of a_b & c") == r"50 \% of a\_b \& c"
    assert escaped("x\n\ny") == "x y"  # a blank line would end a caption
