"""Which folders are for training, validation and tests, by their names in any usual spelling."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedloom.core.errors import DataError

_GLUED = "set|data|dataset|imgs?|images?|pics?|pictures?|photos?|samples?|split|folder"
_PART = re.compile(
    rf"(?:{_GLUED})?(?:(?P<train>train(?:ing)?|trn)|(?P<val>val(?:id(?:ation)?)?|dev(?:el(?:opment)?)?|eval(?:uation)?)"
    rf"|(?P<test>test(?:ing)?|tst|hold ?out))(?:{_GLUED})?(?P<number>\d*)"
)
_FILLER = re.compile(rf"(?:{_GLUED})s?|the|of|for|files?")

BARE_PARTS = {(part, "") for part in ("train", "val", "test")}
"""What `part_of` returns for names that stand for a part and nothing more."""


def part_of(folder: str) -> tuple[str, str] | None:
    """Which part a folder's name stands for (train, val or test), and the remaining words: "seg_train" gives
    ("train", "seg"). None for a name that stands for no part, or for several.
    """
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", folder).casefold()
    parts, rest = [], []
    for word in spaced.split():
        match = _PART.fullmatch(word)
        if match:
            parts += [part for part in ("train", "val", "test") if match[part]]
            rest += [match["number"]] if match["number"] else []
        elif not _FILLER.fullmatch(word):
            rest.append(word)
    return (parts[0], " ".join(rest)) if len(parts) == 1 else None


def find_parts(folders: Sequence[str], top: str, origin: str) -> dict[str, str]:
    """Folder by part where there are training and test (or validation) folders of one naming; else nothing.

    Numbers count ("train_1" beside "test_1") unless no naming is whole with them ("train2017" beside "val2014"). `top`
    is the folder around them, for messages. Raises `DataError` for two training folders, or two test folders.
    """
    for pattern in ("", r"\d"):
        namings: dict[str, dict[str, list[str]]] = {}
        for folder in folders:
            match = part_of(folder)
            if match is not None:
                naming = re.sub(pattern, "", match[1]).strip() if pattern else match[1]
                namings.setdefault(naming, {}).setdefault(match[0], []).append(folder)
        whole = [parts for parts in namings.values() if "train" in parts and len(parts) > 1]
        if whole:
            break
    else:
        return {}
    trains = [folder for parts in whole for folder in parts["train"]]
    twice = trains if len(trains) > 1 else next((same for same in whole[0].values() if len(same) > 1), [])
    if twice:
        raise DataError(
            f"{origin}: {' and '.join(f'{top}{folder}/' for folder in twice[:3])} may all be the same part; leave one"
        )
    return {part: same[0] for part, same in whole[0].items()}


def refuse_unclear_parts(folders: Sequence[str], below: Sequence[str], top: str, origin: str) -> None:
    """Raises `DataError` where all folders are parts, but are not those of one set: a training or test part is missing,
    or names differ. A class may be called "train" if it holds pictures, as the other classes do.
    """
    matches = [part_of(folder) for folder in folders]
    parts = {match[0] for match in matches if match is not None}
    if all(matches) and "train" in parts and len(parts) > 1:
        shown = ", ".join(f"{top}{folder}/" for folder in folders[:3])
        raise DataError(f"{origin}: {shown} look like parts of different sets; call them train and test")
    bare = {folder: match[0] for folder, match in zip(folders, matches, strict=True) if match in BARE_PARTS and match}
    direct = {name.partition("/")[0] for name in below if name.count("/") == 1}
    if not bare or (direct - set(bare)) or (len(folders) > 1 and direct & set(bare)):
        return
    folder, part = next(iter(bare.items()))
    lacking = f"{top}val/ or {top}test/" if part == "train" else f"{top}train/"
    raise DataError(f"{origin}: {top}{folder}/ is one part; there are no pictures in class folders below {lacking}")


def find_parts_below_classes(below: Sequence[str], top: str, origin: str) -> dict[str, str]:
    """Part by folder name where each class folder holds training and test folders; else nothing.

    Raises `DataError` where only some pictures lie in such folders, and where these hold class folders of their own.
    """
    parts: dict[str, str] = {}
    inner: dict[str, set[str]] = {}
    outside = ""
    for name in below:
        around, *folders = name.split("/")[:-1] or [""]
        match = part_of(folders[0]) if folders else None
        if match in BARE_PARTS and match is not None:
            parts[folders[0]] = match[0]
            inner.setdefault(around, set()).update(folders[1:2])
        elif around:
            outside = outside or name
    if "train" not in parts.values() or len(set(parts.values())) < 2:
        return {}
    if outside:
        raise DataError(
            f"{origin}: class folders hold parts ({', '.join(sorted(parts))}), but {top}{outside} lies in none; put it "
            "into one of them"
        )
    shared = sorted(set.intersection(*inner.values()))
    if len(inner) > 1 and len(shared) > 1:
        raise DataError(
            f"{origin}: {' and '.join(f'{top}{folder}/' for folder in sorted(inner)[:2])} hold parts with the same "
            f"folders ({', '.join(shared[:3])}), as sets of their own do; give the path of one, or the source domains"
        )
    return parts
