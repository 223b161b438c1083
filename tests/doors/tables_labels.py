"""Doors: labels of a table, and a file of test rows beside it."""

from doors.door import Door
from doors.rows import AGES, ILL, ROWS, labels, raw, text_of, two

_SEX = ["fm"[row // 2 % 2] for row in range(ROWS)]
_CODES = [row % 2 + 1 for row in range(ROWS)]
_TABLE = {"age": AGES, "sex": _SEX, "ill": ILL}
_COUNTS = {"age": AGES, "ill": _CODES}
_WARDS = {"age": AGES, "ward": [("n", "s", "NA")[row % 3] for row in range(ROWS)], "ill": ILL}
_YES_NO = {"classes": ("no", "yes")}


def _many(count: int) -> str:
    return "age,ill\n" + "".join(f"{row % 5},{row % count}\n" for row in range(100_000))


def _sex(**words: str) -> dict[str, list[object]]:
    return _TABLE | {"sex": [words.get(word, word) for word in _SEX]}


DOORS = [
    Door("label ?", labels(["yes", "no", "?"]), refused=("label 'ill' is '?' in 13 of 40 rows", "first 3",
        "missing: []")),
    Door("label NA", labels(["yes", "no", "NA"]), refused=("label 'ill' is 'NA' in 13 of 40 rows",
        '`missing: ["NA"]`')),
    Door("label ? is a class", labels(["yes", "no", "?"], missing=[]), {"classes": ("?", "no", "yes")}),
    Door("label ? is missing", labels(["yes", "no", "?"], missing="?", incomplete="drop"),
        _YES_NO | {"train": 21, "test": 6}, notes=(("13 of 40 rows lack a value",),)),
    Door("label blank", labels(["yes", "no", ""]), refused=("column 'ill' is empty in row 3 (13 of 40 rows)",)),
    Door("label nan", labels(["1", "2", "nan"]), refused=("column 'ill' lacks 13 values, the first in row 3",)),
    Door("label plus and minus", labels(["+", "-"]), {"classes": ("+", "-")}),
    Door("label twins", labels(["yes", "no", "Yes"]), {"classes": ("Yes", "no", "yes")},
        notes=(("classes look alike", "'Yes' (13) and 'yes' (14)"),)),
    Door("label 1 and 1.0", labels(["1", "b", "1.0"]), {"classes": ("1", "1.0", "b")},
        notes=(("classes look alike", "'1' (14) and '1.0' (13)"),)),
    Door("label spaces", labels(["yes", "no", " yes", "no "]), _YES_NO),
    Door("label floats", labels(["1.0", "2.0"]), {"classes": ("1", "2")}),
    Door("label fractions", labels([f"{row * 0.37}" for row in range(ROWS)]),
        refused=("40 different values", "measurement")),
    Door("label infinite", labels(["1", "inf"]), refused=("label 'ill'", "measurement")),
    Door("label dates", labels(["2024-01-01", "2024-01-02"]), refused=("column 'ill' holds date32",)),
    Door("one class", labels(["yes"]), {"classes": ("yes",)}, notes=(("all samples are of one class, 'yes'",),)),
    Door("a class without held-out rows",
        raw("age,ill\n" + "".join(f"{row % 7},{'rare' if row == 3 else 'no' if row % 2 else 'yes'}\n"
        for row in range(40))), {"test": 8}, notes=(("set.csv (test): classes without a sample here (1): rare",),)),
    Door("100,000 labels", raw(_many(100_000)), refused=("100000 different values in 100000 samples",)),
    Door("1,500 labels", raw(_many(1_500)), refused=("label 'ill' has 1,500 different values", "measurement")),
    Door("owner NA", raw(text_of(_WARDS), owner="ward"), refused=("owner 'ward' is 'NA' in 13 of 40 rows, the first 3",
        '`missing: ["NA"]`', "if it is an owner")),
    Door("owner NA is missing", raw(text_of(_WARDS), owner="ward", missing=["NA"], incomplete="drop"),
        {"owners": ("n", "s")}, notes=(("13 of 40 rows lack a value",),)),
    Door("owner NA is Namibia", raw(text_of(_WARDS), owner="ward", missing=[]), {"owners": ("NA", "n", "s")}),
    Door("owner blank", raw(text_of(_WARDS | {"ward": ["n", ""] * 20}), owner="ward"), refused=("'ward' is empty",)),
    # a file of test rows: columns and classes are matched by name
    Door("reordered test columns", two(_TABLE, dict(reversed(_TABLE.items()))), _YES_NO | {"test": 40}),
    Door("more test columns", two(_TABLE, _TABLE | {"note": _CODES}), _YES_NO,
        notes=(("columns that the training file lacks", "(1): note"),)),
    Door("fewer test columns", two(_TABLE, {"age": AGES, "ill": ILL}), refused=("other.csv: has no column 'sex'",)),
    Door("test labels as floats", two(_COUNTS, _COUNTS | {"ill": [f"{n}.0" for n in _CODES]}), {"classes": ("1", "2")}),
    Door("test labels as fractions", two(_COUNTS, _COUNTS | {"ill": [n + 0.5 for n in _CODES]}),
        refused=("other.csv: label 'ill'", "measurement")),
    Door("a new test class", two(_COUNTS, _COUNTS | {"ill": [3 if n == 2 else n for n in _CODES]}),
        {"classes": ("1", "2", "3")}, notes=(("other.csv: classes without a sample here (1): 2",),
        ("set.csv: classes without a sample", "3"))),
    Door("test words for numbers", two(_COUNTS, _COUNTS | {"ill": ["one" if n == 1 else "1" for n in _CODES]}),
        refused=("other.csv (test): label 'one' is none of 1, 2",)),
    Door("test labels in another case", two(_TABLE, _TABLE | {"ill": [word.title() for word in ILL]}),
        refused=("other.csv (test): label 'No' is none of no, yes; write 'no'",)),
    Door("test words in another case", two(_TABLE, _sex(f="F")), refused=("other.csv", "'sex' holds 'F' in 20", "'f'")),
    Door("test words in another language", two(_TABLE, _sex(f="femme", m="homme")),
        refused=("'sex' holds unknown words in 40 of 40 rows", "f, m")),
    Door("new test words", two(_TABLE, _sex(f="x")), {"features": ("age", "sex=f", "sex=m")},
        notes=(("other.csv", "no training row holds", "'sex' (20)"),)),
]  # fmt: skip
