"""The leaderboard: sorted by mean, intervals of ranks, a table for each scenario and protocol."""

from statistics import quantiles, stdev

import pytest

from benchmarks.cells import studies_by_name
from benchmarks.tables import studies
from benchmarks.tables.studies import ranked_tables
from fedloom.results.difference import USUAL_SPREADS


def cell(accuracies, protocol="global/global", seeds=None, warnings=()):
    return {
        "protocol": protocol,
        "accuracies": list(accuracies),
        "seeds": list(seeds or range(len(accuracies))),
        "worst": None,
        "bytes_up": 1e6,
        "bytes_down": 1e6,
        "flops": 1e12,
        "train_seconds": 3.0,
        "method": "fedavg",
        "preset": "sound",
        "tuned": {},
        "warnings": warnings,
    }


def ranked(*arguments):
    return "\n\n".join(ranked_tables(*arguments))


def ranks(text):
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| rank")]
    return [line.split(" | ")[0].removeprefix("| ") for line in rows]


def test_ranks_are_intervals_of_the_rows_that_have_seeds_enough():
    cells = {
        "s/low": cell((0.10, 0.11, 0.12)),
        "s/close": cell((0.90, 0.88, 0.95)),
        "s/best": cell((0.91, 0.92, 0.93)),
        "s/two": cell((0.5, 0.6)),
    }
    text = ranked("Digits", cells, {})
    assert text.startswith("## Digits, global/global\n\n| rank | method |")
    assert ranks(text) == ["1–2", "1–2", "–", "3"]
    many = ranked("Digits", {f"s/{k}": cell((k / 20, k / 20, k / 20 + 0.01)) for k in range(12)}, {})
    assert set(ranks(many)) == {"–"}  # three seeds rank nothing among twelve rows
    five = {f"s/{k}": cell([k / 20 + s / 1000 for s in range(5)]) for k in range(3)}
    assert ranks(ranked("Digits", cells | five, {}))[:2] == ["1–2", "1–2"]


def test_each_protocol_has_its_own_table_and_plain_method():
    cells = {"a": cell((0.5, 0.6, 0.7)), "b": cell((0.8, 0.8, 0.8), "personal/local")}
    text = ranked("Digits", cells, {"a": "+1.0, ahead"})
    assert [line for line in text.splitlines() if line.startswith("##")] == [
        "## Digits, global/global",
        "## Digits, personal/local",
    ]
    assert "against FedAvg" in text
    assert "against Local" in text
    assert "+1.0, ahead" in text
    assert ranks(text) == ["–", "–"]  # a single row


def test_rows_of_which_a_run_diverged_come_last_without_a_rank():
    lost = cell((0.95, 0.96, 0.1), warnings=["diverged: in round 2 the losses of 3 of 8 participants are not finite"])
    cells = {"s/lost": lost, "s/low": cell((0.10, 0.11, 0.12)), "s/best": cell((0.91, 0.92, 0.93))}
    text = ranked("Digits", cells, {"s/lost": "diverged"})
    assert ranks(text) == ["1", "2", "–"]
    assert text.splitlines()[-1].startswith("| – | FedAvg (lost) | 67.0 ± 49.4 | diverged |")


def test_over_twelve_scenarios_the_wilcoxon_test_checks(monkeypatch):
    """Twelve gains of one sign have p = 2 / 2^12, and Holm's correction over two methods doubles it."""
    names = [f"study/s{k}" for k in range(12)]
    monkeypatch.setattr(studies, "SCENARIOS", {name: name for name in names})
    cells = {}
    for k in range(12):
        for method, gain in (("fedavg", 0), ("feddw", 0.02 + k / 1000), ("moon", -0.03 - k / 1000)):
            row = cell([0.5 + gain + seed / 100 for seed in range(3)]) | {"method": method, "preset": "sound"}
            cells[f"s{k}/{method}"] = row
    lines = studies.over_scenarios({"study": cells}).splitlines()[2:]
    assert [line.split(" | ")[2].partition("; ")[2] for line in lines] == ["Wilcoxon–Holm p <.001"] * 2


def test_over_scenarios_fewer_than_five_are_only_counted(monkeypatch):
    """Gains of exactly 2 points in each of five scenarios, and of one method in two of them."""
    names = [f"study/s{k}" for k in range(5)]
    monkeypatch.setattr(studies, "SCENARIOS", {name: name for name in names})
    cells = {}
    for k in range(5):
        for method, gain in (("fedavg", 0), ("feddw", 0.02), ("moon", -0.1)):
            if method != "moon" or k < 2:
                row = cell([0.5 + gain + seed / 100 for seed in range(3)]) | {"method": method, "preset": "sound"}
                cells[f"s{k}/{method}"] = row
    lines = studies.over_scenarios({"study": cells}).splitlines()[2:]
    five = "+2.0, +2.0, +2.0, +2.0, +2.0"
    assert lines[0] == f"| FedDW | FedAvg | +2.0, ahead | +2.0 to +2.0 | 1.0 | ahead in 5 of 5 | {five} |"
    assert lines[1] == "| MOON | FedAvg | -10.0 | – | 3.0 | behind in 2 of 2 | -10.0, -10.0 |"


def test_the_usual_spread_of_a_plan_is_that_of_the_committed_rows():
    committed, places = studies_by_name(), [name.partition("/") for name in studies.SCENARIOS]
    rows = [of for study, _, setting in places for *_, of in studies._of_scenario(committed, study, setting)]
    spreads = [100 * stdev(of.values) for of in rows if of.n >= 3]
    assert quantiles(spreads, n=4) == pytest.approx(USUAL_SPREADS, rel=0.2)  # rows that are added move them a little
