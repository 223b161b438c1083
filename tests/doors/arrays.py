"""Doors: arrays in .npz, IDX and MATLAB files, and several of them as domains."""

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from doors.door import Door

Write = Callable[[Path], dict[str, Any]]
RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (12, 6, 6)).astype(np.uint8)
Y = np.arange(12) % 3


def npz(**changes: Any) -> Write:
    """An .npz of twelve training and twelve test samples; None leaves a key out."""

    def write(folder: Path) -> dict[str, Any]:
        arrays = {"x_train": X, "y_train": Y, "x_test": X[::-1], "y_test": Y[::-1]} | changes
        np.savez(folder / "set.npz", **{key: array for key, array in arrays.items() if array is not None})
        return {"source": "npz", "path": folder / "set.npz"}

    return write


def _medmnist(**changes: Any) -> Write:
    own = dict.fromkeys(("x_train", "y_train", "x_test", "y_test"))
    given = {"train_images": X, "train_labels": Y[:, None], "test_images": X[::-1], "test_labels": Y[::-1, None]}
    return npz(**own | given | changes)


def parts_of(x: np.ndarray) -> Write:
    return npz(x_train=x, x_test=x[::-1])


def of(shape: tuple[int, ...], dtype: type = np.uint8) -> Write:
    return parts_of(RNG.integers(0, 256, (12, *shape)).astype(dtype))


def idx(change: Callable[[Path], Any] = lambda folder: None, pack: Callable[[bytes], bytes] = bytes) -> Write:
    def write(folder: Path) -> dict[str, Any]:
        suffix = "" if pack is bytes else ".gz"
        for part in ("train", "t10k"):
            header = struct.pack(">4B3I", 0, 0, 8, 3, *X.shape)
            (folder / f"{part}-images-idx3-ubyte{suffix}").write_bytes(pack(header + X.tobytes()))
            labels = struct.pack(">4BI", 0, 0, 8, 1, len(Y)) + Y.astype(np.uint8).tobytes()
            (folder / f"{part}-labels-idx1-ubyte{suffix}").write_bytes(pack(labels))
        change(folder)
        return {"source": "idx", "path": folder}

    return write


def mat(labels: np.ndarray) -> Write:
    def write(folder: Path) -> dict[str, Any]:
        from scipy.io import savemat

        pixels = RNG.integers(0, 256, (32, 32, 3, len(labels))).astype(np.uint8)
        for part in ("train", "test"):
            savemat(folder / f"{part}_32x32.mat", {"X": pixels, "y": labels[:, None]})
        return {"source": "svhn", "path": folder, "verify": False}

    return write


def sites(*classes: list[str]) -> Write:
    """Domains that name their classes in this order; labels 0, 1, 2."""

    def write(folder: Path) -> dict[str, Any]:
        parts = []
        for number, names in enumerate(classes):
            path = folder / f"{number}.npz"
            np.savez(path, x_train=X, y_train=Y, x_test=X, y_test=Y, classes=names)
            parts.append({"name": f"site {number}", "source": "npz", "path": str(path)})
        return {"source": "domains", "parts": parts, "size": 6, "channels": 1}

    return write


def pipe(name: str) -> Callable[[Path], None]:
    def replace(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return replace


def device(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte").unlink()
    (folder / "t10k-labels-idx1-ubyte").symlink_to("/dev/zero")


def npz_pipe(folder: Path) -> dict[str, Any]:
    os.mkfifo(folder / "set.npz")
    return {"source": "npz", "path": folder / "set.npz"}


def reads(name: str, write: Write, *notes: tuple[str, ...], **facts: Any) -> Door:
    return Door(name, write, {"train": 12, "test": 12} | facts, notes)


def refuses(name: str, write: Write, *words: str) -> Door:
    return Door(name, write, refused=words)


UNCLEAR = ("[c, h, w] or [h, w, c]", "read as [c, h, w]")

DOORS = [
    # where channels are
    *(reads(f"{c} channels last", of((6, 6, c)), shape=(c, 6, 6)) for c in (1, 2, 3, 4, 5, 13)),
    *(reads(f"{c} channels first", of((c, 6, 6)), shape=(c, 6, 6)) for c in (1, 2, 3, 4, 5, 13)),
    reads("4 channels last, wide", of((8, 20, 4)), shape=(4, 8, 20)),
    reads("4 channels first, wide", of((4, 8, 20)), shape=(4, 8, 20)),
    reads("a cube", of((6, 6, 6)), UNCLEAR, shape=(6, 6, 6)),
    reads("both ends may be colour", of((3, 6, 3)), UNCLEAR, shape=(3, 6, 3)),
    reads("no end is short", of((9, 10, 12)), UNCLEAR, shape=(9, 10, 12)),
    reads("volumes", of((1, 4, 6, 6)), shape=(1, 4, 6, 6)),
    reads("volumes with channels last", of((4, 6, 6, 2)), shape=(2, 4, 6, 6)),
    # kinds of numbers
    reads("16 bits", parts_of(X.astype(np.uint16) * 257), range=(float(X.min()) * 257, float(X.max()) * 257)),
    reads("big-endian", parts_of(X.astype(">f4")), levels=len(np.unique(X))),
    reads("big-endian labels", npz(y_train=Y.astype(">i8"), y_test=Y.astype(">i2")), classes=("0", "1", "2")),
    reads("column order in memory", parts_of(np.asfortranarray(X)), levels=len(np.unique(X))),
    reads("every second column", parts_of(X[:, :, ::2]), shape=(1, 6, 3)),
    reads("words as labels", npz(y_train=np.array(list("cab") * 4), y_test=np.array(list("abc") * 4)),
          classes=("a", "b", "c")),
    reads("names of MedMNIST", _medmnist(), classes=("0", "1", "2")),
    reads("names of MedMNIST with validation samples", _medmnist(val_images=X[:4], val_labels=Y[:4, None]), train=16),
    refuses("several labels in MedMNIST", _medmnist(train_labels=np.tri(14, dtype=int)[Y], test_labels=np.tri(14)[Y]),
            "multi-label data"),
    refuses("validation samples of a shape", _medmnist(val_images=X[:4, :3], val_labels=Y[:4, None]), "do not fit"),
    refuses("names of another kind", npz(x_train=None, inputs=X), "lacks x_train", "it holds", "inputs [12, 6, 6]"),
    refuses("booleans", parts_of(X > 9), "dtype bool", 'x.astype("uint8")'),
    refuses("complex numbers", parts_of(X.astype(complex)), "dtype complex128"),
    refuses("objects", parts_of(X.astype(object)), "Object arrays cannot be loaded"),
    refuses("records", parts_of(np.zeros(12, [("a", "f4"), ("b", "f4")])), "samples have dtype [('a'"),
    refuses("dates", parts_of(np.zeros((12, 4), "M8[s]")), "dtype datetime64[s]"),
    refuses("bytes beside real numbers", npz(x_test=X / 255), "train holds bytes (uint8) and test real numbers"),
    refuses("real numbers beside bytes", npz(x_train=X / 255), "train holds real numbers and test bytes (uint8)"),
    refuses("not finite", parts_of(np.where(X > 250, np.nan, X)), "values are NaN or infinite"),
    # labels
    refuses("one-hot labels", npz(y_train=np.eye(3, dtype=int)[Y]), "one label per sample", "y.argmax(1)"),
    refuses("several labels for a sample", npz(y_train=np.tri(3, dtype=int)[Y]), "8 of 12 rows hold no 1 or several",
            "multi-label data, where argmax would mislabel"),
    reads("whole labels as real numbers", npz(y_train=Y / 1), classes=("0", "1", "2")),
    refuses("measurements as labels", npz(y_train=Y + 0.5), "labels have dtype float64; need integers 0 .. C-1"),
    reads("booleans as labels", npz(y_train=Y > 1, y_test=Y > 1), classes=("False", "True")),
    refuses("labels of records", npz(y_train=np.zeros(12, [("a", "i4")])), "labels have dtype [('a'"),
    refuses("words in one part only", npz(y_train=np.array(list("abc") * 4)), "labels have dtype <U1"),
    refuses("words that only the test part has",
            npz(y_train=np.array(list("abc") * 4), y_test=np.array(list("abd") * 4)), "label 'd' is none of a, b, c"),
    reads("words that look alike", npz(y_train=np.array(["Yes", " yes", "no"])[Y], y_test=np.full(12, "no")),
          ("set.npz (train): classes look alike", "' yes' (4) and 'Yes' (4)"),
          ("set.npz (test): classes without a sample here (2):  yes, Yes",), classes=(" yes", "Yes", "no")),
    refuses("words for a missing value", npz(y_train=np.array(["a", "nan", "b"])[Y], y_test=np.full(12, "a")),
            "set.npz (train): label 'nan' of 4 samples stands for a missing value"),
    reads("a class that is named as missing values are",
          npz(**dict.fromkeys(("y_train", "y_test"), np.array(["a", "NA"])[Y % 2]), classes=np.array(["NA", "a"])),
          classes=("NA", "a")),
    reads("classes that one part has", npz(y_train=Y % 2 + 1, y_test=Y % 2),
          ("(test): classes without a sample here (1): 2",), ("(train): classes without a sample here (1): 0",),
          classes=("0", "1", "2")),
    reads("labels of one class", npz(y_train=Y * 0, y_test=Y * 0),
          ("set.npz (train): all samples are of one class, '0'",), classes=("0",)),
    refuses("100,000 class names", npz(classes=[f"class {c}" for c in range(100_000)]), "100,000 class names for 24"),
    refuses("100,000 class names, one twice", npz(classes=["a", *map(str, range(99_999)), "7"]), "'7' occurs twice"),
    refuses("fewer names than classes", npz(classes=["a", "b"]), "label 2 is outside 0 .. 1"),
    # nothing there
    refuses("no channels", of((6, 6, 0)), "samples of shape (6, 6, 0) hold no values"),
    refuses("no channels first", of((0, 6, 6)), "hold no values"),
    refuses("no features", of((0,)), "hold no values"),
    refuses("no samples", npz(x_train=X[:0], y_train=Y[:0]), "holds no samples"),
    refuses("other keys", npz(x_train=None, images=X), "lacks x_train; need x_train, y_train, x_test, y_test"),
    reads("a constant channel", parts_of(np.stack([X, np.full_like(X, 9)], 1)),
          ("constant in all training samples: 1 of 2",)),
    reads("the same features ten times", parts_of(np.tile([[1.0, 2.0]], (12, 1))),
          ("all 12 training samples are the same",)),
    # pipes: reading them would never end
    refuses("a pipe as npz", npz_pipe, "set.npz: is a pipe or a device"),
    refuses("a pipe as idx", idx(pipe("train-images-idx3-ubyte")), "train-images-idx3-ubyte: is a pipe or a device"),
    refuses("a device as idx", idx(device), "t10k-labels-idx1-ubyte: is a pipe or a device"),
    reads("idx", idx(), classes=("0", "1", "2")),
    reads("idx, gzipped", idx(pack=gzip.compress), classes=("0", "1", "2")),
    refuses("idx of many zeros, gzipped", idx(pack=lambda raw: gzip.compress(raw[:4] + b"\xff" * 12 + bytes(10**6))),
            "GiB of memory"),
    refuses("svhn with 0 and 10", mat(np.array([0, 10, 1, 2])), "labels 0 and 10"),
    refuses("svhn without a label", mat(np.array([1, np.nan, 2])), "labels y are not whole numbers"),
    # domains
    reads("domains with other orders of classes", sites(["a", "b", "c"], ["c", "a", "b"]), train=24, test=24,
          classes=("a", "b", "c"), owners=("site 0", "site 1")),
    refuses("a domain without a class", sites(["a", "b", "c"], ["a", "b", "d"]), "site 1 has classes 3 (a, b, d)"),
]  # fmt: skip
