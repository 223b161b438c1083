"""Which pictures of a folder are of which class and part: training and test folders in all usual spellings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from fedloom.core.errors import DataError
from fedloom.data.sources.images import is_image
from fedloom.data.sources.regular_files import printable

Listed = list[tuple[str, int]]
"""File names with their labels."""

_GLUED = "set|data|dataset|imgs?|images?|pics?|pictures?|photos?|samples?|split|folder"
_PART = re.compile(
    rf"(?:{_GLUED})?(?:(?P<train>train(?:ing)?|trn)|(?P<val>val(?:id(?:ation)?)?|dev(?:el(?:opment)?)?|eval(?:uation)?)"
    rf"|(?P<test>test(?:ing)?|tst|hold ?out))(?:{_GLUED})?(?P<number>\d*)"
)
_FILLER = re.compile(rf"(?:{_GLUED})s?|the|of|for|files?")
_SYSTEM_FILES = {"thumbs.db", "ehthumbs.db", "desktop.ini"}
_NAMED = 5  # folders and classes that a note names


@dataclass(frozen=True, slots=True)
class ClassFolders:
    """The pictures of a set by part. test: None where no folder holds test pictures. notes: what is left out."""

    train: Listed
    test: Listed | None
    classes: tuple[str, ...]
    notes: tuple[str, ...]


def find_class_folders(names: Sequence[str], classes: Sequence[str] | None, origin: str) -> ClassFolders:
    """The pictures among `names` in one of three layouts, below any number of folders around all of them.

    <part>/<class>/*, <class>/<part>/* and <class>/*: parts are folders for training, and for tests or validation, in
    any usual spelling ("Train", "testing", "val_images", "Training Set", "seg_train" beside "seg_test"). Validation
    pictures are the test set where there is no test folder. Classes are the sorted folder names, matched by name
    between parts; where `classes` is given, folders must be among these. Raises `DataError` for a single class, a class
    that only the test part has, and for parts that are not clear.
    """
    pictures = [name for name in names if is_image(name)]
    top = _wrapping(pictures)
    below = {name: name[len(top) :] for name in pictures if name.startswith(top)}
    folders = sorted({name.partition("/")[0] for name in below.values() if "/" in name})
    parts = _parts(folders, top, origin)
    if not parts:
        _refuse_lone_part(folders, list(below.values()), top, origin)
        parts_below = _parts_below_classes(list(below.values()), top, origin)
    if parts:
        chosen = "test" if "test" in parts else "val"
        train, known, train_root = _classes_below(pictures, f"{top}{parts['train']}", classes, origin, True)
        test, _, test_root = _classes_below(pictures, f"{top}{parts[chosen]}", known, origin, True)
        roots = [train_root, test_root]
    else:
        listed, known, root = _classes_below(pictures, top.rstrip("/"), classes, origin, False)
        roots = [root]
        if parts_below:
            chosen = "test" if "test" in parts_below.values() else "val"
            by_part = {name: parts_below[below[name].split("/")[1]] for name, _ in listed}
            train, test = ([item for item in listed if by_part[item[0]] == part] for part in ("train", chosen))
        else:
            train, test = listed, None
    if len(known) == 1:
        raise DataError(
            f"{origin}: all pictures are of one class, '{known[0]}'; need a folder for each of two classes or more"
        )
    used = {name for name, _ in (*train, *(test or ()))}
    return ClassFolders(train, test, tuple(known), _left_out(names, used, top, roots))


def list_classes(
    names: Iterable[str], below: str, classes: Sequence[str] | None, origin: str
) -> tuple[Listed, list[str]]:
    """The pictures in class folders below the folder `below` ("" for the top), at any depth, and the class names.

    Classes are the sorted folder names; where `classes` is given, the folders must be among these, and their order
    counts.
    """
    listed, known, _ = _classes_below(names, below, classes, origin, False)
    return listed, known


def _classes_below(
    names: Iterable[str], below: str, classes: Sequence[str] | None, origin: str, wrapped: bool
) -> tuple[Listed, list[str], str]:
    """`list_classes`, and the folder around the class folders as a prefix.

    wrapped: a single folder around all class folders is no class, unless `classes` has its name.
    """
    prefix = f"{below}/" if below else ""
    members = [name for name in names if name.startswith(prefix) and "/" in name[len(prefix) :] and is_image(name)]
    if wrapped:
        prefix += _wrapping([name[len(prefix) :] for name in members], keep=() if classes is None else classes)
        members = [name for name in members if name.startswith(prefix) and "/" in name[len(prefix) :]]
    folders = [name[len(prefix) :].partition("/")[0] for name in members]
    present = sorted(set(folders))
    if not present:
        raise DataError(f"{origin}: no pictures in class folders{f' below {below}/' if below else ''}")
    unreadable = next((name for name in present if printable(name) != name), None)
    if unreadable is not None:
        raise DataError(f"{origin}: the name of class folder '{printable(unreadable)}' is not UTF-8; rename it")
    if classes is not None and set(present) - set(classes):
        unknown = sorted(set(present) - set(classes))[0]
        raise DataError(f"{origin}: class folder '{prefix}{unknown}' is none of the classes {', '.join(classes)[:200]}")
    known = list(present if classes is None else classes)
    label = {name: c for c, name in enumerate(known)}
    return [(name, label[folder]) for name, folder in zip(members, folders, strict=True)], known, prefix


def missing_classes(train: Listed, test: Listed, classes: Sequence[str], where: str = "") -> tuple[str, ...]:
    """One note for each part that lacks pictures of some classes. where: what the note says behind the part."""
    notes = []
    for kind, listed in (("training", train), ("test", test)):
        present = {label for _, label in listed}
        absent = [name for label, name in enumerate(classes) if label not in present]
        if absent:
            notes.append(f"no {kind} pictures{where} of {_shown(absent)}: {len(absent)} of {len(classes)} classes")
    return tuple(notes)


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


def _wrapping(pictures: Sequence[str], keep: Sequence[str] = ()) -> str:
    """The folders around all class folders, as a prefix ("data/images/"); names in `keep` are none of them."""
    prefix = ""
    while True:
        inside = [name[len(prefix) :].split("/") for name in pictures if name.startswith(prefix)]
        tops = {parts[0] for parts in inside if len(parts) > 1}
        folder = next(iter(tops), "")
        if len(tops) != 1 or folder in keep or part_of(folder) in _BARE_PARTS:
            return prefix
        if any(len(parts) == 2 for parts in inside):  # pictures lie in it: it is a class folder
            return prefix
        prefix += f"{folder}/"


_BARE_PARTS = {(part, "") for part in ("train", "val", "test")}


def _parts(folders: Sequence[str], top: str, origin: str) -> dict[str, str]:
    """Folder by part where there are training and test (or validation) folders of one naming; else nothing."""
    namings: dict[str, dict[str, list[str]]] = {}
    for folder in folders:
        match = part_of(folder)
        if match is not None:
            namings.setdefault(match[1], {}).setdefault(match[0], []).append(folder)
    whole = [parts for parts in namings.values() if "train" in parts and len(parts) > 1]
    if not whole:
        return {}
    trains = [folder for parts in whole for folder in parts["train"]]
    twice = trains if len(trains) > 1 else next((same for same in whole[0].values() if len(same) > 1), [])
    if twice:
        raise DataError(
            f"{origin}: {' and '.join(f'{top}{folder}/' for folder in twice[:3])} may all be the same part; leave one"
        )
    return {part: same[0] for part, same in whole[0].items()}


def _refuse_lone_part(folders: Sequence[str], below: Sequence[str], top: str, origin: str) -> None:
    """Raises `DataError` where folders are parts, and training or test pictures are missing."""
    bare = {folder: match[0] for folder in folders if (match := part_of(folder)) in _BARE_PARTS and match is not None}
    direct = {name.partition("/")[0] for name in below if name.count("/") == 1}
    if not bare or (direct - set(bare)) or (len(folders) > 1 and direct & set(bare)):
        return  # a class may be called "train": it holds pictures, as the other classes do
    folder, part = next(iter(bare.items()))
    lacking = f"{top}val/ or {top}test/" if part == "train" else f"{top}train/"
    raise DataError(f"{origin}: {top}{folder}/ is one part; there are no pictures in class folders below {lacking}")


def _parts_below_classes(below: Sequence[str], top: str, origin: str) -> dict[str, str]:
    """Part by folder name where each class folder holds training and test folders; else nothing."""
    seconds: dict[str, str] = {}
    outside = ""
    for name in below:
        folders = name.split("/")[1:-1]
        match = part_of(folders[0]) if folders else None
        if match in _BARE_PARTS and match is not None:
            seconds[folders[0]] = match[0]
        elif "/" in name:
            outside = outside or name
    if "train" not in seconds.values() or len(set(seconds.values())) < 2:
        return {}
    if outside:
        raise DataError(
            f"{origin}: class folders hold parts ({', '.join(sorted(seconds))}), but {top}{outside} lies in none; put "
            "it into one of them"
        )
    return seconds


def _left_out(names: Sequence[str], used: set[str], top: str, roots: Sequence[str]) -> tuple[str, ...]:
    """Notes on the files that are not read: pictures by folder, other files by suffix, and folders beside the class
    folders (below one of `roots`) that hold no picture.
    """
    rest = [name for name in names if name not in used and name.rpartition("/")[2].lower() not in _SYSTEM_FILES]
    pictures = [name for name in rest if is_image(name)]
    others = Counter(PurePosixPath(name).suffix.lower() or "without a suffix" for name in rest if not is_image(name))
    notes = []
    if pictures:
        by_folder = Counter(f"{name.removeprefix(top).rpartition('/')[0].partition('/')[0]}/" for name in pictures)
        shown = _shown([f"{count:,} in {folder}" for folder, count in by_folder.most_common()])
        notes.append(f"pictures outside the class folders that are read: {len(pictures):,} ({shown})")
    if others:
        shown = _shown([f"{count:,} {suffix}" for suffix, count in others.most_common()])
        notes.append(f"files that are no pictures of a format that is read: {sum(others.values()):,} ({shown})")
    folders = [
        {
            root + name[len(root) :].partition("/")[0]
            for name in listed
            if name.startswith(root) and "/" in name[len(root) :]
        }
        for root in roots
        for listed in (rest, used)
    ]
    empty = sorted(set().union(*folders[::2]) - set().union(*folders[1::2])) if others else []
    if empty:
        notes.append(
            f"folders beside the classes without a picture that is read, which are no classes: {_shown(empty)}"
        )
    return tuple(notes)


def _shown(words: Sequence[str]) -> str:
    listed = ", ".join(printable(word) for word in words[:_NAMED])
    return listed if len(words) <= _NAMED else f"{listed}, and {len(words) - _NAMED} more"
