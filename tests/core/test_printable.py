"""Foreign text is shown with its control characters escaped."""

import pytest

from fedloom.core.errors import printable, short_repr

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
