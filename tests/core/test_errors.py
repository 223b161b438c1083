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
    printable,
    short_repr,
    suggest_name,
)


@pytest.mark.parametrize(
    ("typed", "known", "hint"),
    [
        ("fedsk", "fedavg fedprox fedsc fedskc", "did you mean 'fedskc'?"),
        ("FedAvg", "fedavg fedprox fedsc fedskc", "did you mean 'fedavg'?"),
        ("FEDSC", "fedavg fedprox fedsc fedskc", "did you mean 'fedsc'?"),
        ("zzz", "moon fedavg", "known: fedavg, moon"),
        ("anything", "", "known: none"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_or_with_all_sorted(typed, known, hint):
    assert suggest_name(typed, known.split()) == hint


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


CASES = {
    "clears the screen": ("\x1b[2J", r"\x1b[2J"),
    "names the window": ("\x1b]0;root\x07", r"\x1b]0;root\x07"),
    "eight bits": ("\x9b31m", r"\x9b31m"),
    "forges a line": ("ok\nerror: none", r"ok\nerror: none"),
    "overwrites a line": ("ok\rno", r"ok\rno"),
    "other line breaks": ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
    "turns the direction": ("\u202egnp.exe\u202c", r"\u202egnp.exe\u202c"),
    "isolates a direction": ("\u2066a\u2069", r"\u2066a\u2069"),
    "marks a direction": ("\u200fa", r"\u200fa"),
    "is not seen": ("ad\u200bmin\ufeff", r"ad\u200bmin\ufeff"),
    "tags": ("a\U000e0041", r"a\U000e0041"),
    "half a sign": ("\ud800", r"\ud800"),
    "nothing": ("\x00\x7f", r"\x00\x7f"),
    "a tab": ("a\tb", r"a\tb"),
    "other scripts stay": ("Zürich, 東京, مریض, हिन्दी, ♥", "Zürich, 東京, مریض, हिन्दी, ♥"),
    "joiners of words stay": ("می\u200cخواهم", "می\u200cخواهم"),
    "spaces stay": ("1\u202f000\u00a0%", "1\u202f000\u00a0%"),
}


@pytest.mark.parametrize("case", CASES)
def test_signs_that_act_are_escaped_and_others_stay(case):
    text, escaped = CASES[case]
    assert printable(text) == escaped
    assert printable(printable(text)) == escaped


def test_a_traceback_keeps_its_lines():
    assert printable("Traceback:\n\tFile \x1b[1m\n", keep_lines=True) == "Traceback:\n\tFile \\x1b[1m\n"


def test_values_in_messages_are_escaped_already():
    assert short_repr("\x1b[2J\u202e") == r"'\x1b[2J\u202e'"
