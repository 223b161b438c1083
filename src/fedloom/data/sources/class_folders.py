"""Which pictures of a folder are of which class and part: training and test folders in all usual spellings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from fedloom.core.errors import DataError, printable
from fedloom.data.sources.folder_parts import (
    BARE_PARTS,
    find_parts,
    find_parts_below_classes,
    part_of,
    refuse_unclear_parts,
)
from fedloom.data.sources.images import is_image

LabelledFiles = list[tuple[str, int]]
"""File names with their labels."""

_SYSTEM_FILES = {"thumbs.db", "ehthumbs.db", "desktop.ini"}
_NAMED = 5  # folders and classes that a note names


@dataclass(frozen=True, slots=True)
class ClassFolders:
    """The pictures of a set by part. test: None where no folder holds test pictures. notes: what is left out."""

    train: LabelledFiles
    test: LabelledFiles | None
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
    if not pictures and names:
        raise DataError(f"{origin}: no pictures in class folders; {'; '.join(_left_out(names, set(), '', ()))}")
    parts = find_parts(folders, top, origin)
    if not parts:
        refuse_unclear_parts(folders, list(below.values()), top, origin)
        parts_below = find_parts_below_classes(list(below.values()), top, origin)
    if parts:
        tested = [part for part in ("test", "val") if part in parts]  # test pictures may lack classes: then it is val
        with_classes = [part for part in tested if any(_is_inside(name, f"{parts[part]}/") for name in below.values())]
        chosen = (with_classes or tested)[0]
        train, class_names, train_root = _classes_below(pictures, f"{top}{parts['train']}", classes, origin, True)
        test, _, test_root = _classes_below(pictures, f"{top}{parts[chosen]}", class_names, origin, True)
        roots = [train_root, test_root]
    else:
        listed, class_names, root = _classes_below(pictures, top.rstrip("/"), classes, origin, False)
        roots = [root]
        if parts_below:
            chosen = "test" if "test" in parts_below.values() else "val"
            by_part = {name: parts_below[below[name].split("/")[1]] for name, _ in listed}
            train, test = ([item for item in listed if by_part[item[0]] == part] for part in ("train", chosen))
        else:
            train, test = listed, None
    if len(class_names) == 1:
        raise DataError(
            f"{origin}: all pictures are of one class, '{class_names[0]}'; need folders of two classes or more"
        )
    used = {name for name, _ in (*train, *(test or ()))}
    return ClassFolders(train, test, tuple(class_names), _left_out(names, used, top, roots))


def list_classes(
    names: Iterable[str], below: str, classes: Sequence[str] | None, origin: str
) -> tuple[LabelledFiles, list[str]]:
    """The pictures in class folders below the folder `below` ("" for the top), at any depth, and the class names.

    Classes are the sorted folder names; where `classes` is given, the folders must be among these, and their order
    counts.
    """
    listed, class_names, _ = _classes_below(names, below, classes, origin, False)
    return listed, class_names


def _classes_below(
    names: Iterable[str], below: str, classes: Sequence[str] | None, origin: str, wrapped: bool
) -> tuple[LabelledFiles, list[str], str]:
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
    unreadable = next((name for name in present if any("\udc80" <= sign <= "\udcff" for sign in name)), None)
    if unreadable is not None:
        raise DataError(f"{origin}: the name of class folder '{printable(unreadable)}' is not UTF-8; rename it")
    if classes is not None and set(present) - set(classes):
        unknown = sorted(set(present) - set(classes))[0]
        raise DataError(f"{origin}: class folder '{prefix}{unknown}' is none of the classes {', '.join(classes)[:200]}")
    class_names = list(present if classes is None else classes)
    label = {name: c for c, name in enumerate(class_names)}
    return [(name, label[folder]) for name, folder in zip(members, folders, strict=True)], class_names, prefix


def missing_classes(
    train: LabelledFiles, test: LabelledFiles, classes: Sequence[str], where: str = ""
) -> tuple[str, ...]:
    """One note for each part that lacks pictures of some classes. where: what the note says behind the part."""
    notes = []
    for kind, listed in (("training", train), ("test", test)):
        present = {label for _, label in listed}
        absent = [name for label, name in enumerate(classes) if label not in present]
        if absent:
            notes.append(f"no {kind} pictures{where} of {_shown(absent)}: {len(absent)} of {len(classes)} classes")
    return tuple(notes)


def _is_inside(name: str, folder: str) -> bool:
    """Whether a file lies in a folder below `folder`."""
    return name.startswith(folder) and "/" in name[len(folder) :]


def _wrapping(pictures: Sequence[str], keep: Sequence[str] = ()) -> str:
    """The folders around all class folders, as a prefix ("data/images/"); names in `keep` are none of them."""
    prefix = ""
    while True:
        inside = [name[len(prefix) :].split("/") for name in pictures if name.startswith(prefix)]
        tops = {parts[0] for parts in inside if len(parts) > 1}
        folder = next(iter(tops), "")
        if len(tops) != 1 or folder in keep or part_of(folder) in BARE_PARTS:
            return prefix
        if any(len(parts) == 2 for parts in inside):  # pictures lie in it: it is a class folder
            return prefix
        prefix += f"{folder}/"


def _left_out(names: Sequence[str], used: set[str], top: str, roots: Sequence[str]) -> tuple[str, ...]:
    """Notes on the files that are not read: pictures by folder, other files by suffix, and folders beside the class
    folders (below one of `roots`) that hold no picture.
    """
    rest = [name for name in names if name not in used and name.rpartition("/")[2].lower() not in _SYSTEM_FILES]
    pictures = [name for name in rest if is_image(name)]
    unread_suffixes = Counter(
        PurePosixPath(name).suffix.lower() or "without a suffix" for name in rest if not is_image(name)
    )
    notes = []
    if pictures:
        by_folder = Counter(f"{name.removeprefix(top).rpartition('/')[0].partition('/')[0]}/" for name in pictures)
        shown = _shown([f"{count:,} in {folder}" for folder, count in by_folder.most_common()])
        notes.append(f"pictures outside the class folders that are read: {len(pictures):,} ({shown})")
    if unread_suffixes:
        shown = _shown([f"{count:,} {suffix}" for suffix, count in unread_suffixes.most_common()])
        notes.append(
            f"files that are no pictures of a format that is read: {sum(unread_suffixes.values()):,} ({shown})"
        )
    folders = [
        {
            root + name[len(root) :].partition("/")[0]
            for name in listed
            if name.startswith(root) and "/" in name[len(root) :]
        }
        for root in roots
        for listed in (rest, used)
    ]
    empty = sorted(set().union(*folders[::2]) - set().union(*folders[1::2])) if unread_suffixes else []
    if empty:
        notes.append(
            f"folders beside the classes without a picture that is read, which are no classes: {_shown(empty)}"
        )
    return tuple(notes)


def _shown(words: Sequence[str]) -> str:
    listed = ", ".join(printable(word) for word in words[:_NAMED])
    return listed if len(words) <= _NAMED else f"{listed}, and {len(words) - _NAMED} more"
