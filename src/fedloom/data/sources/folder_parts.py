"""Recognition of training, validation and test folders by their names, in any usual spelling."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedloom.core.errors import DataError

_AFFIX = "set|data|dataset|imgs?|images?|pics?|pictures?|photos?|samples?|split|folder"
_PART = re.compile(
    rf"(?:{_AFFIX})?(?:(?P<train>train(?:ing)?|trn)|(?P<val>val(?:id(?:ation)?)?|dev(?:el(?:opment)?)?|eval(?:uation)?)"
    rf"|(?P<test>test(?:ing)?|tst|hold ?out))(?:{_AFFIX})?(?P<number>\d*)"
)
_FILLER_WORD = re.compile(rf"(?:{_AFFIX})s?|the|of|for|files?")

BARE_PARTS = {(part, "") for part in ("train", "val", "test")}
"""Results of `part_of` for names that consist of a part alone, such as "Train" or "test_images"."""


def part_of(folder: str) -> tuple[str, str] | None:
    """Return the part that a folder's name stands for (train, val or test) and the remaining words.

    "seg_train" gives ("train", "seg"). None for a name of no part, or of several.
    """
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", folder).casefold()
    parts, other_words = [], []
    for word in spaced.split():
        match = _PART.fullmatch(word)
        if match:
            parts += [part for part in ("train", "val", "test") if match[part]]
            other_words += [match["number"]] if match["number"] else []
        elif not _FILLER_WORD.fullmatch(word):
            other_words.append(word)
    return (parts[0], " ".join(other_words)) if len(parts) == 1 else None


def find_parts(folders: Sequence[str], top: str, origin: str) -> dict[str, str]:
    """Return the folder of each part if there are training and test (or validation) folders named alike; else {}.

    Numbers must agree ("train_1" beside "test_1"), unless no pair of folders agrees ("train2017" beside "val2014").
    Raises `DataError` for two training folders, or two test folders.

    Args:
        folders: names of the folders side by side.
        top: prefix of the folder around them, for messages.
        origin: name of the set in messages.
    """
    for ignored in ("", r"\d"):
        folders_by_words: dict[str, dict[str, list[str]]] = {}
        for folder in folders:
            match = part_of(folder)
            if match is not None:
                other_words = re.sub(ignored, "", match[1]).strip() if ignored else match[1]
                folders_by_words.setdefault(other_words, {}).setdefault(match[0], []).append(folder)
        complete = [parts for parts in folders_by_words.values() if "train" in parts and len(parts) > 1]
        if complete:
            break
    else:
        return {}
    train_folders = [folder for parts in complete for folder in parts["train"]]
    repeated = next((same_part for same_part in complete[0].values() if len(same_part) > 1), [])
    ambiguous = train_folders if len(train_folders) > 1 else repeated
    if ambiguous:
        raise DataError(
            f"{origin}: {' and '.join(f'{top}{name}/' for name in ambiguous[:3])} may all be the same part; leave one"
        )
    return {part: same_part[0] for part, same_part in complete[0].items()}


def refuse_unclear_parts(folders: Sequence[str], below: Sequence[str], top: str, origin: str) -> None:
    """Raise `DataError` if all folders are parts, but one part is missing or their names belong to different sets.

    A class may be called "train" if it holds pictures, as the other classes do.

    Args:
        folders: names of the folders side by side.
        below: names of the pictures, relative to `top`.
        top: prefix of the folder around them, for messages.
        origin: name of the set in messages.
    """
    matches = [part_of(folder) for folder in folders]
    parts = {match[0] for match in matches if match is not None}
    if all(matches) and "train" in parts and len(parts) > 1:
        examples = ", ".join(f"{top}{folder}/" for folder in folders[:3])
        raise DataError(f"{origin}: {examples} look like parts of different sets; call them train and test")
    part_folders = {
        folder: match[0] for folder, match in zip(folders, matches, strict=True) if match in BARE_PARTS and match
    }
    folders_with_pictures = {name.partition("/")[0] for name in below if name.count("/") == 1}
    class_folders = folders_with_pictures - set(part_folders)
    if not part_folders or class_folders or (len(folders) > 1 and folders_with_pictures & set(part_folders)):
        return
    folder, part = next(iter(part_folders.items()))
    missing = f"{top}val/ or {top}test/" if part == "train" else f"{top}train/"
    raise DataError(f"{origin}: {top}{folder}/ is one part; there are no pictures in class folders below {missing}")


def find_parts_below_classes(below: Sequence[str], top: str, origin: str) -> dict[str, str]:
    """Return the part of each folder name if every class folder holds training and test folders; else {}.

    Raises `DataError` if only some pictures lie in such folders, and if these hold class folders themselves.

    Args:
        below: names of the pictures, relative to `top`.
        top: prefix of the folder around the class folders, for messages.
        origin: name of the set in messages.
    """
    parts: dict[str, str] = {}
    subfolders: dict[str, set[str]] = {}
    picture_outside = ""
    for name in below:
        class_folder, *folders = name.split("/")[:-1] or [""]
        match = part_of(folders[0]) if folders else None
        if match in BARE_PARTS and match is not None:
            parts[folders[0]] = match[0]
            subfolders.setdefault(class_folder, set()).update(folders[1:2])
        elif class_folder:
            picture_outside = picture_outside or name
    if "train" not in parts.values() or len(set(parts.values())) < 2:
        return {}
    if picture_outside:
        raise DataError(
            f"{origin}: class folders hold parts ({', '.join(sorted(parts))}), but {top}{picture_outside} lies in "
            "none; put it into one of them"
        )
    shared = sorted(set.intersection(*subfolders.values()))
    if len(subfolders) > 1 and len(shared) > 1:
        class_folders = " and ".join(f"{top}{folder}/" for folder in sorted(subfolders)[:2])
        raise DataError(
            f"{origin}: {class_folders} hold parts with the same folders ({', '.join(shared[:3])}), as separate sets "
            "do; give the path of one, or use the source domains"
        )
    return parts
