"""Several settings in one page: a panel for each, one colour a method, words of the one rule, tables that fold."""

import json
import re
from dataclasses import replace
from html import unescape

import pytest

from fedloom.results.plot_values import chart_rows
from fedloom.results.report.line_charts import by_panel
from fedloom.results.report.page import page
from fedloom.results.table import grouped

METHODS = ["fedavg", *(f"method{k}" for k in range(13))]


@pytest.fixture
def comparison(make_result):
    def runs(methods=METHODS, settings=("mild", "hard"), seeds=3, **more):
        return [
            replace(
                make_result(
                    method,
                    seed,
                    (0.4, 0.5 + k / 100 + seed / 1000 + 0.1 * (setting == "mild")),
                    config={"scenario": {"source": "toy", "partition": setting, "seed": None}},
                    **more,
                ),
                cell=(setting, method),
            )
            for setting in settings
            for k, method in enumerate(methods)
            for seed in range(seeds)
        ]

    return runs


def section(text, anchor):
    return re.search(rf'<section[^>]* aria-labelledby="{anchor}">.*?</section>', text, flags=re.DOTALL)[0]


def test_each_setting_is_a_panel_under_one_legend(comparison):
    text = page(comparison())
    curves = section(text, "curves")
    assert re.findall(r"<h3>([^<]+)</h3>", curves) == ["mild", "hard"]
    assert curves.count("<svg") == 2
    legend = re.search(r'<ul class="key">.*?</ul>', curves, flags=re.DOTALL)[0]
    assert legend.count("<li>") == 14
    assert legend.count("dash0") == 8  # the baseline's grey and seven colours
    assert legend.count("dash1") == 6  # the same colours come again
    assert "Learning curves of hard, test accuracy by round: fedavg ends at 50.1 %" in curves
    assert re.findall(r"<h3>([^<]+)</h3>", section(text, "paired"))[:2] == ["mild", "hard"]


def test_a_method_has_one_colour_in_every_setting(comparison):
    rows = chart_rows(grouped(comparison(methods=["fedsc", "fedavg", "moon"])))
    tones = {(row.panel, row.method): row.tone for row in rows}
    assert tones == {(panel, m): t for panel in ("mild", "hard") for m, t in (("fedsc", 1), ("fedavg", 0), ("moon", 2))}
    assert [len(members) for members in by_panel(rows).values()] == [3, 3]
    table = section(page(comparison(methods=["fedsc", "fedavg", "moon"])), "results")
    assert re.findall(r"--(c\d)", table.partition("<tfoot")[0]) == ["c1", "c0", "c2"] * 2


def test_the_table_has_the_words_of_the_one_rule_and_only_what_differs(comparison):
    text = section(page(comparison(methods=["fedavg", "fedsc"])), "results")
    heads = re.findall(r"<th scope=\"col\"[^>]*>([^<]+)</th>", text)
    assert heads == ["Method", "Setting", "Accuracy %", "Against fedavg", "n", "At best val %"]
    assert text.count('<span class="words">+1.0, undecided (needs about 20 seeds)</span>') == 2
    assert "All rows: preset sound, protocol global/global, select last." in text
    presets = comparison(methods=["fedavg"]) + comparison(methods=["fedsc"], preset="authors")
    assert "Preset" in re.findall(r"<th scope=\"col\"[^>]*>([^<]+)</th>", section(page(presets), "results"))


def test_the_majority_baseline_stands_below_the_rows(comparison):
    metrics = {"balanced_accuracy": 0.3, "macro_f1": 0.3, "majority_global": 0.123, "majority_own": 0.4}
    text = section(page(comparison(methods=["fedavg", "fedsc"], metrics=metrics)), "results")
    foot = re.search("<tfoot>.*?</tfoot>", text, flags=re.DOTALL)[0]
    assert foot.count("majority class") == 2
    assert foot.count("<b>12.3</b>") == 2
    assert "Macro F1" in text
    assert "Majority global" not in text


def test_of_many_lines_the_best_have_colours(comparison):
    text = page(comparison(methods=["fedavg", *(f"method{k}" for k in range(20))], settings=("mild",), seeds=1))
    curves = section(text, "curves")
    assert "Coloured: FedAvg and the 7 highest at the end; grey: the other methods." in curves
    assert ">method19</text>" in curves
    assert ">method3</text>" not in curves
    assert "<h1>21 methods on toy</h1>" in text


def test_what_tuning_chose_is_a_table_that_folds(comparison, tmp_path):
    trials = [{"values": {"optimizer.lr": lr}, "validation_accuracy": lr} for lr in (0.1, 0.5)]
    (tmp_path / "trials").mkdir()
    for k, setting in enumerate(("mild", "hard")):
        record = {"group": f"{setting}/<b>fedavg", "chosen": {"optimizer.lr": 0.5}, "trials": trials}
        (tmp_path / "trials" / f"choice-{k}.json").write_text(json.dumps(record))
    runs = [replace(run, folder=tmp_path / str(k)) for k, run in enumerate(comparison(methods=["fedavg"]))]
    text = page(runs)
    tuning = section(text, "tuning")
    assert tuning.index("<details") < tuning.index("<table")
    assert "optimizer.lr for 2 rows, 2 trials each" in tuning
    assert "mild/&lt;b&gt;fedavg" in tuning
    assert "optimizer.lr=0.1: 10.0 %; optimizer.lr=0.5: 50.0 %" in tuning
    assert "optimizer.lr tuned per method on validation data; the table in Tuning has the chosen values." in text


def test_notes_configs_and_runs_fold_where_they_are_many(comparison):
    text = page(comparison(methods=METHODS[:5], seeds=1, degenerate=["the loss term is inactive"]))
    notes = re.search(r'<aside class="notes" .*?</aside>', text, flags=re.DOTALL)[0]
    assert notes.partition("<details>")[0].count("<li>") == 5
    assert "more notes" in notes
    assert "<summary>Configs (10)</summary>" in text
    assert "<summary>Runs (10)</summary>" in text
    assert "<summary>Runs" not in page(comparison(methods=METHODS[:2], seeds=1))


def test_names_of_methods_and_settings_are_text(comparison):
    text = page(comparison(methods=["fedavg", "<script>alert(1)</script>"], settings=("<i>a</i>", "b")))
    assert "<script>alert" not in text
    assert "<i>a</i>" not in text
    assert "<i>a</i>" in unescape(text)
