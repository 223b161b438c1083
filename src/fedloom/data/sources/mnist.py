"""Sets in the IDX format (MNIST, Fashion-MNIST, EMNIST, your own folders), and digits of other looks: SVHN,
SynthDigits, USPS, MNIST-M, and digits drawn from fonts."""

import bz2
import gzip
import io
import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.dataset import require_memory
from fedloom.data.labels import class_ids
from fedloom.data.sources.cached import Allocator, ImageSource, ParsedSamples, ParsedSplits, published_set
from fedloom.data.sources.class_folders import LabelledFiles
from fedloom.data.sources.files import Files, package_folder
from fedloom.data.sources.image_folders import decode_parts
from fedloom.data.sources.npz import PublishedImages
from fedloom.data.sources.source import source

_DTYPES = {code: np.dtype(kind) for code, kind in ((0x08, "u1"), (0x09, "i1"), (0x0B, ">i2"), (0x0C, ">i4"))}


def parse_idx(raw: bytes, label: str) -> np.ndarray:
    """Return the array in the `raw` bytes of an IDX file, gzipped if `label` ends in .gz."""
    if label.endswith(".gz"):
        try:
            with gzip.open(io.BytesIO(raw)) as stream:
                head = stream.read(4 + 4 * 255)  # the longest header: a magic number and 255 sizes
            require_memory(_stated_size(head), label)  # before it is unpacked: a few bytes may become gigabytes
            with gzip.open(io.BytesIO(raw)) as stream:
                raw = stream.read(_stated_size(head) + 1)
        except (OSError, EOFError, zlib.error) as error:
            problem = f"cannot be read ({error}); the file is damaged or truncated, fetch it again"
            raise DataError(f"{label}: {problem}") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _DTYPES:
        raise DataError(f"{label}: starts with {raw[:4].hex() or 'nothing'}, which is not an IDX header")
    dtype, dims = _DTYPES[raw[2]], raw[3]
    start = 4 + 4 * dims
    shape = tuple(int.from_bytes(raw[4 + 4 * d : 8 + 4 * d], "big") for d in range(dims))
    expected = start + math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise DataError(f"{label}: {len(raw)} bytes where its header promises {expected}; truncated, fetch it again")
    return np.frombuffer(raw, dtype, offset=start).reshape(shape).copy()


def _stated_size(head: bytes) -> int:
    """Return the bytes of the IDX file that begins with `head`; those of the head if it is no such file."""
    if len(head) < 4 or head[2] not in _DTYPES or len(head) < 4 + 4 * head[3]:
        return len(head)
    shape = (int.from_bytes(head[4 + 4 * d : 8 + 4 * d], "big") for d in range(head[3]))
    return 4 + 4 * head[3] + math.prod(shape) * _DTYPES[head[2]].itemsize


def idx_names(files: Files, train: str, test: str) -> list[str]:
    """Return the names of the four files, images and labels of both parts (`train` and `test` begin their names), each
    gzipped if that is what `files` have."""
    plain = [f"{part}-{kind}-ubyte" for part in (train, test) for kind in ("images-idx3", "labels-idx1")]
    return [f"{name}.gz" if files.has(f"{name}.gz") else name for name in plain]


def parse_idx_set(files: Files, train: str, test: str, classes: tuple[str, ...] | None = None) -> ParsedSplits:
    """Make a set from its four files; train, test as for `idx_names`, classes as for `class_ids`. Raises `DataError`
    for images that are not [n, h, w], and for test labels above all training labels."""
    read = dict(files.read_each(names := idx_names(files, train, test)))
    x, y, x_test, y_test = (parse_idx(read.pop(name), files.display_name(name)) for name in names)
    if x.ndim != 3 or x.size == 0:
        raise DataError(f"{files.path}: training images have shape {x.shape}; need [n, h, w]")
    (ids, test_ids), class_names = class_ids([y, y_test], str(files.path), classes)
    if classes is None and test_ids.max(initial=0) > ids.max(initial=0):
        alone = class_names[int(test_ids.max())]
        raise DataError(f"{files.path} (test): label {alone} is above all training labels; no client could learn it")
    return ParsedSplits(str(files.path), ParsedSamples(x, ids), ParsedSamples(x_test, test_ids), class_names)


@source("idx")
class Idx(ImageSource):
    """Any set of MNIST's four IDX files (train/t10k, images/labels, .gz or not) in a folder.

    Labels are whole numbers from 0; others are the names of their classes. Pixels are scaled by the training set's own
    mean and standard deviation."""

    path: Path = Field(description="Path of the folder with the four files.", examples=["data/mnist"])

    def files(self) -> Sequence[Path]:
        files = Files(self.path)
        return files.stamped_paths(idx_names(files, "train", "t10k"))

    def parse(self, allocate: Allocator) -> ParsedSplits:
        return parse_idx_set(Files(self.path), "train", "t10k")


_DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@published_set("mnist")
class MNIST(PublishedImages):
    def names_to_read(self, files: Files) -> list[str] | None:
        return idx_names(files, "train", "t10k")

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        return parse_idx_set(files, "train", "t10k", self.class_names)


@published_set("fashion-mnist")
class FashionMNIST(MNIST):
    path: Path | None = Field(_DEBIAN)

    def data_path(self) -> Path:
        if self.path is not None and not self.path.exists():
            raise DataError(
                f"source fashion-mnist: no folder {self.path}; install Debian's package dataset-fashion-mnist, or set "
                "scenario.path to a folder with the four IDX files"
            )
        return super().data_path()


@published_set("emnist")
class EMNIST(PublishedImages):
    model = "emnist-cnn"

    subset: Literal["bymerge", "balanced"] = "bymerge"

    def layouts(self) -> Sequence[tuple[str, str]]:
        first = f"emnist-{self.subset}-train-images-idx3-ubyte"
        folders = [(place, f"{first}{gz}") for place in ("", "gzip", "EMNIST/raw") for gz in (".gz", "")]
        return [*folders, ("gzip.zip", "")]

    def names_to_read(self, files: Files) -> list[str] | None:
        return idx_names(files, f"emnist-{self.subset}-train", f"emnist-{self.subset}-test")

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        stored = parse_idx_set(files, f"emnist-{self.subset}-train", f"emnist-{self.subset}-test", self.class_names)
        train, test = (ParsedSamples(part.x.swapaxes(-1, -2), part.y) for part in (stored.train, stored.test))
        return replace(stored, train=train, test=test)


def _parse_mat(raw: bytes, label: str) -> ParsedSamples:
    """A .mat file with `X` [32, 32, 3, n] uint8 and `y` [n, 1], where label 10 stands for digit 0."""
    from scipy.io import loadmat

    try:
        arrays = loadmat(io.BytesIO(raw), variable_names=["X", "y"])
    except Exception as error:  # scipy has no one kind of error for damaged files
        raise DataError(f"{label}: cannot be read as .mat ({' '.join(str(error).split())}); fetch it again") from None
    x, y = arrays.get("X"), arrays.get("y")
    if x is None or y is None or x.ndim != 4 or x.dtype != np.uint8 or y.dtype.kind not in "iuf":
        shapes = {name: (array.shape, str(array.dtype)) for name, array in arrays.items() if name in ("X", "y")}
        raise DataError(f"{label}: holds {shapes or 'neither X nor y'}; need X [h, w, c, n] uint8 and y [n, 1]")
    with np.errstate(invalid="ignore"):  # NaN becomes some whole number, and differs from it
        labels = y.reshape(-1).astype(np.int64)
    if (labels != y.reshape(-1)).any():
        raise DataError(f"{label}: labels y are not whole numbers; need 0 .. 9, or 10 for digit 0")
    if (labels == 10).any() and (labels == 0).any():
        raise DataError(f"{label}: has labels 0 and 10, which both stand for digit 0; use one of them")
    return ParsedSamples(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), np.where(labels == 10, 0, labels))


class _TwoFiles(PublishedImages):
    """Base: a file of each part."""

    names: ClassVar[tuple[str, str]]

    def parsed(self, raw: bytes, label: str) -> ParsedSamples:
        return _parse_mat(raw, label)

    def names_to_read(self, files: Files) -> Sequence[str]:
        return self.names

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        train, test = (self.parsed(raw, files.display_name(name)) for name, raw in files.read_each(self.names))
        return ParsedSplits(str(files.path), train, test, self.class_names)


@published_set("svhn")
class SVHN(_TwoFiles):
    pass


@published_set("synthdigits")
class SynthDigits(_TwoFiles):
    pass


@published_set("usps")
class USPS(_TwoFiles):
    def parsed(self, raw: bytes, label: str) -> ParsedSamples:
        return _parse_libsvm(raw, label)


def _parse_libsvm(packed: bytes, label: str) -> ParsedSamples:
    """Lines "label index:value ...", indices 1 .. 256 in row order; as always in LIBSVM, unlisted values are 0."""
    try:
        lines = bz2.decompress(packed).decode("ascii").splitlines()
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{label}: cannot be read ({error}); damaged or truncated, fetch it again") from None
    values, labels = np.zeros((len(lines), 256)), np.zeros(len(lines), np.int64)
    for row, line in enumerate(lines):
        try:
            first, *pairs = line.split()
            labels[row] = int(float(first)) - 1  # LIBSVM's format allows 7.0
            index, value = zip(*(pair.split(":") for pair in pairs), strict=True)
            place = np.array(index, np.int64) - 1
            if place.min() < 0:
                raise IndexError("index below 1")
            values[row, place] = np.array(value, np.float64)
        except (ValueError, IndexError) as error:
            raise DataError(f"{label}: line {row + 1} is not 'label index:value ...' with 1 .. 256 ({error})") from None
    if not (np.abs(values) <= 1).all():
        raise DataError(f"{label}: values outside -1 .. 1; need LIBSVM's scaling")
    # Rounded down, as in torchvision's USPS.
    return ParsedSamples(((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, 16, 16), labels)


@published_set("mnist-m")
class MNISTM(PublishedImages):
    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        train, test = (_listed(files, f"mnist_m_{part}") for part in ("train", "test"))
        return decode_parts(files, train, test, self.class_names, 32, 3, allocate)


def _listed(files: Files, folder: str) -> LabelledFiles:
    """Lines "name label" of the label list of a folder."""
    name = f"{folder}_labels.txt"
    listed = []
    for number, line in enumerate(files.lines(name), 1):
        picture, _, label = line.strip().rpartition(" ")
        if not picture or not label.isascii() or not label.isdigit():
            raise DataError(f"{files.display_name(name)}: line {number} is '{line[:80]}'; need 'name.png label'")
        listed.append((f"{folder}/{picture}", int(label)))
    return listed


@source("rendered")
class Rendered(ImageSource):
    """Colour images [3, size, size] of digits drawn from the twelve DejaVu text fonts that matplotlib ships.

    Each image draws its font, height (half to nine tenths of the image), rotation (up to 25 degrees), position and both
    colours; classes take turns. Results cannot be compared with those on published rendered digits."""

    model = "fedbn-digits-cnn"

    size: int = Field(28, ge=8, le=256, description="Height and width of the images, in pixels.")
    per_class: int = Field(800, ge=1, description="Number of training images of each class.")
    test_per_class: int = Field(200, ge=1, description="Number of test images of each class.")
    source_seed: int = Field(0, ge=0)

    def files(self) -> Sequence[Path]:
        return _find_fonts()

    def parse(self, allocate: Allocator) -> ParsedSplits:
        samples = []
        for part, count in enumerate((self.per_class, self.test_per_class)):
            rng = np.random.default_rng([self.source_seed, part])
            labels = np.arange(10 * count) % 10
            images = allocate(("train.x", "test.x")[part], (len(labels), 3, self.size, self.size), np.uint8)
            for row, label in enumerate(labels):
                images[row] = _draw_digit(int(label), self.size, rng)
            samples.append(ParsedSamples(images, labels))
        return ParsedSplits("rendered", samples[0], samples[1], tuple("0123456789"))


@lru_cache(maxsize=1)
def _find_fonts() -> list[Path]:
    folder = package_folder("rendered", "matplotlib", "matplotlib", "fonts") / "mpl-data" / "fonts" / "ttf"
    # The two Display fonts hold symbols of formulas, but no digits.
    fonts = [path for path in sorted(folder.glob("DejaVu*.ttf")) if "Display" not in path.name]
    if not fonts:
        raise DataError(f"source rendered: no DejaVu fonts in {folder}; reinstall matplotlib")
    return fonts


@lru_cache(maxsize=512)
def _load_font(path: Path, height: int) -> Any:
    from PIL import ImageFont

    return ImageFont.truetype(str(path), height)


def _draw_digit(label: int, size: int, rng: np.random.Generator) -> np.ndarray:
    from PIL import Image, ImageDraw

    fonts = _find_fonts()
    font = _load_font(fonts[rng.integers(len(fonts))], int(rng.integers(size // 2, size * 9 // 10 + 1)) * 5 // 4)
    centre = size / 2 + rng.uniform(-size / 10, size / 10, 2)
    mask = Image.new("L", (size, size))
    ImageDraw.Draw(mask).text((float(centre[0]), float(centre[1])), str(label), fill=255, font=font, anchor="mm")
    mask = mask.rotate(float(rng.uniform(-25, 25)), resample=Image.Resampling.BILINEAR)
    background = rng.integers(0, 256, 3)
    ink = rng.integers(0, 256, 3)
    while abs(int(ink.sum()) - int(background.sum())) < 180:  # too little contrast to see the digit; half of all draws
        ink = rng.integers(0, 256, 3)
    opacity = np.asarray(mask, np.float64)[None] / 255
    return np.rint(background[:, None, None] * (1 - opacity) + ink[:, None, None] * opacity).astype(np.uint8)
