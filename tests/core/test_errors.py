"""Messages that a person can act on."""

import pickle
import subprocess
import sys
import threading

import pytest

from fedloom.core.errors import (
    CheckpointError,
    ClientError,
    ConfigError,
    DataError,
    FedloomError,
    RunFolderError,
    picklable_error,
    suggest_name,
)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("fedsk", "fedskc"), ("FedAvg", "fedavg"), ("fedprx", "fedprox"), ("FEDSC", "fedsc")],
)
def test_a_typing_error_is_answered_with_the_nearest_name(typed, hint):
    assert suggest_name(typed, ["fedavg", "fedprox", "fedsc", "fedskc"]) == f"did you mean '{hint}'?"


def test_a_name_like_no_other_is_answered_with_all_names_sorted():
    assert suggest_name("zzz", ["moon", "fedavg"]) == "known: fedavg, moon"


def test_an_empty_list_of_names_says_none():
    assert suggest_name("anything", []) == "known: none"


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


class Odd(Exception):
    """Can be pickled, and not be read again."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Locked(Exception):
    """Cannot be pickled."""

    def __init__(self):
        super().__init__("locked")
        self.lock = threading.Lock()


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConfigError("a line"), "a line"),
        (Odd(1, 2), "Odd: 1 and 2"),
        (Locked(), "Locked: locked"),
        (ClientError(1, 2, "phase 0", Odd(1, 2)), "client 1 failed in round 2 (phase 0): RuntimeError: Odd('1 and 2')"),
    ],
)
def test_an_error_crosses_to_another_process_with_its_traceback(error, words):
    there = pickle.loads(pickle.dumps(picklable_error(raised(error))))  # noqa: S301
    assert words in str(there)
    assert isinstance(there, type(error) if isinstance(error, FedloomError) else RuntimeError)
    assert "in raised" in there.__notes__[-1]


def test_a_notebook_shows_one_line_and_the_trace_where_it_is_asked_again():
    with pytest.raises(ConfigError) as caught:
        raise ConfigError("rounds = 0: need 1 or more\x1b[2J")
    assert caught.value._render_traceback_() == [r"ConfigError: rounds = 0: need 1 or more\x1b[2J"]
    again = caught.value._render_traceback_()  # what `%tb` calls
    assert again[0] == "Traceback (most recent call last):"
    assert any("raise ConfigError" in line for line in again)


def test_the_line_of_a_failure_inside_a_client_says_how_to_see_the_trace():
    error = ClientError(3, 2, "phase 0", ValueError("shapes"))
    (line,) = error._render_traceback_()
    assert line.endswith("client 3 failed in round 2 (phase 0): ValueError: shapes (%tb shows where)")
    assert any("ValueError: shapes" in line for line in error._render_traceback_())


def test_an_error_in_a_script_is_unchanged(tmp_path):
    script = tmp_path / "script.py"
    script.write_text('import fedloom as fl\nfl.run("fedsk", scenario="digits")\n')
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    lines = ended.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "fedloom.core.errors.ConfigError: unknown method 'fedsk': did you mean 'fedskc'?"
