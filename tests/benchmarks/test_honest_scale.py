"""The page of the benchmark of honest scale: differences, shares of clients and words, by hand."""

from benchmarks.tables import honest_scale


def row(seeds, accuracies, protocol, clients=None, tuned=None, method="fedavg"):
    names = ("balanced_accuracy", "macro_f1", "auroc", "ece", "nll", "majority_global", "majority_own")
    return {
        "warnings": [],
        "method": method,
        "seeds": seeds,
        "tested": {protocol: {"accuracy": accuracies, **{name: [0.25] * len(seeds) for name in names}}},
        "clients": {} if clients is None else {protocol: clients},
        "newcomers": {},
        "tuned": {"optimizer": tuned or {"name": "sgd", "momentum": 0.0, "lr": 0.1}},
        "bytes_up": 1e6,
        "bytes_down": 5e5,
    }


def test_the_rows_of_a_table_are_one_family_over_their_common_seeds():
    """By hand: +1.0 on each of seeds 0 and 1 and +1.2 on seed 2 have t = 16: p = .004, and adjusted below .05."""
    rows = {
        "fedavg": row([0, 1, 2, 3, 4], [0.5, 0.6, 0.7, 0.8, 0.9], "global/global"),
        "fednh": row([0, 1, 2], [0.51, 0.61, 0.712], "global/global", method="fednh"),
        "feddyn": row([0, 1, 2], [0.49, 0.6, 0.72], "global/global", method="feddyn"),
        "central": row([0, 1, 2], [0.9, 0.9, 0.9], "global/global", method="central"),
    }
    differences = honest_scale.compared(rows, "global/global", "fedavg")
    assert {label: (found.n, found.word, found.tested) for label, found in differences.items()} == {
        "fednh": (3, "ahead", 2),
        "feddyn": (3, "undecided", 2),
    }
    table = honest_scale.global_table(rows)
    assert "| FedNH | 3 | 61.1 ± 10.1 | +1.1, ahead |" in table
    assert "| *Central* | 3 | 90.0 ± 0.0 | – |" in table
    assert "- Ahead of FedAvg: FedNH.\n- Behind FedAvg: none.\n- Equivalent to FedAvg within ±1 point: none." in table
    assert "- Undecided against FedAvg: FedDyn." in table


def test_clients_that_are_worse_are_counted_by_client_and_seed():
    """By hand: seed 0 has one of four clients worse than alone (25 %), seed 1 two (50 %)."""
    rows = {
        "local": row([0, 1], [0.5, 0.5], "personal/local", [[0.5] * 4, [0.6] * 4], method="local"),
        "ditto": row(
            [0, 1, 2],
            [0.7] * 3,
            "personal/local",
            [[0.4, 0.5, 0.9, 0.9], [0.1, 0.2, 0.6, 0.9], [0] * 4],
            method="ditto",
        ),
    }
    line = next(line for line in honest_scale.personal_table(rows).splitlines() if line.startswith("| Ditto"))
    assert line.split(" | ")[-3:] == ["38 %", "–", "SGD, 0.1 |"]
    assert "too few seeds" in line


def test_what_is_planned_and_not_measured_is_named():
    lines = honest_scale.progress({}).splitlines()
    assert "| honest-scale | authorities | 0 of 21 | 0.0 | fedavg, fedavg+finetune, fedavg+lpft, local," in lines[2]
    assert len(lines) == 6


def test_the_leaderboard_has_a_row_of_each_method_in_each_protocol_and_none_of_central():
    protocol, clients = "personal/local", [[0.2, 0.4], [0.6, 0.8], [0.7, 0.9]]
    rows = {
        "local": row([0, 1, 2], [0.3, 0.7, 0.8], protocol, clients, method="local"),
        "ditto": row([0, 1, 2], [0.4, 0.8, 0.91], protocol, clients, method="ditto"),
        "central": row([0, 1, 2], [0.9] * 3, "global/global", method="central"),
        "fedavg": row([0, 1, 2], [0.5, 0.6, 0.7], "global/global"),
    }
    studies = {"honest-scale": {f"authorities/{label}": cell for label, cell in rows.items()}}
    cells, words = honest_scale.ranked_rows(studies, "authorities")
    assert list(cells) == ["global/global/fedavg", "personal/local/local", "personal/local/ditto"]
    ditto = cells["personal/local/ditto"]
    assert (ditto["protocol"], ditto["accuracies"], ditto["worst"]) == (protocol, [0.4, 0.8, 0.91], 0.5)
    assert words == {"personal/local/ditto": "+10.3, ahead"}
    assert cells["global/global/fedavg"]["worst"] is None


def test_a_row_of_which_a_run_diverged_is_shown_and_compared_with_nobody():
    protocol, clients = "personal/local", [[0.2, 0.4], [0.6, 0.8], [0.7, 0.9]]
    lost = row([0, 1, 2], [0.8, 0.1, 0.9], protocol, clients, method="fedgh")
    lost["warnings"] = ["diverged: in round 58 the losses of 1 of 8 participants are not finite"]
    lost["tested"][protocol] |= {"ece": [0.1, float("nan"), 0.1], "nll": [0.5, None, 0.5]}
    lost["newcomers"] = {"zero-shot": {"accuracy": [0.1, 0.1, 0.1]}}
    rows = {
        "local": row([0, 1, 2], [0.3, 0.7, 0.8], protocol, clients, method="local"),
        "ditto": row([0, 1, 2], [0.4, 0.8, 0.91], protocol, clients, method="ditto"),
        "fedgh": lost,
    }
    assert honest_scale.compared(rows, protocol, "local")["ditto"].tested == 1
    table = honest_scale.personal_table(rows)
    line = next(line for line in table.splitlines() if line.startswith("| FedGH"))
    assert line.split(" | ")[3:8] == ["60.0 ± 43.6", "diverged", "diverged", "25.0 ± 0.0", "–"]
    assert "- Undecided against local training: none.\n- Not compared, because a run diverged: FedGH." in table
    assert "| FedGH, diverged | 3 | 10.0 ± 0.0 |" in honest_scale.newcomers_table(rows)
