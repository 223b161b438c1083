"""Pictures in class folders, with training, validation and test folders in any usual spelling."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from statistics import median

from fedloom.core.errors import DataError, printable
from fedloom.data.findings import LEAK, DataFinding
from fedloom.data.labels import GROUP_NAME, missing_marks, twins_note
from fedloom.data.sources.files import Files
from fedloom.data.sources.pixels import is_image, picture_names

_AFFIX = "set|data|dataset|imgs?|images?|pics?|pictures?|photos?|samples?|split|folder"
_PART = re.compile(
    rf"(?:{_AFFIX})?(?:(?P<train>train(?:ing)?|trn)|(?P<val>val(?:id(?:ation)?)?|dev(?:el(?:opment)?)?|eval(?:uation)?)"
    rf"|(?P<test>test(?:ing)?|tst|hold ?out))(?:{_AFFIX})?(?P<number>\d*)"
)
_FILLER_WORD = re.compile(rf"(?:{_AFFIX})s?|the|of|for|files?")

# What `part_of` returns for names that consist of a part alone, such as "Train" or "test_images".
BARE_PARTS = {(part, "") for part in ("train", "val", "test")}


def part_of(folder: str) -> tuple[str, str] | None:
    """Return the part that a folder's name stands for (train, val or test) and the remaining words: "seg_train" gives
    ("train", "seg"). None for a name of no part, or of several."""
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
    """Return the folder of each part if training and test (or validation) folders below `top` agree in their numbers
    ("train_1", "test_1"), or no pair does; else {}. Raises `DataError`, with the origin, for two folders of a part."""
    for ignored in ("", r"\d"):
        folders_by_words: dict[str, dict[str, list[str]]] = {}
        for folder in folders:
            if (match := part_of(folder)) is not None:
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
        problem = f"{' and '.join(f'{top}{name}/' for name in ambiguous[:3])} may all be the same part; leave one"
        raise DataError(f"{origin}: {problem}")
    return {part: same_part[0] for part, same_part in complete[0].items()}


def refuse_unclear_parts(folders: Sequence[str], below: Sequence[str], top: str, origin: str) -> None:
    """Raise `DataError` if all folders are parts, but one part is missing or their names belong to different sets. A
    class may be called "train" if it holds pictures. below: pictures relative to `top`, the folder around `folders`."""
    matches = [part_of(folder) for folder in folders]
    parts = {match[0] for match in matches if match is not None}
    if all(matches) and "train" in parts and len(parts) > 1:
        examples = ", ".join(f"{top}{folder}/" for folder in folders[:3])
        raise DataError(f"{origin}: {examples} look like parts of different sets; call them train and test")
    pairs = zip(folders, matches, strict=True)
    part_folders = {folder: match[0] for folder, match in pairs if match is not None and match in BARE_PARTS}
    with_pictures = {name.partition("/")[0] for name in below if name.count("/") == 1}
    has_classes = with_pictures - {*part_folders} or (len(folders) > 1 and with_pictures & {*part_folders})
    if not part_folders or has_classes:
        return
    folder, part = next(iter(part_folders.items()))
    missing = f"{top}val/ or {top}test/" if part == "train" else f"{top}train/"
    raise DataError(f"{origin}: {top}{folder}/ is one part; there are no pictures in class folders below {missing}")


def find_parts_below_classes(below: Sequence[str], top: str, origin: str) -> dict[str, str]:
    """Return the part of each folder name if every class folder holds training and test folders; else {}. Raises
    `DataError`, with the origin, if only some pictures (`below` the folder `top`) do, and for classes in them."""
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


LabelledFiles = list[tuple[str, int]]  # file names with their labels

_SYSTEM_FILES = {"thumbs.db", "ehthumbs.db", "desktop.ini"}
_SHOWN_NAMES = 5  # folders and classes in a note


@dataclass(frozen=True, slots=True)
class ClassFolders:
    """The pictures of each part (test: None without test pictures), with notes on files that are not read. roots: the
    folders around the class folders of the training and the test part, as prefixes."""

    train: LabelledFiles
    test: LabelledFiles | None
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    roots: tuple[str, ...]


def find_class_folders(files: Files, classes: Sequence[str] | None) -> ClassFolders:
    """Find the pictures among files in <part>/<class>/*, <class>/<part>/* or <class>/*, below any number of folders
    around them. Parts are training, test or validation folders in any usual spelling; without a test folder, validation
    pictures are the test set. classes: allowed names of class folders, in the order of their labels; None takes all,
    sorted. Raises `DataError` for a single class, for a class that only the test part has, for unclear parts, and for
    folders that all hold class folders of the same names."""
    names, origin = files.names(), str(files.path)
    pictures = picture_names(files, names)
    top = _common_folders(pictures)
    below = {name: name[len(top) :] for name in pictures if name.startswith(top)}
    folders = sorted({name.partition("/")[0] for name in below.values() if "/" in name})
    if not pictures and names:
        raise DataError(f"{origin}: no pictures in class folders; {'; '.join(_unread_notes(names, [], set(), '', ()))}")
    part_folders = find_parts(folders, top, origin)
    test: LabelledFiles | None = None
    if part_folders:
        train_folder = f"{top}{part_folders['train']}"
        # The validation folder serves where test pictures are missing or lie in no class folders.
        candidates = [part_folders[part] for part in ("test", "val") if part in part_folders]
        with_classes = [
            folder for folder in candidates if any(_has_subfolder(name, f"{folder}/") for name in below.values())
        ]
        test_folder = f"{top}{(with_classes or candidates)[0]}"
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
        only = f"all pictures are of one class, '{class_names[0]}'"
        raise DataError(f"{origin}: {only}; need folders of two classes or more")
    used = {name for name, _ in (*train, *(test or ()))}
    return ClassFolders(train, test, tuple(class_names), _unread_notes(names, pictures, used, top, roots), tuple(roots))


def list_classes(
    names: Iterable[str], below: str, classes: Sequence[str] | None, origin: str
) -> tuple[LabelledFiles, list[str]]:
    """List the pictures in class folders at any depth of the folder `below` ("" for the top) of the set `origin`, and
    the class names; `classes` as in `find_class_folders`."""
    pictures = [name for name in names if is_image(name)]
    labelled, class_names, _ = _classes_below(pictures, below, classes, origin, wrapped=False)
    return labelled, class_names


def _classes_below(
    names: Iterable[str], below: str, classes: Sequence[str] | None, origin: str, *, wrapped: bool
) -> tuple[LabelledFiles, list[str], str]:
    """Return what `list_classes` does, and the folder around the class folders as a prefix. wrapped: a single folder
    around all class folders is no class, unless `classes` has its name."""
    prefix = f"{below}/" if below else ""
    pictures = [name for name in names if _has_subfolder(name, prefix)]
    if wrapped:
        prefix += _common_folders([name[len(prefix) :] for name in pictures], except_for=classes or ())
        pictures = [name for name in pictures if _has_subfolder(name, prefix)]
    folders = [name[len(prefix) :].partition("/")[0] for name in pictures]
    folder_names = sorted(set(folders))
    if not folder_names:
        raise DataError(f"{origin}: no pictures in class folders{f' below {below}/' if below else ''}")
    # Python reads bytes of a name that are not UTF-8 as these lone surrogates (PEP 383).
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
    """Return a note for each part, `train` and `test`, that lacks pictures of some `classes`; suffix: ends its name."""
    notes = []
    for part, labelled in (("training", train), ("test", test)):
        present = {label for _, label in labelled}
        absent = [name for label, name in enumerate(classes) if label not in present]
        if absent:
            notes.append(f"no {part} pictures{suffix} of {_shortened(absent)}: {len(absent)} of {len(classes)} classes")
    return tuple(notes)


_PERSON = re.compile(r"(?<![^\W\d_])([^\W\d_]+[ _-]?)(\d+)(?!\d)")
_NO_PERSON = re.compile(r"(?i)n|(class|label|categor).*")  # n: ids of WordNet


def folder_findings(pictures: LabelledFiles, classes: Sequence[str]) -> list[DataFinding]:
    """Return what an audit finds in names: ten folders or more of persons in place of classes (a stem and a number, a
    median of 20 pictures or fewer), and files named after persons (10 to n/1.5 numbers, of which 5 recur)."""
    sizes = Counter(classes[label] for _, label in pictures)
    stem, usual = _stem([*sizes]), median(sizes.values())
    if stem and len(sizes) >= 10 and usual <= 20 and not _NO_PERSON.fullmatch(stem):
        rule = f"{len(sizes)} folders '{stem}' and a number, {usual:g} pictures each (median), are persons, not classes"
        key = f"put them into folders of the classes, with scenario.group: {{pattern: '({stem}\\d+)/'}}"
        return [DataFinding("folders", stem, len(pictures), (), rule, key)]
    paths = [name.rpartition(f"{classes[label]}/")[2] for name, label in pictures]
    stem = _stem(paths)
    counts = Counter(match[2] for match in map(_PERSON.search, paths) if match)
    word = stem.rstrip(" _-")
    is_person = GROUP_NAME.fullmatch(word) or word.lower() in ("p", "pt", "pat", "sub", "subj")
    if not is_person or len(counts) < 10 or len(paths) < 1.5 * len(counts) or sum(n > 1 for n in counts.values()) < 5:
        return []
    rule = f"{len(counts):,} names '{stem}' and a number in {len(paths):,} files, as of persons: {LEAK}"
    key = f"scenario.group: {{pattern: '({stem}\\d+)'}}"
    return [DataFinding("group-like", stem, len(paths), (), rule, key)]


def _stem(names: Sequence[str]) -> str:
    """Return the word in front of the first number if it is the same in all names; else nothing."""
    stems = {match[1] if match else "" for match in map(_PERSON.search, names)}
    return next(iter(stems)) if len(stems) == 1 else ""


def class_name_notes(train: LabelledFiles, test: LabelledFiles, classes: Sequence[str], origin: str) -> tuple[str, ...]:
    """Return notes on `classes` that look alike, or whose names usually stand for a missing value. train, test: the
    labelled pictures of the set `origin`."""
    of_label = Counter(label for _, label in (*train, *test))
    counts = {name: of_label[label] for label, name in enumerate(classes)}
    marks = missing_marks(counts)
    notes = twins_note(origin, "classes", counts)
    found = [finding for finding in folder_findings([*train, *test], classes) if finding.check == "folders"]
    notes += [f"{origin}: {finding.rule}; {finding.key}" for finding in found]
    if marks:
        pictures = sum(counts[mark] for mark in marks)
        notes.append(
            f"{origin}: class folders with names that usually stand for a missing value: {_shortened(marks)} "
            f"({pictures:,} pictures); leave them out if these pictures have no class"
        )
    return tuple(notes)


def _refuse_nested_classes(pictures: Sequence[str], root: str, classes: Sequence[str] | None, origin: str) -> None:
    """Raise `DataError` if the folders below `root` hold no pictures themselves, but folders of the same names:
    hospitals with classes, or classes with hospitals. `classes` tells which."""
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
            "the pictures directly into them, with scenario.group: {pattern: ...} if the inner ones are persons"
        )


def _has_subfolder(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and "/" in name[len(prefix) :]


def _common_folders(pictures: Sequence[str], except_for: Sequence[str] = ()) -> str:
    """Return the folders around all class folders as a prefix ("data/images/"), up to one of the names `except_for`."""
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


def _unread_notes(
    names: Sequence[str], readable: Sequence[str], used: set[str], top: str, roots: Sequence[str]
) -> tuple[str, ...]:
    """Return notes on files that are not read, and on siblings of class folders (below `roots`) without a picture."""
    unread = [name for name in names if name not in used and name.rpartition("/")[2].lower() not in _SYSTEM_FILES]
    pictures = [name for name in readable if name not in used]
    others = (PurePosixPath(name) for name in {*unread} - {*readable})
    suffixes = Counter(path.suffix.lower() or "without a suffix" for path in others)
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
            f"folders next to the class folders that are no classes, without a readable picture: {_shortened(empty)}"
        )
    return tuple(notes)


def _subfolders(names: Iterable[str], roots: Sequence[str]) -> set[str]:
    below = ((root, name[len(root) :]) for root in roots for name in names if _has_subfolder(name, root))
    return {root + path.partition("/")[0] for root, path in below}


def _shortened(names: Sequence[str]) -> str:
    listed = ", ".join(printable(name) for name in names[:_SHOWN_NAMES])
    return listed if len(names) <= _SHOWN_NAMES else f"{listed}, and {len(names) - _SHOWN_NAMES} more"
