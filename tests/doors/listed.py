"""Doors: pictures and texts that a table lists."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from doors.door import Door
from doors.rows import ILL, ROWS, Write, raw, text_of

_NAMES = [f"sub/{row}.png" if row % 2 else f"{row}.png" for row in range(ROWS)]
_PARTS = [("Train", "train", "validation", "Testing")[row // 2 % 4] for row in range(ROWS)]
_SITES = ["NS"[row % 3 > 0] for row in range(ROWS)]
_REVIEW = [f"a {('good', 'bad')[row % 2]} film, number {row} " + "and so on " * 30 for row in range(ROWS)]


def _pictures(names: list[str] = _NAMES, labels: list[str] = ILL, parts: list[str] = _PARTS, **keys: Any) -> Write:
    def write(folder: Path) -> dict[str, Any]:
        (folder / "photos/sub").mkdir(parents=True)
        (folder / "link.txt").write_text("x")
        (folder / "photos/link.png").symlink_to(folder / "link.txt")
        for row, name in enumerate(_NAMES):
            Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3) + row).save(folder / "photos" / name)
        table = {"image": names, "ill": labels, "site": _SITES, "fold": parts}
        (folder / "set.csv").write_text(text_of(table))
        given = {"path": folder / "set.csv", "root": folder / "photos", "label": "ill", "file": "image", "size": 8}
        return {"source": "file-table", **given, **keys}

    return write


def _texts(texts: list[str] = _REVIEW, **keys: Any) -> Write:
    keys = {"source": "text-table", "text": "review", "length": 5} | keys
    return raw(text_of({"review": texts, "ill": ILL, "site": _SITES}), **keys)


def _swapped(name: str) -> list[str]:
    return [*_NAMES[:3], name, *_NAMES[4:]]


DOORS = [
    # names of files
    Door("listed pictures", _pictures(), {"train": 32, "test": 8, "shape": (3, 8, 8), "classes": ("no", "yes")}),
    Door("listed pictures with owners", _pictures(owner="site"), {"train": 33, "owners": ("N", "S")}),
    Door("listed pictures with parts", _pictures(part="fold"), {"train": 30, "test": 10}),
    Door("parts without tests", _pictures(parts=["train", "train", "val", "val"] * 10, part="fold"), {"test": 20}),
    Door("names without a suffix", _pictures([name[:-4] for name in _NAMES], suffix=".png"), {"train": 32}),
    Door("parts of no name", _pictures(parts=["train", "fold3"] * 20, part="fold"),
        refused=("part 'fold' is 'fold3' or the like in 20 of 40 rows; need train, val, test",)),
    Door("one part alone", _pictures(parts=["train"] * 40, part="fold"), refused=("40 training and 0 test rows",)),
    Door("a missing file", _pictures(_swapped("x.png")), refused=("1 of 40 names are no files of", "'x.png'")),
    Door("a doubled file", _pictures(_swapped("./2.png")), refused=("1 of 39 names are listed several", "'2.png'")),
    Door("a file outside", _pictures(_swapped("../set.csv")), refused=("1 of 40 names lead out of", "'../set.csv'")),
    Door("an absolute file", _pictures(_swapped("/etc/passwd")), refused=("lead out of",)),
    Door("a link that leads outside", _pictures(_swapped("link.png")), refused=("1 of 40 names are links out of",)),
    Door("a name that is blank", _pictures(_swapped("")), refused=("'image' lacks 1 values, the first in row 4",)),
    Door("rows without a name left out", _pictures(_swapped(""), incomplete="drop"), {"train": 31},
        notes=(("1 of 40 rows lack a value",),)),
    Door("features beside files", _pictures(features=["site"]), refused=("learns from 'image' alone",)),
    Door("listed pictures with groups", _pictures(group="site"), {"train": 26, "test": 14}),
    Door("groups in the names of files", _pictures(group={"pattern": r"(\d)\.png"}), {"train": 32}),
    Door("no column of groups", _pictures(group="person"), refused=("has no column 'person'",)),
    # texts
    Door("texts in a column", _texts(), {"train": 32, "shape": (5,), "classes": ("no", "yes")}),
    Door("texts with owners", _texts(owner="site"), {"train": 33, "owners": ("N", "S")}),
    Door("no such column of texts", _texts(text="note"), refused=("has no column 'note'",)),
    Door("a text that is blank", _texts(["", *_REVIEW[1:]]), refused=("column 'review' lacks 1 values",)),
]  # fmt: skip
