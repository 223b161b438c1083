"""The page of the benchmark of honest scale: differences, shares of clients and words, by hand."""

import honest_scale


def row(seeds, accuracies, protocol, clients=None, tuned=None, method="fedavg"):
    names = ("balanced_accuracy", "macro_f1", "auroc", "ece", "nll", "majority_global", "majority_own")
    return {
        "method": method,
        "seeds": seeds,
        "tested": {protocol: {"accuracy": accuracies, **{name: [0.25] * len(seeds) for name in names}}},
        "clients": {} if clients is None else {protocol: clients},
        "newcomers": {},
        "tuned": {"optimizer": tuned or {"name": "sgd", "momentum": 0.0, "lr": 0.1}},
        "bytes_up": 1e6,
        "bytes_down": 5e5,
    }


def test_rows_of_both_studies_are_one_family_over_their_common_seeds():
    """By hand: +1.0 on each of seeds 0 and 1 and +1.2 on seed 2 have t = 16, and Holm over two keeps p below 0.05."""
    rows = {
        "fedavg": row([0, 1, 2, 3, 4], [0.5, 0.6, 0.7, 0.8, 0.9], "global/global"),
        "fednh": row([0, 1, 2], [0.51, 0.61, 0.712], "global/global", method="fednh"),
        "moon": row([0, 1, 2], [0.4, 0.6, 0.8], "global/global", method="moon"),
        "central": row([0, 1, 2], [0.9, 0.9, 0.9], "global/global", method="central"),
    }
    differences = honest_scale.compared(rows, "global/global", "fedavg")
    assert {label: (found.n, found.word) for label, found in differences.items()} == {
        "fednh": (3, "ahead"),
        "moon": (3, "no difference seen"),
    }
    assert differences["fednh"].comparisons == 2
    table = honest_scale.global_table(rows)
    assert "| FedNH | 3 | 61.1 ± 10.1 | +1.1, ahead |" in table
    assert "| *Central* | 3 | 90.0 ± 0.0 | – |" in table
    assert "- Ahead of FedAvg: FedNH.\n- Behind FedAvg: nobody.\n- No difference from FedAvg seen: MOON.\n" in table


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


def test_an_optimiser_is_named_with_momentum_and_rate():
    adam, momentum = {"name": "adam", "lr": 0.001}, {"name": "sgd", "momentum": 0.9, "lr": 0.03}
    texts = [honest_scale.optimiser(row([0], [0.1], "global/global", tuned=keys)) for keys in (adam, momentum)]
    assert texts == ["Adam, 0.001", "SGD 0.9, 0.03"]


def test_what_is_planned_and_not_measured_is_named():
    lines = honest_scale.progress({}).splitlines()
    assert "| honest-scale | authorities | 0 of 21 | 0.0 | fedavg, fedavg+finetune, fedavg+lpft, local," in lines[2]
    assert len(lines) == 7
