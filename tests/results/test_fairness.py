"""Fairness over clients, beside golden numbers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedloom.results.comparison import Comparison
from fedloom.results.fairness import client_shares, fairness, fairness_rows, fairness_table
from fedloom.results.table import grouped
from toy_results import MakeResult, toy_scenario

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "comparisons.json").read_text())["fairness"]
CASES = {name: case for name, case in GOLDEN.items() if isinstance(case, dict)}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fairness_equals_the_golden_numbers(case: dict[str, Any]) -> None:
    measured = fairness(case["accuracy"])
    assert measured is not None
    for name in ("mean", "std", "worst10", "best10", "gap", "gap10", "jain"):
        assert getattr(measured, name) == (None if case[name] is None else pytest.approx(case[name], abs=1e-7))
    for name in ("local", "fedavg"):
        shares = client_shares(dict(enumerate(case["accuracy"])), dict(enumerate(case[name])))
        assert shares is not None
        expected = case[f"against_{name}"]
        for kind in ("worse", "equal", "better"):
            assert getattr(shares, kind) == pytest.approx(expected[kind], abs=1e-7)


def test_jain_is_one_for_all_alike_and_a_share_for_one_alone() -> None:
    alone = fairness([0.8, 0.0, 0.0, 0.0])
    assert alone is not None
    assert alone.jain == pytest.approx(1 / 4)
    itself = client_shares({0: 0.5, 1: 0.7}, {0: 0.5, 1: 0.7})
    assert itself is not None
    assert itself.equal == 1
    assert fairness([]) is None
    assert client_shares({0: 0.5}, {1: 0.5}) is None


def runs(make_result: MakeResult) -> list[Any]:
    accuracies = {
        ("local", "personal/local"): (0.5, 0.6, 0.7, 0.8),
        ("fedavg", "global/local"): (0.4, 0.6, 0.9, 0.9),
        ("ditto", "personal/local"): (0.6, 0.5, 0.8, 0.9),
        ("fedprox", "global/global"): (),
    }
    return [
        make_result(method, seed, protocol=protocol, client_accuracies=values)
        for (method, protocol), values in accuracies.items()
        for seed in range(2)
    ]


def test_rows_are_compared_with_local_training_and_fedavg(make_result: MakeResult) -> None:
    rows = {row.label: row for row in fairness_rows(grouped(runs(make_result)))}
    assert set(rows) == {"local", "fedavg", "ditto"}
    ditto = rows["ditto"]
    assert ditto.against["Local"].worse == pytest.approx(1 / 4)
    assert (ditto.against["FedAvg"].worse, ditto.against["FedAvg"].equal) == pytest.approx((1 / 2, 1 / 4))
    assert set(rows["local"].against) == {"FedAvg"}
    assert (ditto.seeds, ditto.fairness.gap) == (2, pytest.approx(0.4))


def test_the_table_and_the_frame_of_clients(make_result: MakeResult) -> None:
    done = Comparison(runs(make_result))
    table = done.fairness_table()
    assert "worse than Local" in table.splitlines()[0]
    (row,) = [line for line in table.splitlines() if line.startswith("| ditto")]
    assert [cell.strip() for cell in row.split("|")[-3:-1]] == ["1 of 4", "2 of 4"]
    assert "worse_than_fedavg" in done.fairness_table("csv").splitlines()[0]
    frame = done.clients_to_frame()
    assert len(frame) == 3 * 2 * 4
    worst = frame[(frame["label"] == "ditto") & (frame["seed"] == 0) & (frame["client"] == 1)].iloc[0]
    assert worst["accuracy"] == 0.5


def test_a_run_that_diverged_is_marked_and_compared_with_nobody(make_result: MakeResult) -> None:
    results = runs(make_result)
    for result in results:
        if result.numbers["method"] == "fedavg":
            result.numbers["degenerate"] = ["fedavg.diverged"]
    done = Comparison(results)
    by_label = {row.label: row for row in fairness_rows(grouped(results))}
    assert by_label["fedavg"].diverged == [0, 1]
    assert not by_label["fedavg"].against
    assert set(by_label["ditto"].against) == {"Local"}
    assert "fedavg (diverged with seeds 0 and 1)" in done.fairness_table()
    assert ",diverged," in done.fairness_table("csv").splitlines()[0]


def test_two_rows_of_fedavg_are_two_references(make_result: MakeResult) -> None:
    rates = {"lr=0.1": (0.4, 0.6, 0.9, 0.9), "lr=0.01": (0.7, 0.7, 0.7, 0.7)}
    cases = [("fedavg", "global/local", values, rate) for rate, values in rates.items()]
    cases.append(("ditto", "personal/local", (0.6, 0.5, 0.8, 0.9), "lr=0.1"))
    results = [
        make_result(name, seed, protocol=where, client_accuracies=own, config={"optimizer": {"lr": float(rate[3:])}})
        for name, where, own, rate in cases
        for seed in (0, 1)
    ]
    (ditto,) = [row for row in fairness_rows(grouped(results)) if row.label.startswith("ditto")]
    worse = {name: shares.worse for name, shares in ditto.against.items()}
    assert worse == {"fedavg (lr=0.1)": 0.5, "fedavg (lr=0.01)": 0.5}


def test_sizes_and_numbers_of_clients_are_of_all_seeds(make_result: MakeResult) -> None:
    """The first seed has more clients, and larger test sets, than the second."""
    accuracies = {"fedavg": ("global/local", (0.5, 0.9, 0.9)), "ditto": ("personal/local", (0.4, 0.8, 0.95))}
    sizes = ((2000, 30, 2400), (7, 40))
    results = [
        replace(
            make_result(method, seed, protocol=protocol, client_accuracies=values[: len(sizes[seed])]),
            client_details={protocol: {str(client): {"confusion": [0, 0, n]} for client, n in enumerate(sizes[seed])}},
        )
        for method, (protocol, values) in accuracies.items()
        for seed in (0, 1)
    ]
    ditto = next(row for row in fairness_rows(grouped(results)) if row.label == "ditto")
    assert (ditto.smallest, ditto.median, ditto.fairness.clients) == (7, 40.0, 2.5)
    (line,) = [line for line in Comparison(results).fairness_table().splitlines() if line.startswith("| ditto")]
    assert [cell.strip() for cell in line.split("|")[-3:-1]] == ["2 of 2 to 3", "7 / 40"]


def test_without_matrices_by_client_sizes_are_those_that_each_seed_recorded(make_result: MakeResult) -> None:
    recorded = ((51, 87.0), (14, 96.0), (42, 90.0))
    for protocol, expected in (("global/local", (14, 90.0)), ("personal/others", (None, None))):
        results = [
            make_result(
                seed=seed,
                protocol=protocol,
                client_accuracies=(0.5, 0.6),
                world=toy_scenario() | {"client_test_smallest": smallest, "client_test_median": middle},
            )
            for seed, (smallest, middle) in enumerate(recorded)
        ]
        (row,) = fairness_rows(grouped(results))
        assert (row.smallest, row.median) == expected


def test_counts_of_many_clients_are_plain_numbers(make_result: MakeResult) -> None:
    """Three digits showed 1234 clients as 1.23e+03."""
    results = [
        make_result(method, protocol=protocol, client_accuracies=[accuracy] * 1234 + [0.9] * 766)
        for method, protocol, accuracy in (("fedavg", "global/local", 0.5), ("ditto", "personal/local", 0.4))
    ]
    assert "1,234 of 2,000" in Comparison(results).fairness_table()
    assert ("1,234 of 2,000", 1234.0) in fairness_table(grouped(results)).rows[1]


def test_clients_have_their_accuracy_of_the_selected_round(make_result: MakeResult) -> None:
    """The first of two rounds is the best on validation data, and the clients were tested in both."""
    result = make_result(
        "fedavg", 0, (0.7, 0.5), protocol="global/local", select="best_val", client_accuracies=(0.9, 0.5)
    )
    result.numbers["accuracy"] = 0.7
    for row in result.rows:
        if row["client"] is not None and row["round"] == 2:
            row["value"] = 0.5
    validated = [row | {"split": "val", "value": 1 - row["round"] / 10} for row in result.rows if row["name"] == "loss"]
    result.rows.extend(row | {"name": "accuracy"} for row in validated if row["protocol"])  # type: ignore[misc]
    (row,) = fairness_rows(grouped([result]))
    assert row.fairness.mean == pytest.approx(0.7)
    result.config["evaluation"] = {"last_k": 2}
    result.numbers.update(accuracy=0.6, select="mean_last_k")
    (row,) = fairness_rows(grouped([result]))
    assert row.fairness.best10 == pytest.approx(0.7)  # of 0.9 and 0.5
