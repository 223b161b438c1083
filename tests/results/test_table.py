"""Grouping and the numbers of a row, checked by hand."""

import subprocess
import sys
from dataclasses import replace

import pytest

from fedloom.results.comparison import Comparison
from fedloom.results.result_tables import metric_text, record
from fedloom.results.table import grouped, result_table


def test_runs_that_differ_in_the_seed_only_are_one_row(make_result):
    results = [make_result("fedsc", seed, (0.5, last)) for seed, last in ((2, 0.9), (0, 0.7), (1, 0.8))]
    (row,) = result_table(results)
    assert (row["n"], row["seeds"], row["by_seed"]) == (3, [0, 1, 2], [0.7, 0.8, 0.9])
    assert row["accuracy"] == pytest.approx(0.8)
    assert row["std"] == pytest.approx(0.1)  # sqrt((0.1² + 0 + 0.1²) / 2)
    assert row["bytes_up"] == 1001  # mean of 1000, 1001, 1002
    assert row["bytes_down"] == 3000
    assert row["seconds"] == 4.0  # mean of 3, 4, 5
    assert row["phases"] == {"train": 2.0, "evaluate": 0.5, "aggregate": 0.25, "move": 0.125, "checkpoint": 0.125}
    assert row["peak_memory_mb"] == 102.0
    assert row["best_val"] == pytest.approx(0.8)
    assert (row["label"], row["setting"], row["repeats"]) == ("fedsc", {}, 0)


def test_rows_keep_their_order_and_count_a_seed_once(make_result):
    runs = [make_result("fedsc"), make_result("fedavg", best_val=None), make_result("fedsc", 1), make_result("fedsc")]
    fedsc, fedavg = grouped([runs[2], *runs])
    assert [result.numbers["seed"] for result in fedsc.results] == [0, 1]
    assert (fedsc.row["label"], fedsc.row["n"], fedsc.row["repeats"]) == ("fedsc", 2, 2)
    assert (fedavg.row["label"], fedavg.row["std"], fedavg.row["best_val"]) == ("fedavg", None, None)
    assert result_table([]) == []


def test_presets_and_settings_make_rows_and_labels(make_result):
    alpha = {"scenario": {"source": "toy", "partition": "dirichlet", "alpha": 0.5, "seed": None}}
    rows = result_table(
        [make_result("fedsc"), make_result("fedsc", preset="paper"), make_result("fedsc", config=alpha)]
    )
    assert [row["label"] for row in rows] == [
        "fedsc (sound, alpha=0.1)",
        "fedsc (paper, alpha=0.1)",
        "fedsc (sound, alpha=0.5)",
    ]
    assert rows[2]["setting"] == {"scenario.alpha": "0.5"}


def test_options_of_a_method_are_told_within_one_preset_only(make_result):
    def options(tau):
        return {"fedsc": {"tau": tau, "scale": "batch"}}

    rows = result_table([make_result("fedavg"), make_result("fedsc", config=options(0.1))])
    assert [row["setting"] for row in rows] == [{}, {}]
    rows = result_table([make_result("fedsc", config=options(0.1)), make_result("fedsc", config=options(0.2))])
    assert [row["label"] for row in rows] == ["fedsc (tau=0.1)", "fedsc (tau=0.2)"]


def test_engine_and_a_spelled_out_scenario_seed_do_not_split_a_group(make_result):
    spelled = {"scenario": {"source": "toy", "partition": "dirichlet", "alpha": 0.1, "seed": 1}}
    assert len(result_table([make_result(seed=0), make_result(seed=1, config=spelled)])) == 1
    assert len(result_table([make_result(seed=0), make_result(seed=1, config={"engine": "batched"})])) == 1
    assert len(result_table([make_result(seed=0), make_result(seed=2, config=spelled)])) == 2


def dealt(seed):
    return {"scenario": {"source": "toy", "partition": "dirichlet", "alpha": 0.1, "seed": seed}}


def test_a_scenario_that_is_fixed_over_the_seeds_is_one_row(make_result):
    fixed = [make_result(seed=seed, config=dealt(0)) for seed in range(3)]
    (row,) = result_table(fixed)
    assert (row["label"], row["n"], row["setting"]) == ("fedavg", 3, {})
    own = [make_result(seed=seed, config=dealt(seed)) for seed in range(3)]
    assert [row["n"] for row in result_table(own)] == [3]
    rows = result_table([make_result(seed=0), make_result("fedsc"), *fixed])
    assert [(row["label"], row["n"]) for row in rows] == [
        ("fedavg (seed=None)", 1),
        ("fedsc", 1),
        ("fedavg (seed=0)", 3),
    ]


def test_runs_of_a_study_have_the_names_that_it_gives_them(make_result):
    def labels(*cells):
        pairs = zip(("paper", "sound"), cells, strict=True)
        runs = [replace(make_result(preset=preset), cell=cell) for preset, cell in pairs]
        return [row["label"] for row in result_table(runs)]

    assert labels(("mild", "weak"), ("hard", "weak")) == ["mild/weak", "hard/weak"]
    assert labels(("mild", "weak"), ("mild", "ours")) == ["weak", "ours"]
    assert labels(("", "weak"), ("", "ours")) == ["weak", "ours"]
    assert labels(("mild", "weak"), ("mild", "weak")) == ["fedavg (paper)", "fedavg (sound)"]  # of two studies
    assert labels(("mild", "weak"), None) == ["mild/weak", "fedavg (sound)"]


def test_degenerate_notes_that_differ_in_figures_only_are_told_once(make_result):
    results = [make_result(seed=s, degenerate=[f"weights are uniform (spread {s}.5e-3)", "no BN"]) for s in range(2)]
    (row,) = result_table(results)
    assert row["degenerate"] == ["weights are uniform (spread 0.5e-3)", "no BN"]


def test_importing_the_report_brings_neither_torch_nor_matplotlib():
    code = "import sys, fedloom.results.report; print({'torch', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_metric_that_a_seed_does_not_define_is_a_mean_over_the_others_and_says_so(make_result):
    def tested(seed: int, auroc: float | None):
        run = make_result("fedsc", seed)
        return replace(run, numbers=run.numbers | {"metrics": {"auroc": auroc}})

    runs = [tested(0, None), tested(1, 0.6), tested(2, 0.8)]
    (row,) = result_table(runs)
    assert (row["metrics"]["auroc"], row["metrics_n"]["auroc"]) == (pytest.approx(0.7), 2)
    assert metric_text(row, "auroc") == "70.0 ± 14.1 (2 of 3 seeds)"  # 0.2 / sqrt(2)
    assert "70.0 ± 14.1 (2 of 3 seeds)" in Comparison(runs).table("latex").replace("$\\pm$", "±")
    assert list(record(row))[-3:] == ["auroc", "auroc_std", "auroc_n"]
    (none,) = result_table([tested(0, None)])
    assert metric_text(none, "auroc") == ""
