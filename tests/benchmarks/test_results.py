"""The tables of the results page compare each method with the plain one of its protocol."""

from benchmarks.tables import studies


def test_a_hundred_rounds_say_when_a_loss_was_lost():
    case = {"method": "fedskc", "preset": "paper", "options": {"tau": 0.01}, "alpha": 0.2, "finite": 4, "seeds": 5}
    lost = case | {"first_not_finite": [None, 5, None, None, None], "accuracy": [0.581, 0.441]}
    rows = studies.hundred_rounds_table([lost]).splitlines()
    assert rows[2] == "| FedSKC | 0.2 | paper | tau=0.01 | 4 of 5 (round 5) | 58.1 ± 44.1 |"


def test_methods_are_compared_with_the_plain_one_of_their_protocol():
    def cell(protocol, *accuracies, warnings=()):
        return {"protocol": protocol, "seeds": [0, 1, 2], "accuracies": list(accuracies), "warnings": warnings}

    cells = {
        "mild/fedavg": cell("global/global", 0.5, 0.5, 0.5),
        "mild/fedsc": cell("global/global", 0.6, 0.601, 0.602),
        "mild/moon": cell("global/global", 0.52, 0.517, 0.526),
        "mild/feddw": cell("global/global", 0.52, 0.517, 0.526),
        "mild/fednh": cell("global/global", 0.52, 0.517, 0.526),
        "mild/fedlc": cell("global/global", 0.52, 0.517, 0.526),
        "mild/copa": cell("global/global", 0.1, 0.7, 0.7, warnings=["diverged: in round 2 the losses of 1 of 8 ..."]),
        "mild/ditto": cell("personal/local", 0.9, 0.9, 0.9),  # local training was not run
        "strong/fedavg": cell("global/global", 0.1, 0.1, 0.1),
    }
    words = studies.differences(cells, "mild")
    assert words["mild/fedsc"] == "+10.1, ahead"
    assert words["mild/moon"] == "+2.1, ahead"
    assert words["mild/copa"] == "diverged"  # and does not enter the correction of the others
    assert set(words) == {f"mild/{name}" for name in ("fedsc", "moon", "feddw", "fednh", "fedlc", "copa")}
    assert "mild/copa" not in studies.seeds_higher(cells, "mild")
