"""Messages that a person can act on."""

import pytest

from fedloom.core.errors import (
    CheckpointError,
    ClientError,
    ConfigError,
    DataError,
    FedloomError,
    RunFolderError,
    nearest,
)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("fedsk", "fedskc"), ("FedAvg", "fedavg"), ("fedprx", "fedprox"), ("FEDSC", "fedsc")],
)
def test_a_typing_error_is_answered_with_the_nearest_name(typed, hint):
    assert nearest(typed, ["fedavg", "fedprox", "fedsc", "fedskc"]) == f"did you mean '{hint}'?"


def test_a_name_like_no_other_is_answered_with_all_names_sorted():
    assert nearest("zzz", ["moon", "fedavg"]) == "known: fedavg, moon"


def test_an_empty_list_of_names_says_none():
    assert nearest("anything", []) == "known: none"


@pytest.mark.parametrize("kind", [ConfigError, DataError, CheckpointError, RunFolderError])
def test_expected_failures_share_a_base_and_exit_with_two(kind):
    error = kind("line")
    assert isinstance(error, FedloomError)
    assert error.exit_code == 2


def test_a_client_error_says_where_it_happened_and_exits_with_one():
    error = ClientError(17, 3, "phase 0", ZeroDivisionError("division by zero"))
    assert (error.client, error.round, error.stage, error.exit_code) == (17, 3, "phase 0", 1)
    for part in ("client 17", "round 3", "phase 0", "ZeroDivisionError", "division by zero"):
        assert part in str(error)
