"""Names that differ in how they are written only, and words that are known in another spelling."""

import pytest

from fedloom.core.errors import DataError
from fedloom.data.labels import folded, near_twins, refuse_other_spelling, twin_of, twins_note, unknown_cells


@pytest.mark.parametrize(
    ("name", "spelling"),
    [
        (" Yes. ", "yes"),
        ("\uff39\uff45\uff53", "yes"),
        ("Y", "yes"),
        ("1.0", "1"),
        ("1e0", "1"),
        ("\N{MINUS SIGN}1", "-1"),
        ("Caf\u00e9  au lait", "cafe au lait"),
        ("Cafe\u0301 au\u00a0lait", "cafe au lait"),
        ("STRASSE", "strasse"),
        ("Stra\u00dfe", "strasse"),
        ("...", "..."),
        ("<5", "<5"),
    ],
)
def test_spellings_of_one_name(name, spelling):
    assert folded(name) == spelling


def test_groups_of_twins():
    assert near_twins(["a", "B", "b", "A.", "c"]) == [("a", "A."), ("B", "b")]
    assert twin_of("F", ["m", "f"]) == "f"
    assert twin_of("x", ["m", "f"]) is None
    assert twins_note("here", "classes", {"a": 1, "b": 2}) == []
    assert twins_note("here", "classes", {"a": 1, "A": 2000})[0].startswith(
        "here: classes look alike and count as different: 'a' (1) and 'A' (2,000)"
    )


def test_unknown_words_are_counted():
    assert unknown_cells({"f": 3, "x": 2, "y": 1}, ["f", "m"]) == 3
    refuse_other_spelling({"f": 3, "x": 17}, ["f", "m"], "here")
    refuse_other_spelling({"x": 19}, ["f", "m"], "few rows may hold new words alone")


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"F": 1, "m": 99}, "here holds 'F' in 1 rows, known as 'f'; write it so"),
        (
            {"w": 18, "f": 2},
            "here holds unknown words in 18 of 20 rows, such as 'w'; write them as the known ones: f, m",
        ),
    ],
)
def test_words_in_another_spelling_are_refused(counts, message):
    with pytest.raises(DataError, match=message):
        refuse_other_spelling(counts, ["f", "m"], "here")
