"""Doors: tables with lines that are no rows, and with spaces between cells."""

from typing import Any

from doors.door import Door
from doors.rows import AGES, ILL, ROWS, Write, raw, text_of

_TABLE = {"age": AGES, "bmi": [row + 0.5 for row in range(ROWS)], "ill": ILL}
_TEXT = text_of(_TABLE)
_READ = {"train": 32, "test": 8, "features": ("age", "bmi"), "classes": ("no", "yes")}


def _lines(change: Any, **keys: Any) -> Write:
    return raw(change(_TEXT.splitlines(keepends=True)), **keys)


DOORS = [
    *(Door(f"a first line {line!r}", raw(line + _TEXT.replace(",", mark)), _READ)
        for line, mark in (("sep=;\n", ";"), ("sep=,\n", ","), ('"sep=;"\r\n', ";"), ("\ufeffSEP=\t\n", "\t"))),
    Door("a first line sep=; in UTF-16", raw(("sep=;\n" + _TEXT.replace(",", ";")).encode("utf-16")), _READ),
    *(Door(f"titles such as {titles!r}", raw(titles + _TEXT), _READ, notes=(("lines above the header", why),))
        for titles, why in (("Export of 2024\n", "(1): 'Export of 2024'"), ("Export,,\n,,\n", "(1)"),
            ("Study: x\nof 2024\n\n", "(2)"), ("# one\n# two, three\n", "(2)"), ('"Export, X",,\nmore,1,\n', "(2)"))),
    Door("a header without its first name", raw(_TEXT.replace("age,bmi", "bmi")), refused=("Expected 2 columns",)),
    Door("a row of units", _lines(lambda lines: "".join([lines[0], "years,kg/m2,\n", *lines[1:]])), _READ,
        notes=(("line 2 holds units, no row, and was left out: years, kg/m2",),)),
    Door("a row of units in brackets", _lines(lambda lines: "".join([lines[0], "[a],[kg],[-]\n", *lines[1:]])), _READ,
        notes=(("[a], [kg]",),)),
    Door("a first row that lacks numbers", _lines(lambda lines: "".join([lines[0], "unknown,n/k,yes\n", *lines[1:]]),
        incomplete="drop"), {"train": 32}, notes=(("1 of 41 rows",), ("'unknown'",), ("'n/k'",))),
    Door("copies of the header", _lines(lambda lines: "".join([*lines[:9], *lines[:1] * 2, *lines[9:], lines[0]])),
        _READ, notes=(("lines that repeat the header were left out: 3",),)),
    Door("a space between cells", raw(_TEXT.replace(",", " "), separator=" "), _READ),
    Door("aligned columns", raw("".join(f"  {line.replace(',', '    ')}" for line in _TEXT.splitlines(keepends=True)),
        separator=" "), _READ),
    Door("spaces in quotes", raw(_TEXT.replace(",", "   ").replace("yes", '"y  s"'), separator=" "),
        _READ | {"classes": ("no", "y  s")}),
    Door("spaces without the key", raw(_TEXT.replace(",", " ")), refused=("separated by spaces", '`separator: " "`')),
]  # fmt: skip
