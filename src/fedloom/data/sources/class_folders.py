"""Pictures of a folder by class and part. Training and test folders are recognised in any usual spelling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from fedloom.core.errors import DataError, printable
from fedloom.data.labels import missing_marks
from fedloom.data.near_twins import twins_note
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
_SHOWN_NAMES = 5  # folders and classes in a note


@dataclass(frozen=True, slots=True)
class ClassFolders:
    """The pictures of each part, with notes on files that are not read. test: None without test pictures."""

    train: LabelledFiles
    test: LabelledFiles | None
    classes: tuple[str, ...]
    notes: tuple[str, ...]


def find_class_folders(names: Sequence[str], classes: Sequence[str] | None, origin: str) -> ClassFolders:
    """Find the pictures among file names in one of three layouts, below any number of folders around all of them.

    The layouts are <part>/<class>/*, <class>/<part>/* and <class>/*. Parts are folders for training, tests or
    validation in any usual spelling ("Train", "testing", "val_images", "Training Set", "seg_train" beside "seg_test").
    Without a test folder, validation pictures are the test set. Parts match their classes by name.

    Args:
        names: names of all files, with / between folders.
        classes: allowed names of class folders, in the order of their labels; None takes all folders, sorted.
        origin: name of the set in messages.

    Raises `DataError` for a single class, for a class that only the test part has, for unclear parts, and for folders
    that all hold class folders of the same names.
    """
    pictures = [name for name in names if is_image(name)]
    top = _common_folders(pictures)
    below = {name: name[len(top) :] for name in pictures if name.startswith(top)}
    folders = sorted({name.partition("/")[0] for name in below.values() if "/" in name})
    if not pictures and names:
        raise DataError(f"{origin}: no pictures in class folders; {'; '.join(_unread_notes(names, set(), '', ()))}")
    part_folders = find_parts(folders, top, origin)
    test: LabelledFiles | None = None
    if part_folders:
        train_folder = f"{top}{part_folders['train']}"
        test_folder = f"{top}{_choose_test_folder(part_folders, list(below.values()))}"
        train, class_names, train_root = _classes_below(pictures, train_folder, classes, origin, wrapped=True)
        _refuse_nested_classes([name for name, _ in train], train_root, classes, origin)
        test, _, test_root = _classes_below(pictures, test_folder, class_names, origin, wrapped=True)
        roots = [train_root, test_root]
    else:
        refuse_unclear_parts(folders, list(below.values()), top, origin)
        parts = find_parts_below_classes(list(below.values()), top, origin)
        train, class_names, root = _classes_below(pictures, top.rstrip("/"), classes, origin, wrapped=False)
        roots = [root]
        if not parts:
            _refuse_nested_classes([name for name, _ in train], root, classes, origin)
        else:
            test_part = "test" if "test" in parts.values() else "val"
            part_by_name = {name: parts[below[name].split("/")[1]] for name, _ in train}
            train, test = (
                [(name, label) for name, label in train if part_by_name[name] == part] for part in ("train", test_part)
            )
    if len(class_names) == 1:
        raise DataError(
            f"{origin}: all pictures are of one class, '{class_names[0]}'; need folders of two classes or more"
        )
    used = {name for name, _ in (*train, *(test or ()))}
    return ClassFolders(train, test, tuple(class_names), _unread_notes(names, used, top, roots))


def _choose_test_folder(part_folders: dict[str, str], below: Sequence[str]) -> str:
    """The test folder, or the validation folder where test pictures are missing or lie in no class folders."""
    candidates = [part_folders[part] for part in ("test", "val") if part in part_folders]
    with_classes = [folder for folder in candidates if any(_has_subfolder(name, f"{folder}/") for name in below)]
    return (with_classes or candidates)[0]


def list_classes(
    names: Iterable[str], below: str, classes: Sequence[str] | None, origin: str
) -> tuple[LabelledFiles, list[str]]:
    """List the pictures in class folders at any depth, and the class names.

    Args:
        names: names of all files, with / between folders.
        below: the folder around the class folders; "" for the top.
        classes: as for `find_class_folders`.
        origin: name of the set in messages.
    """
    labelled, class_names, _ = _classes_below(names, below, classes, origin, wrapped=False)
    return labelled, class_names


def _classes_below(
    names: Iterable[str], below: str, classes: Sequence[str] | None, origin: str, *, wrapped: bool
) -> tuple[LabelledFiles, list[str], str]:
    """`list_classes`, and the folder around the class folders as a prefix.

    wrapped: a single folder around all class folders is no class, unless `classes` has its name.
    """
    prefix = f"{below}/" if below else ""
    pictures = [name for name in names if _has_subfolder(name, prefix) and is_image(name)]
    if wrapped:
        prefix += _common_folders([name[len(prefix) :] for name in pictures], except_for=classes or ())
        pictures = [name for name in pictures if _has_subfolder(name, prefix)]
    folders = [name[len(prefix) :].partition("/")[0] for name in pictures]
    folder_names = sorted(set(folders))
    if not folder_names:
        raise DataError(f"{origin}: no pictures in class folders{f' below {below}/' if below else ''}")
    not_utf8 = next((name for name in folder_names if any("\udc80" <= sign <= "\udcff" for sign in name)), None)
    if not_utf8 is not None:
        raise DataError(f"{origin}: the name of class folder '{printable(not_utf8)}' is not UTF-8; rename it")
    if classes is not None and set(folder_names) - set(classes):
        unknown = sorted(set(folder_names) - set(classes))[0]
        raise DataError(f"{origin}: class folder '{prefix}{unknown}' is none of the classes {', '.join(classes)[:200]}")
    class_names = list(folder_names if classes is None else classes)
    label_of = {name: label for label, name in enumerate(class_names)}
    labelled = [(name, label_of[folder]) for name, folder in zip(pictures, folders, strict=True)]
    return labelled, class_names, prefix


def missing_classes(
    train: LabelledFiles, test: LabelledFiles, classes: Sequence[str], suffix: str = ""
) -> tuple[str, ...]:
    """Return one note for each part that lacks pictures of some classes.

    Args:
        train: names and labels of the training pictures.
        test: names and labels of the test pictures.
        classes: names of the C classes.
        suffix: words after the part's name.
    """
    notes = []
    for part, labelled in (("training", train), ("test", test)):
        present = {label for _, label in labelled}
        absent = [name for label, name in enumerate(classes) if label not in present]
        if absent:
            notes.append(f"no {part} pictures{suffix} of {_shortened(absent)}: {len(absent)} of {len(classes)} classes")
    return tuple(notes)


def class_name_notes(train: LabelledFiles, test: LabelledFiles, classes: Sequence[str], origin: str) -> tuple[str, ...]:
    """Return notes on class folders that look alike, or whose names usually stand for a missing value.

    Args:
        train: names and labels of the training pictures.
        test: names and labels of the test pictures.
        classes: names of the C classes.
        origin: name of the set in messages.
    """
    of_label = Counter(label for _, label in (*train, *test))
    counts = {name: of_label[label] for label, name in enumerate(classes)}
    marks = missing_marks(counts)
    notes = twins_note(origin, "classes", counts)
    if marks:
        pictures = sum(counts[mark] for mark in marks)
        notes.append(
            f"{origin}: class folders with names that usually stand for a missing value: {_shortened(marks)} "
            f"({pictures:,} pictures); leave them out if these pictures have no class"
        )
    return tuple(notes)


def _refuse_nested_classes(pictures: Sequence[str], root: str, classes: Sequence[str] | None, origin: str) -> None:
    """Raise `DataError` if the folders below `root` hold no pictures themselves, but folders of the same names.

    These may be hospitals that hold the classes, or classes that hold hospitals. `classes` says which ones they are.
    """
    paths = [name[len(root) :].split("/") for name in pictures]
    if classes is not None or any(len(path) < 3 for path in paths):
        return
    tops = sorted({path[0] for path in paths})
    holders = Counter(inner for _, inner in {(path[0], path[1]) for path in paths})
    shared = sorted(inner for inner, count in holders.items() if 2 * count > len(tops))
    if len(tops) > 1 and len(shared) > 1:
        outer, inner = _shortened([f"{root}{top}/" for top in tops]), _shortened(shared)
        raise DataError(
            f"{origin}: {outer} hold the same folders ({inner}); if these are the classes, give the path of one of the "
            f"outer folders, or name each as a part of the source domains; if the outer folders are the classes, put "
            "the pictures directly into them"
        )


def _has_subfolder(name: str, prefix: str) -> bool:
    """Whether a file lies in a folder below `prefix`."""
    return name.startswith(prefix) and "/" in name[len(prefix) :]


def _common_folders(pictures: Sequence[str], except_for: Sequence[str] = ()) -> str:
    """The folders around all class folders, as a prefix ("data/images/"), up to one of the names `except_for`."""
    prefix = ""
    while True:
        paths = [name[len(prefix) :].split("/") for name in pictures if name.startswith(prefix)]
        folders = {path[0] for path in paths if len(path) > 1}
        folder = next(iter(folders), "")
        if len(folders) != 1 or folder in except_for or part_of(folder) in BARE_PARTS:
            return prefix
        if any(len(path) == 2 for path in paths):  # it holds pictures: it is a class folder
            return prefix
        prefix += f"{folder}/"


def _unread_notes(names: Sequence[str], used: set[str], top: str, roots: Sequence[str]) -> tuple[str, ...]:
    """Notes on files that are not read: pictures by folder, other files by suffix, and folders without a picture
    beside the class folders (below one of `roots`).
    """
    unread = [name for name in names if name not in used and name.rpartition("/")[2].lower() not in _SYSTEM_FILES]
    pictures = [name for name in unread if is_image(name)]
    suffixes = Counter(
        PurePosixPath(name).suffix.lower() or "without a suffix" for name in unread if not is_image(name)
    )
    notes = []
    if pictures:
        by_folder = Counter(f"{name.removeprefix(top).rpartition('/')[0].partition('/')[0]}/" for name in pictures)
        counts = _shortened([f"{count:,} in {folder}" for folder, count in by_folder.most_common()])
        notes.append(f"pictures outside the class folders that are read: {len(pictures):,} ({counts})")
    if suffixes:
        counts = _shortened([f"{count:,} {suffix}" for suffix, count in suffixes.most_common()])
        notes.append(f"files that are no pictures of a format that is read: {sum(suffixes.values()):,} ({counts})")
    empty = sorted(_subfolders(unread, roots) - _subfolders(used, roots)) if suffixes else []
    if empty:
        notes.append(
            f"folders beside the classes without a picture that is read, which are no classes: {_shortened(empty)}"
        )
    return tuple(notes)


def _subfolders(names: Iterable[str], roots: Sequence[str]) -> set[str]:
    """The folders directly below `roots` that hold one of the files."""
    return {
        root + name[len(root) :].partition("/")[0] for root in roots for name in names if _has_subfolder(name, root)
    }


def _shortened(names: Sequence[str]) -> str:
    listed = ", ".join(printable(name) for name in names[:_SHOWN_NAMES])
    return listed if len(names) <= _SHOWN_NAMES else f"{listed}, and {len(names) - _SHOWN_NAMES} more"
