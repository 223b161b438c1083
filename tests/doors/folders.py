"""Doors: folders and archives of pictures, in the spellings and wrappings that people use."""

import os
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from doors.door import Door
from source_files import encoded, pixels, write_tar, write_tree, write_zip

PICTURE = encoded(pixels(0))


def names(
    parts: Iterable[str], classes: Iterable[str] = ("cat", "dog"), count: int = 2, suffix: str = ".png"
) -> list[str]:
    """<part>/<class>/<number>; a part that holds "*" has the class there: "*/train"."""
    below = [part if "*" in part else f"{part}/*" for part in parts]
    return [
        f"{path.replace('*', name)}/{number}{suffix}" for path in below for name in classes for number in range(count)
    ]


def files(*listed: str, extra: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """Contents by name: a different picture for each name."""
    return {name: encoded(pixels(number)) for number, name in enumerate(listed)} | (extra or {})


def tree(
    contents: dict[str, bytes], after: Callable[[Path], Any] = lambda path: None
) -> Callable[[Path], dict[str, Any]]:
    def write(path: Path) -> dict[str, Any]:
        write_tree(path / "set", contents)
        after(path / "set")
        return {"source": "image-folder", "path": path / "set", "size": 8}

    return write


def archive(
    name: str, contents: dict[str, bytes], change: Callable[[Path], Any] = lambda path: None
) -> Callable[[Path], dict[str, Any]]:
    def write(path: Path) -> dict[str, Any]:
        file = (write_zip if name.lower().endswith(".zip") else write_tar)(path / name, contents)
        change(file)
        return {"source": "image-folder", "path": file, "size": 8}

    return write


def reads(
    name: str,
    write: Callable[[Path], dict[str, Any]],
    *notes: tuple[str, ...],
    train: int = 4,
    test: int = 4,
    classes: tuple[str, ...] = ("cat", "dog"),
) -> Door:
    return Door(name, write, {"train": train, "test": test, "classes": classes}, notes)


def refuses(name: str, write: Callable[[Path], dict[str, Any]], *words: str) -> Door:
    return Door(name, write, refused=words)


def split(*parts: str, **changes: Any) -> Callable[[Path], dict[str, Any]]:
    return tree(files(*names(parts), **changes))


SPELLINGS = [
    ("Train", "Test"),
    ("TRAIN", "TEST"),
    ("training", "testing"),
    ("Training Set", "Testing Set"),
    ("train_images", "test_images"),
    ("images_train", "images_val"),
    ("TrainingData", "ValidationData"),
    ("trainset", "testset"),
    ("train", "valid"),
    ("Train", "val"),
    ("train", "dev"),
    ("trn", "tst"),
    ("train2017", "val2014"),
    ("train_80", "test_20"),
    ("seg_train", "seg_test"),
    ("data/dataset/train", "data/dataset/test"),
    ("images/train", "images/test"),
    ("seg_train/seg_train", "seg_test/seg_test"),
    ("train/images", "test/images"),
    ("*/train", "*/test"),
    ("data/*/Training", "data/*/validation"),
]


def link_class(path: Path) -> None:
    (path / "elsewhere").rename(path.parent / "elsewhere")
    (path / "train/dog").symlink_to(path.parent / "elsewhere")


def latin(path: Path) -> None:
    (path / "dog").rename(path / os.fsdecode(b"caf\xe9"))


def latin_file(path: Path) -> None:
    (path / "train/dog/0.png").rename(path / os.fsdecode(b"train/dog/caf\xe9.png"))


def tar_links(path: Path) -> None:
    with tarfile.open(path, "a") as packed:
        for name, kind in (("train/dog/link.png", tarfile.SYMTYPE), ("train/dog/null.png", tarfile.CHRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            packed.addfile(member)


def add_link(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as packed:
        member = zipfile.ZipInfo("train/dog/link.png")
        member.external_attr = 0o120777 << 16
        packed.writestr(member, "/etc/passwd")


def add_twice(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as packed, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        packed.writestr("train/cat/0.png", PICTURE)


def add_empty_folder(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as packed:
        packed.mkdir("train/eel")
        packed.mkdir("train/cat")


def encrypt(path: Path) -> None:
    """Sets the flag of encryption in both headers of each member."""
    raw = path.read_bytes()
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = raw.find(magic)
        while start >= 0:
            raw = raw[: start + offset] + bytes([raw[start + offset] | 1]) + raw[start + offset + 1 :]
            start = raw.find(magic, start + 4)
    path.write_bytes(raw)


PAIR = files(*names(["train", "test"]))
FLAT = files(*names(["*"], count=5))

DOORS = [
    *(reads(f"parts {train} and {test}", split(train, test)) for train, test in SPELLINGS),
    reads("train, val and test", split("train", "val", "test"), ("outside the class folders", "4 (4 in val/)")),
    reads("test pictures without classes", tree(files(*names(["train", "val"]), "test/0.png", "test/1.png")),
        ("outside the class folders", "2 (2 in test/)")),
    reads("a part that is none", split("seg_train", "seg_test", "seg_pred"), ("4 (4 in seg_pred/)",)),
    reads("one folder around the classes", tree({f"dataset/{name}": raw for name, raw in FLAT.items()}), train=8,
        test=2),
    reads("classes called train and car", tree(files(*names(["*"], ("car", "train"), 5))), train=8, test=2,
        classes=("car", "train")),
    reads("what systems leave", tree(PAIR | {"train/.DS_Store": b"", "__MACOSX/train/cat/._0.png": b"",
        "train/cat/Thumbs.db": b"", ".git/x.png": b""})),
    reads("a linked class", tree(files(*names(["train"], ["cat"]), *names(["test"]), "elsewhere/0.png",
        "elsewhere/1.png"), link_class)),
    reads("other files", tree(PAIR | {"readme.md": b"", "train/cat/a.xml": b"", "train/cat/b.xml": b"",
        "train/dog/7": PICTURE}), ("no pictures", "4 (2 .xml", "1 .md", "1 without a suffix")),
    reads("a class in a format that is not read", tree(PAIR | {"train/eel/0.heic": b"", "train/eel/1.HEIC": b""}),
        ("no pictures", "2 (2 .heic)"), ("next to the class folders", "train/eel")),
    reads("pictures beside the classes", tree(FLAT | {"cover.png": PICTURE}),
        ("outside the class folders", "1 (1 in /)"), train=8, test=2),
    reads("a class without tests", tree(files(*names(["train"], ("cat", "dog", "eel")), *names(["test"]))),
        ("no test pictures of eel", "1 of 3 classes"), train=6, classes=("cat", "dog", "eel")),
    reads("an empty class folder", tree(PAIR, lambda path: (path / "train/eel/sub").mkdir(parents=True)),
        ("folders without a file: 1 (train/eel/sub)",)),
    reads("an empty class folder in a zip", archive("set.zip", PAIR, add_empty_folder),
        ("folders without a file: 1 (train/eel)",)),
    reads("class folders that look alike", tree(files(*names(["*"], ("Cat", "cat", "dog"), 5))),
        ("classes look alike", "'Cat' (5) and 'cat' (5)"), train=12, test=3, classes=("Cat", "cat", "dog")),
    reads("folders of persons", tree(files(*names(["*"], [f"patient{n:03}" for n in range(12)], 5))),
        ("12 folders 'patient' and a number, 5 pictures each", "pattern: '(patient\\d+)/'"), train=48, test=12,
        classes=tuple(f"patient{n:03}" for n in range(12))),
    reads("a class folder with a name that usually stands for a missing value",
        tree(files(*names(["*"], ("NA", "cat", "dog"), 5))), ("usually stand for a missing value: NA (5 pictures)",),
        train=12, test=3, classes=("NA", "cat", "dog")),
    reads("folders of different names in the classes", tree(files(*(f"{name}/{place}/{n}.png" for name in ("cat",
        "dog") for place in ("all", name + "s") for n in (1, 2, 3)))), train=9, test=3),
    refuses("classes in each hospital", tree(files(*names(["north/*", "south/*"]))),
        "north/, south/ hold the same folders (cat, dog)", "give the path of one", "source domains", "directly"),
    refuses("classes in each hospital and part", tree(files(*names(["train/a/*", "train/b/*", "test/a/*"]))),
        "train/a/, train/b/ hold the same folders (cat, dog)"),
    refuses("classes of each patient, not all of whom have both",
        tree(files(*names(["1/*", "2/*", "3/*"], ["0", "1"]), "4/1/0.png")),
        "1/, 2/, 3/, 4/ hold the same folders (0, 1)"),
    reads("a pipe", tree(PAIR, lambda path: os.mkfifo(path / "train/cat/pipe.png")), ("pipes or devices", "1")),
    reads("a file name that is not UTF-8", tree(PAIR, latin_file)),
    reads("a zip", archive("set.ZIP", {f"outer/inner/{name}": raw for name, raw in PAIR.items()})),
    reads("a tar with links and devices", archive("set.tar", PAIR, tar_links), ("links or devices", "2")),
    reads("a zip with a link", archive("set.zip", PAIR, add_link), ("links or devices", "1")),
    refuses("one folder", tree(files(*names(["train", "test"], ["cat"]))), "all pictures are of one class, 'cat'"),
    refuses("one class without parts", tree(files(*names(["*"], ["cat"], 5))), "all pictures are of one class, 'cat'"),
    refuses("pictures in the parts themselves", tree(files("Train/0.png", "Train/1.png", "Test/0.png")),
        "no pictures in class folders below Train/"),
    refuses("training pictures alone", split("Train"), "Train/ is one part", "val/ or test/"),
    refuses("test pictures alone", split("testing"), "testing/ is one part", "below train/"),
    refuses("two training folders", split("train", "Training", "test"),
        "Training/ and train/ may all be the same part"),
    refuses("no picture at all", tree({"train/cat/0.raw": b"", "train/cat/1.raw": b""}), "no pictures", "2 (2 .raw)"),
    refuses("parts of different sets", split("a_train", "b_test"), "a_train/, b_test/ look like parts of different"),
    refuses("sites of parts", split("north/train", "north/test", "south/train", "south/test"), "as separate sets do"),
    refuses("two sets", split("a_train", "a_test", "b_train", "b_test"), "a_train/ and b_train/ may"),
    refuses("a class that is tested only", tree(files(*names(["train"]), *names(["Test"], ["cat", "eel"]))),
        "class folder 'Test/eel' is none of the classes cat, dog"),
    refuses("a class spelled otherwise in tests", tree(files(*names(["train"]), *names(["test"], ["Cat", "Dog"]))),
        "'test/Cat' is none of"),
    refuses("parts in one class only", tree(files(*names(["*/train", "*/test"]), "eel/0.png")),
        "eel/0.png lies in none"),
    refuses("a link back", tree(PAIR, lambda path: (path / "train/cat/up").symlink_to(path)),
        "a link back to a folder around it"),
    refuses("a link to nothing", tree(PAIR, lambda path: (path / "train/cat/9.png").symlink_to("gone")),
        "train/cat/9.png: no such file"),
    refuses("a class name that is not UTF-8", tree(FLAT, latin), r"class folder 'caf\udce9' is not UTF-8"),
    refuses("a damaged picture whose name is not UTF-8", tree(PAIR | {"train/dog/0.png": b"no"}, latin_file),
        r"caf\udce9.png: cannot be decoded"),
    refuses("a zip that leads outside", archive("set.zip", PAIR | {"../x.png": PICTURE}), "leads outside its folder"),
    refuses("a zip with absolute names", archive("set.zip", PAIR | {"/train/cat/x.png": PICTURE}),
        "leads outside its folder"),
    refuses("an encrypted zip", archive("set.zip", PAIR, encrypt), "is encrypted"),
    refuses("a zip with one name twice", archive("set.zip", PAIR, add_twice), "holds 'train/cat/0.png' twice"),
    refuses("a truncated tar", archive("set.tar.gz", PAIR, lambda path: path.write_bytes(path.read_bytes()[:-500])),
        "damaged or truncated"),
]  # fmt: skip
