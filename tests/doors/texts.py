"""Doors: labelled texts in tab-separated files."""

import gzip
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from doors.door import Door

_WORDS = [
    "good", "bad", "film", "plot", "actor", "scene", "very", "much", "not", "love", "hate", "story", "long", "short",
    "end",
]  # fmt: skip
_HAN = "\u5929\u5730\u7384\u9ec3\u5b87\u5b99\u6d2a\u8352\u65e5\u6708\u76c8\u6603\u8fb0\u5bbf\u5217\u5f35"
_THAI = "\u0e01\u0e02\u0e04\u0e07\u0e08\u0e09\u0e0a\u0e0b\u0e0c\u0e0d"
_KANA = "\u3042\u3044\u3046\u3048\u304a\u304b\u304d\u304f\u3051\u3053"
_UNKNOWN = "of 240 tokens are not in the training texts' vocabulary"


def _texts(letters: list[str] | str, length: int, between: str = "", seed: int = 0) -> str:
    """30 lines with a label, 0 or 1, and `length` pieces drawn from `letters`."""
    draw = random.Random(seed)
    return "".join(f"{line % 2}\t{between.join(draw.choices(letters, k=length))}\n" for line in range(30))


def _files(train: str | bytes, test: str | bytes | None = None, **keys: Any) -> Callable[[Path], dict[str, Any]]:
    """A folder with both files; the same one twice without `test`."""

    def write(folder: Path) -> dict[str, Any]:
        for name, content in (("train.tsv", train), ("test.tsv", train if test is None else test)):
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return {"source": "tsv", "path": folder, "length": 20, **keys}

    return write


def _unspaced(letters: str, length: int, **keys: Any) -> Callable[[Path], dict[str, Any]]:
    return _files(_texts(letters, length), _texts(letters, length, seed=1), **keys)


def _pipe(folder: Path) -> dict[str, Any]:
    os.mkfifo(folder / "test.tsv")
    (folder / "train.tsv").write_text(_ENGLISH)
    return {"source": "tsv", "path": folder}


_ENGLISH = _texts(_WORDS, 8, " ")
_NAMED = _ENGLISH.replace("0\t", "no\t").replace("1\t", "yes\t")
_READ = {"train": 30, "test": 30, "classes": ("0", "1")}
_REFUSED = ("no spaces between words", "`tokens: characters`", "`tokens: words`")

DOORS = [
    Door("English", _files(_ENGLISH), _READ | {"range": (0.0, 16.0)}),
    # texts without spaces
    Door("Chinese", _unspaced(_HAN, 20), refused=_REFUSED),
    Door("Japanese", _unspaced(_KANA, 20), refused=_REFUSED),
    Door("Thai", _unspaced(_THAI, 20), refused=_REFUSED),
    Door("DNA", _unspaced("ACGT", 60), refused=_REFUSED),
    Door("Chinese by characters", _unspaced(_HAN, 20, tokens="characters"), _READ | {"range": (2.0, 17.0)}),
    Door("DNA by characters", _unspaced("ACGT", 60, tokens="characters"), _READ | {"range": (2.0, 5.0)}),
    Door("Chinese by words, as asked", _unspaced(_HAN, 20, tokens="words"), _READ,
        notes=(("(test)", "100 % of 30 tokens", "all tokens of 30 of 30 texts are unknown"),)),
    Door("Chinese with spaces", _files(_texts(list(_HAN), 20, " ")), _READ | {"range": (2.0, 17.0)}),
    # what texts hold
    Door("other words in the tests", _files(_ENGLISH, _texts(["uno", "due", "tre"], 8, " ")), _READ,
        notes=(("(test)", f"100 % {_UNKNOWN}", "all tokens of 30 of 30 texts"),)),
    Door("some other words in the tests", _files(_ENGLISH, _texts([*_WORDS[:5], "uno", "due", "tre"], 8, " ")), _READ,
        notes=((_UNKNOWN, "all tokens of 0 of 30 texts"),)),
    Door("texts without a word", _files(_ENGLISH + "1\t...\n0\t\n", _ENGLISH), {"train": 32},
        notes=(("(train): 2 of 32 texts hold no token",),)),
    # labels
    Door("header", _files("label\ttext\n" + _ENGLISH), refused=("train.tsv: line 1 begins with 'label'", "header")),
    Door("header of three", _files("Class\tfile\ttext\n" + _ENGLISH.replace("\t", "\tf\t")),
        refused=("'Class'", "header")),
    Door("text label twins", _files(_NAMED.replace("yes", "Yes", 5)), {"classes": ("Yes", "no", "yes")},
        notes=(("classes look alike", "'Yes' (5) and 'yes' (10)"),)),
    Door("test label twins", _files(_NAMED, _NAMED.replace("yes", "YES")),
        refused=("label 'YES' is none of", "write 'yes'")),
    Door("text label ?", _files(_ENGLISH + "?\tgood\n"), refused=("label '?' of 1 texts", "missing value")),
    Door("text label NA", _files(_ENGLISH.replace("1\t", "NA\t")), refused=("label 'NA' of 15 texts",)),
    Door("text label blank", _files(_ENGLISH + "\tgood\n"), refused=("label 30 is missing",)),
    Door("text label plus and minus", _files(_ENGLISH.replace("0\t", "-\t").replace("1\t", "+\t")),
        {"classes": ("+", "-")}),
    Door("text before label", _files("".join(f"text {n}\t1\n" for n in range(30))), refused=("takes 30 values",)),
    Door("texts of one class", _files(_ENGLISH.replace("0\t", "1\t")), {"classes": ("1",)},
        notes=(("all samples are of one class, '1'",),)),
    Door("a class without test texts", _files(_ENGLISH, "1\tgood\n"), {"test": 1},
        notes=(("(test): classes without", "(1): 0"),)),
    # the file
    Door("commas", _files(_ENGLISH.replace("\t", ",")), refused=("label<TAB>text", '`separator: ","`')),
    Door("mark in front", _files("\ufeff" + _ENGLISH), _READ),
    Door("texts in UTF-16", _files(_ENGLISH.encode("utf-16")), refused=("is NUL", "UTF-16")),
    Door("texts in Latin-1", _files((_ENGLISH + "1\tcaf\u00e9\n").encode("latin-1")), refused=("(0xe9) is not UTF-8",)),
    Door("packed texts", _files(gzip.compress(_ENGLISH.encode())), refused=("is gzip-compressed; unpack it",)),
    Door("texts with CR", _files(_ENGLISH.replace("\n", "\r")), _READ),
    Door("texts with CRLF", _files(_ENGLISH.replace("\n", "\r\n")), _READ),
    Door("a pipe of texts", _pipe, refused=("holds no test.tsv",)),
]  # fmt: skip
