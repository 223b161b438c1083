"""Doors: columns of a table that are numbers, dates or ids in some spelling."""

from doors.door import Door
from doors.rows import AGES, ILL, NUMBERS, ROWS, by_row, column, odd, parquet, raw, text_of, two

_WHOLE = [row * 777 + 1000 for row in range(ROWS)]
_POINTS = [f"{number + 0.5:,}" for number in _WHOLE]  # 1,000.5
_GERMAN = [text.replace(",", "x").replace(".", ",").replace("x", ".") for text in _POINTS]
_COMMA = [text.replace(".", ",") for text in NUMBERS]
_COSTS = [f"{row * 95 + 140:,}".replace(",", ".") for row in range(ROWS)]  # 140, ..., 995, 1.090, ...
_SITES = [row // 2 % 3 for row in range(ROWS)]
_BOTH = ("age", "v")
_IDS = ("id: ", "a value of its own", "'v'", "drop")

DOORS = [
    # one odd cell among numbers: which, how often, where, and the key that reads it
    Door("odd ?", odd("?"), refused=("'v' lacks 2 values, the first in row 6 (2 of 40 cells, such as '?', count as",
        "incomplete: drop", "drop: ['v']")),
    Door("odd - that must not be missing", odd("-", missing=[]), refused=("2 of 40 cells", '`missing: ["-"]`')),
    *(Door(f"odd {cell} in rows left out", odd(cell, incomplete="drop"), {"features": _BOTH, "range": (0.25, 58.75)},
        notes=(("2 of 40 rows",), ("'v' holds numbers", f"2 of 40 cells, such as '{cell}', count as missing")))
        for cell in ("-", ".", "n/k", "Unknown", "k.A.", "not done", "#DIV/0!")),
    Door("odd NA", odd("NA"), refused=("'v' lacks 2 values, the first in row 6", "incomplete: drop", "drop: ['v']")),
    Door("odd blank", odd(""), refused=("'v' lacks 2 values, the first in row 6",)),
    Door("odd comma", odd("1,5"), refused=("2 of 40 cells", "'1,5'", "write plain numbers there")),
    Door("odd space", odd("1 234"), refused=("2 of 40 cells", "'1 234'", '`thousands: " "`')),
    *(Door(f"odd {cell}", odd(cell), {"features": _BOTH},
        notes=(("'v' holds numbers: 2 of 40 cells", f"'{cell}', are in {unit}"),))
        for cell, unit in (("$70", "$"), ("70 %", "%"), ("70%", "%"), ("70.0 mg", "mg"),
                           ("70 kg/m\u00b2", "kg/m\u00b2"))),
    *(Door(f"odd {cell} as a value", odd(cell, bounds="value"), {"features": _BOTH},
        notes=((f"2 of 40 cells, such as '{cell}', are read as that number (`bounds`)",),))
        for cell in ("<70", ">= 70", "~70", "ca. 70.0")),
    Door("odd bound", odd("<5"), refused=("2 of 40 cells", "'<5'", "`bounds: value` to read '<5' as 5")),
    Door("two units", column([f"{n} {('mg', 'g')[n % 2]}" for n in _WHOLE]), refused=("40 of 40 cells",)),
    Door("percent beside shares", column(["50%", *(row / 40 for row in range(1, ROWS))]), refused=("1 of 40", "'50%'")),
    Door("thousands beside plain numbers", odd("2 k"), refused=("2 of 40", "'2 k'")),
    Door("house numbers", odd("12A"), refused=("2 of 40", "'12A'")),
    Door("another unit in the test file", two({"age": AGES, "v": [f"{n} kg" for n in NUMBERS], "ill": ILL},
        {"age": AGES, "v": [f"{n} lb" for n in NUMBERS], "ill": ILL}), refused=("in lb, that of training rows in kg",)),
    Door("odd hex", odd("0x1F"), refused=("2 of 40 cells", "'0x1F'")),
    Door("odd word", odd("none"), refused=("2 of 40 cells", "'none'")),
    Door("odd date", odd("2024-01-31"), refused=("2 of 40 cells", "'2024-01-31'")),
    Door("odd boolean", odd("true"), refused=("2 of 40 cells", "'true'")),
    Door("odd infinity", odd("inf"), refused=("column 'v' holds inf in row 6",)),
    Door("odd huge", odd("1e400"), refused=("column 'v' holds inf in row 6",)),
    Door("spaces around", odd("  3.5 "), {"features": _BOTH}),
    Door("exponent", odd("1e3"), {"features": _BOTH}),
    Door("unicode minus", odd("\N{MINUS SIGN}7"), {"features": _BOTH}),
    Door("odd in a kept column", odd("?", categorical=["v"]), {"train": 32}, notes=(("no training row holds", "'v'"),)),
    Door("odd in a dropped column", odd("?", drop="v"), {"features": ("age",)}),
    # keys that say how cells are written
    Door("missing is refused", odd("?", missing="?"), refused=("'v' lacks 2 values, the first in row 6",)),
    Door("missing rows are dropped", odd("?", missing=["?"], incomplete="drop"),
        {"features": _BOTH, "train": 30, "test": 8}, notes=(("2 of 40 rows lack a value", "left out"),)),
    Door("all rows lack one", column(["?"] * ROWS, missing="?", incomplete="drop"),
        refused=("every row lacks a value",)),
    Door("decimal comma", column(_COMMA, separator=";", drop="age"),
        refused=("40 of 40 cells", "'0,25'", '`decimal: ","`')),
    Door("decimal comma said", column(_COMMA, separator=";", drop="age", decimal=","), {"range": (0.25, 57.25)}),
    Door("decimal point, comma said", column(NUMBERS, separator=";", decimal=","), refused=('`decimal: "."`',)),
    Door("comma of thousands", column([f"{n:,}" for n in _WHOLE]), refused=("'1,000'", '`thousands: ","`')),
    Door("comma of thousands said", column([f"{n:,}" for n in _WHOLE], thousands=",", drop="age"),
        {"range": (1000.0, 30526.0)}, notes=(_IDS,)),
    Door("no-break space of thousands", column([f"{n:,}".replace(",", "\u00a0") for n in _WHOLE], thousands=" ",
        drop="age"), {"range": (1000.0, 30526.0)}, notes=(_IDS,)),
    Door("German numbers", column(_GERMAN, separator=";", drop="age"),
        refused=("'1.000,5'", '`thousands: "."` with `decimal: ","`')),
    Door("German numbers said", column(_GERMAN, separator=";", drop="age", decimal=",", thousands="."),
        {"range": (1000.5, 30526.5)}),
    Door("points of thousands beside a decimal comma", column(_COSTS, separator=";", drop="age", decimal=","),
        refused=("'1.090'", 'say `thousands: "."`, or name')),
    Door("points of thousands said", column(_COSTS, separator=";", drop="age", decimal=",", thousands="."),
        {"range": (140.0, 3750.0)}, notes=(_IDS,)),
    Door("thousands read as decimals", column(_COSTS, separator=";", drop="age"), {"features": ("v",)},
        notes=(("'v'", "fractions of exactly three digits ('1.090')", '`decimal: ","` with `thousands: "."`'),)),
    Door("thousands read as decimals after a comma", column([text.replace(".", ",") for text in _COSTS], separator=";",
        drop="age", decimal=","), {"features": ("v",)}, notes=(("'v'", "('1,090')",
        '`decimal: "."` with `thousands: ","`'),)),
    Door("three decimals", by_row(lambda row: f"{row % 9 + 1}.125"), {"features": _BOTH}),
    Door("three decimals everywhere", by_row(lambda row: ["1.000", "1.125", "2.250"][row // 2 % 3]), {"train": 32}),
    Door("three decimals and whole ones", by_row(lambda row: ["1.125", "2", "3"][row // 2 % 3]), {"features": _BOTH}),
    Door("three decimals and whole ones that end in 0", by_row(lambda row: ["1.250", "2", "3"][row // 2 % 3],
        drop="age"), {"features": ("v",)}, notes=(("fractions of exactly three digits ('1.250')",),)),
    Door("no thousands behind a zero", column(["0.125"] * ROWS, separator=";", drop="age", decimal=",", thousands="."),
        refused=("'0.125'", '`decimal: "."`')),
    Door("decimal is thousands", column(NUMBERS, decimal=",", thousands=","), refused=("must differ",)),
    # numbers with something around them
    Door("money", column([f"${n}" for n in _WHOLE]), {"features": _BOTH}, notes=(("'$1000', are in $",), _IDS)),
    Door("doses", column([f"{n}.5 mg" for n in _WHOLE]), {"range": (0.5, 30526.5)}, notes=(("40 of 40", "in mg"),)),
    Door("doses above a bound", column([f">{n}.5mg" for n in _WHOLE], bounds="value"), {"range": (0.5, 30526.5)},
        notes=(("40 of 40 cells", "are in mg; 40 of 40 cells"),)),
    Door("doses with a comma", column([f"{n},5 mg" for n in _WHOLE], separator=";"), refused=('`decimal: ","`',)),
    Door("few doses", by_row(lambda row: f"{row % 3 * 10} mg", drop="age"),
        {"features": ("v=0 mg", "v=10 mg", "v=20 mg")}, notes=(("numbers with units", "'0 mg'", "3 categories"),)),
    Door("0 to 3+", by_row(lambda row: ["0", "1", "2", "3+"][row % 4]), refused=("10 of 40 cells", "'3+'")),
    # dates and times
    Door("ISO dates", by_row(lambda row: f"2024-01-{row % 28 + 1:02}"), refused=("'v' holds date32", "drop")),
    Door("German dates", by_row(lambda row: f"{row % 28 + 1:02}.01.2024"), refused=("dates", "'01.01.2024'")),
    Door("US dates", by_row(lambda row: f"1/{row % 28 + 1}/24"), refused=("dates", "40 of 40", "'1/1/24'")),
    Door("month names", by_row(lambda row: f"{row % 28 + 1} Jan 2024"), refused=("dates", "'1 Jan 2024'")),
    Door("times", by_row(lambda row: f"{row % 12 + 1}:30 pm"), refused=("dates or times", "'1:30 pm'")),
    Door("dates in two spellings", by_row(lambda row: f"2024-01-{row % 28 + 1:02}"
        if row % 2 else f"{row % 28 + 1:02}.01.2024"), refused=("dates", "40 of 40")),
    # ids, row numbers, copies
    Door("ids in words", by_row(lambda row: f"P{row:04}"), refused=("40 different words in 40 rows", "'P0000'")),
    Door("ids in numbers", by_row(lambda row: row * 7919 % 100003), {"features": _BOTH}, notes=(_IDS,)),
    Door("ids that repeat", raw(text_of({"age": AGES, "patientID": [f"P{n}" for n in _SITES],
        "visit_id": [n % 9 for n in range(ROWS)], "ill": ILL})), {"train": 32},
        notes=(("has the name of an id", "'patientID', 'visit_id'"),)),
    Door("row numbers", column(range(5, ROWS + 5)), {"features": _BOTH}, notes=(("counts the rows", "'v'"),)),
    Door("a copy of the label", by_row(lambda row: row % 2), {"train": 32}, notes=(("restate the label", "'v'"),)),
    Door("a copy of the owner", raw(text_of({"age": AGES, "site": _SITES, "ward": [site * 10 for site in _SITES],
        "ill": ILL}), owner="site"), {"features": ("age", "ward"), "owners": ("0", "1", "2")},
        notes=(("one value for each owner", "'ward'"),)),
    # words that are near twins, and marks among words
    Door("near twins", by_row(lambda row: ["Yes", "yes", "\uff39\uff25\uff33.", "caf\u00e9"][row // 2 % 4]),
        {"train": 32}, notes=(("look-alikes: 'v'", "'Yes' (10)", "'yes' (10)"),)),
    Door("marks among words", by_row(lambda row: ["a", "b", "?", "c"][row // 2 % 4]),
        {"features": ("age", "v=?", "v=a", "v=b", "v=c")}, notes=(("'?' in 10 rows", "read as a category",
        '`missing: ["?"]`'),)),
    # numbers that a Parquet file stores as words
    Door("few numbers as words", parquet(lambda pa: [str(row // 2 % 3) for row in range(ROWS)]),
        {"features": ("age", "v=0", "v=1", "v=2")}, notes=(("stores as words", "3 categories"),)),
    Door("many numbers as words", parquet(lambda pa: NUMBERS), refused=("40 numbers stored as words", "store them")),
    Door("comma numbers as words", parquet(lambda pa: _COMMA), refused=("40 of 40 cells", '`decimal: ","`')),
    Door("comma numbers said", parquet(lambda pa: _COMMA, decimal=","), {"features": _BOTH, "range": (0.25, 57.25)}),
]  # fmt: skip
