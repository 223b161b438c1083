"""Arrays from .npz files and from Python values, and the base of image sets with published files."""

import math
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.dataset import require_memory
from fedloom.data.imputation import DropColumns, ImputeSection, Incomplete
from fedloom.data.labels import class_ids, multi_labels
from fedloom.data.sources import cached
from fedloom.data.sources.cached import Allocator, ImageSource, ParsedSamples, ParsedSplits, PublishedFiles
from fedloom.data.sources.files import ENCRYPTED, Files, require_regular
from fedloom.data.sources.pixels import PictureNotes, image_pixels
from fedloom.data.sources.source import Labels, Splits, number_groups, source, stratified_split

_KEYS = ("x_train", "y_train", "x_test", "y_test")
_PARTS = ("train", "val", "test")
# arr_0 and arr_1 are the names that numpy gives
_KINDS = dict.fromkeys(("x", "data", "images", "image", "inputs", "features", "samples", "arr_0"), "x")
_KINDS |= dict.fromkeys(("y", "labels", "label", "target", "targets", "arr_1"), "y")
_TEST_SHARE = 0.2  # of samples without a test set
_LONGEST_HEADER = 10_000  # bytes, as numpy itself allows


def read_npz(path: Path, keys: Sequence[str] = _KEYS) -> dict[str, np.ndarray]:
    """Return all arrays of an .npz that must hold `keys`. Object arrays are refused, never unpickled. Headers are
    compared with the archive's directory (`path`) before anything is read: memory and time are bounded."""
    require_regular(path)
    try:
        if not zipfile.is_zipfile(path) and path.exists():
            raise zipfile.BadZipFile("no zip archive")
        with zipfile.ZipFile(path) as archive:
            listed = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            members = {info.filename.removesuffix(".npy"): info for info in listed}
            missing = [key for key in keys if key not in members]
            if missing:
                raise DataError(f"{path}: lacks {', '.join(missing)}; need {', '.join(keys)}")
            if any(info.flag_bits & ENCRYPTED for info in members.values()):
                raise DataError(f"{path}: is encrypted; unpack it, and save the arrays with numpy.savez")
            for info in members.values():
                _check_header(archive, info)
        require_memory(sum(info.file_size for info in members.values()), str(path))
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in members}
    except FileNotFoundError:
        content = f" with {', '.join(keys)}" if keys else ""
        raise DataError(f"{path}: no such file; expected an .npz{content}") from None
    except (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        why = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(f"{path}: cannot be read as .npz ({why}); damaged or truncated") from None


def named_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz, with samples and labels as x and y, x_train and y_train and so on: `train_images`,
    `X_train`, `data` and `target` and the like are understood. Raises `DataError` as `read_npz`, and for two arrays
    that mean the same."""
    named: dict[str, tuple[str, np.ndarray]] = {}
    for name, array in read_npz(path, ()).items():
        words = name.lower().split("_")
        parts = [word for word in words if word in _PARTS]
        kind = "_".join(word for word in words if word not in _PARTS)
        usual = "_".join([_KINDS.get(kind, kind), *parts])
        if usual in named:
            raise DataError(f"{path}: holds {named[usual][0]} and {name}, which mean the same; save one of them")
        named[usual] = name, array
    return {usual: array for usual, (_, array) in named.items()}


def _with_test_samples(arrays: dict[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """Return the arrays x and y (and group) as those of training and of test samples, a share of each class."""
    x, y, group = arrays["x"], arrays["y"], arrays.get("group")
    lengths = {len(array) if array.ndim else 0 for array in (x, y, *([] if group is None else [group]))}
    if len(lengths) > 1:
        raise DataError(f"{path}: x of shape {x.shape} and y of shape {y.shape}; need one label for each sample")
    rows = stratified_split(y, _TEST_SHARE, np.random.default_rng(0), str(path), group)
    split = {
        f"{kind}_{part}": arrays[kind][of]
        for part, of in zip(("train", "test"), rows, strict=True)
        for kind in ("x", "y", "group")
        if kind in arrays
    }
    return {name: array for name, array in arrays.items() if name not in ("x", "y", "group")} | split


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raise `ValueError` for an array whose header does not fit the size of its data."""
    with archive.open(member) as stream:
        # Six bytes of magic, two of the version, then the header's length: two bytes in version 1, else four.
        start = stream.read(12)
    is_version_one = start[6:7] == b"\x01"
    length = int.from_bytes(start[8:10] if is_version_one else start[8:12], "little")
    if not start.startswith(np.lib.format.MAGIC_PREFIX) or length > _LONGEST_HEADER:
        raise ValueError(f"{member.filename} does not begin as an array does")
    with archive.open(member) as stream:
        np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if is_version_one else np.lib.format.read_array_header_2_0
        try:
            shape, _, dtype = read(stream)
        except Exception as error:  # numpy has no one kind of error for headers that are no Python values
            raise ValueError(f"{member.filename}: {error}") from None
        stated, held = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
    # The data of an object array are a pickle of any size; `np.load` refuses it later.
    if not dtype.hasobject and (stated != held or min(shape, default=0) < 0):
        raise ValueError(f"{member.filename} states shape {shape} of {dtype}, {stated:,} bytes, and holds {held:,}")


def channels_first(x: np.ndarray, allocate: Allocator | None = None, name: str = "") -> np.ndarray:
    """Return channels-last images and volumes (see `channels_last`) as [n, c, ...], in an array `name` made by
    `allocate` or in memory; other `x` unchanged."""
    if x.ndim < 4 or not x.size or not channels_last(x.shape[1:]):
        return x
    n, *size, c = x.shape
    out = np.empty((n, c, *size), x.dtype) if allocate is None else allocate(name, (n, c, *size), x.dtype)
    np.copyto(out.reshape(n, c, -1), x.reshape(n, -1, c).swapaxes(1, 2))  # flat: five times as fast
    return out


def channels_last(shape: tuple[int, ...]) -> bool:
    """Tell whether samples of this shape are [h, w, c] (or [d, h, w, c]): the channels are the one end of length 1 or
    3, else one whose other sides are equal or twice as long. Unclear shapes are [c, h, w]; see `layout_notes`."""
    return _ends(shape) == (False, True)


def layout_notes(shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return a note on samples of this shape if it does not say where their channels are."""
    first, last = _ends(shape) if len(shape) > 2 else (True, False)
    if first != last:
        return ()
    return (f"samples of shape {shape} may be [c, h, w] or [h, w, c], and are read as [c, h, w]; move channels there",)


def _ends(shape: tuple[int, ...]) -> tuple[bool, bool]:
    """Tell whether the first axis may be that of channels, and whether the last one may be."""
    tests: tuple[Callable[[int, tuple[int, ...]], bool], ...] = (
        lambda c, _: c in (1, 3),
        lambda _, sides: len(set(sides)) == 1,
        lambda c, sides: 2 * c <= min(sides),
    )
    ends = (False, False)
    for test in tests:
        ends = test(shape[0], shape[1:]), test(shape[-1], shape[:-1])
        if any(ends):
            break
    return ends


def parse_npz(
    path: Path, allocate: Allocator, classes: Sequence[str] | None = None, labels: Labels = "single"
) -> ParsedSplits:
    """Make a set from `x_train, y_train, x_test, y_test` of the file `path`, or from `x` and `y`, of which a fifth of
    each class are test samples; its `classes` come before the argument. `group_train` and `group_test`, or `group`,
    name groups. `allocate` makes arrays whose axes change. labels: see `checked`."""
    arrays = named_arrays(path)
    if arrays.keys() >= {"x", "y"} and not arrays.keys() & {*_KEYS}:
        arrays = _with_test_samples(arrays, path)
    if missing := [key for key in _KEYS if key not in arrays]:
        held = read_npz(path, ())  # by the names in the file
        what = ", ".join(f"{name} {list(array.shape)}" for name, array in held.items())[:300] or "no arrays"
        need = f"need {', '.join(_KEYS)}, or train_images and the like, or x and y alone"
        raise DataError(f"{path}: lacks {', '.join(missing)}; {need}; it holds {what}")
    named = arrays.get("classes")
    if named is not None:
        if named.ndim != 1 or named.dtype.kind not in "US":
            raise DataError(f"{path}: classes have shape {named.shape} and dtype {named.dtype}; need names [C]")
        classes = [str(name) for name in named.astype(str)]
    validation = len(arrays.get("y_val", ()))
    if validation:
        try:
            keys = [key for key in ("x", "y", "group") if f"{key}_train" in arrays]
            joined = {f"{key}_train": np.concatenate([arrays[f"{key}_train"], arrays[f"{key}_val"]]) for key in keys}
        except (KeyError, ValueError) as error:
            raise DataError(f"{path}: validation samples do not fit the training samples ({error})") from None
        arrays |= joined
    read_labels = multi_labels if labels == "multi" else class_ids
    ids, names = read_labels([arrays["y_train"], arrays["y_test"]], str(path), classes)
    if ("group_train" in arrays) != ("group_test" in arrays):
        raise DataError(f"{path}: holds one of group_train and group_test; need both, or neither")
    groups: list[np.ndarray | None] = [None, None]
    if "group_train" in arrays:
        groups = [*number_groups([arrays["group_train"], arrays["group_test"]], [*map(len, ids)], str(path))]
    train, test = (
        ParsedSamples(channels_first(arrays[f"x_{part}"], allocate, f"{part}.x"), y, group=of)
        for part, y, of in zip(("train", "test"), ids, groups, strict=True)
    )
    notes = layout_notes(arrays["x_train"].shape[1:])
    return ParsedSplits(str(path), train, test, names, notes=notes, validation=validation, labels=labels)


@source("npz")
class Npz(ImageSource):
    """Any `.npz` with `x_train, y_train, x_test, y_test` (the Keras convention) and optional `classes`, `group_train`
    and `group_test`, or with `train_images, train_labels, ...` (the MedMNIST convention); `x_val` and `y_val`, or
    `val_images` and `val_labels`, are the validation samples. Of a file with `x` and `y` alone, a fifth of each class
    are the test samples, the same in every run.

    Images [n, h, w], [n, h, w, c] or [n, c, h, w], volumes [n, c, d, h, w]; uint8 or real numbers; or features [n, d].
    Labels are integers from 0, or words; other integers are the names of their classes. With `labels: multi` they are
    [n, L], 1, 0 or -1 (not recorded). Images and volumes are scaled by the training set's own moments per channel."""

    keys_added_later = frozenset({"drop_columns", "incomplete", "impute"})
    uncached_keys = ImageSource.uncached_keys | {"impute"}

    path: Path = Field(description="Path of the .npz file.", examples=["data.npz"])
    incomplete: Incomplete = "refuse"
    drop_columns: DropColumns = Field({})
    impute: ImputeSection = None

    def load(self) -> Splits:
        splits = super().load()
        return cached.with_rules(splits, self.impute, str(self.path)) if self.incomplete == "impute" else splits

    def files(self) -> Sequence[Path]:
        if not self.path.exists():
            raise DataError(f"{self.path}: no such file; expected an .npz with {', '.join(_KEYS)}")
        require_regular(self.path)
        return [self.path]

    def parse(self, allocate: Allocator) -> ParsedSplits:
        parsed = replace(parse_npz(self.path, allocate, labels=self.labels), incomplete=self.incomplete)
        return cached.without_columns(parsed, self.drop_columns) if self.drop_columns else parsed


ArrayLike = Any  # any value that `as_array` converts, such as a list, an array or a tensor


def as_array(value: ArrayLike, origin: str, pictures: PictureNotes | None = None) -> np.ndarray:
    """Convert a value or a list to an array; Pillow pictures (counted in `pictures`) and tensors with gradients are
    taken. Raises `DataError`, with the origin, for masked values, sparse arrays, and other types."""
    try:
        if isinstance(value, list | tuple) and any(map(_needs_conversion, value)):
            return np.asarray([as_array(element, origin, pictures) for element in value])
        if isinstance(value, np.ma.MaskedArray):
            if count := int(np.ma.getmaskarray(value).sum()):
                masked = f"{count:,} of {value.size:,} values are masked"
                raise DataError(f"{origin}: {masked}; fill them, or leave their samples out")
            return np.asarray(value.data)
        if _is_picture(value):
            return image_pixels(value, origin, None, PictureNotes() if pictures is None else pictures)
        if hasattr(value, "toarray") or (isinstance(value, torch.Tensor) and value.layout != torch.strided):
            method = "to_dense" if isinstance(value, torch.Tensor) else "toarray"
            raise DataError(f"{origin}: a sparse {type(value).__name__} is no array; give its {method}()")
        if isinstance(value, torch.Tensor):
            tensor = value.detach().cpu()
            return np.asarray(tensor.float() if tensor.dtype == torch.bfloat16 else tensor)  # numpy has no bfloat16
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{origin}: no array can be made of this ({' '.join(str(error).split())[:200]})") from None


def _needs_conversion(element: Any) -> bool:
    if isinstance(element, int | float | str):
        return False
    return isinstance(element, torch.Tensor | np.ma.MaskedArray) or hasattr(element, "toarray") or _is_picture(element)


def _is_picture(value: Any) -> bool:
    return type(value).__module__.startswith("PIL.") and hasattr(value, "convert")


def index_notes(x: ArrayLike | None, y: ArrayLike | None) -> tuple[str, ...]:
    """Return a note if samples and labels are pandas objects with different indexes."""
    indexes = [getattr(values, "index", None) for values in (x, y)]
    if all(hasattr(index, "equals") for index in indexes) and not indexes[0].equals(indexes[1]):  # type: ignore[union-attr]
        return ("samples and labels have different indexes; rows are paired by their position, not by the index",)
    return ()


class PublishedImages(PublishedFiles, ImageSource):
    """Base of image sets with published files."""

    class_names: ClassVar[tuple[str, ...]] = tuple("0123456789")

    limit: int | None = Field(None, ge=1)

    def load(self) -> Splits:
        splits = super().load()
        return splits if self.limit is None else replace(splits, train=splits.train.head(self.limit))

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        """Parse the published files."""
        raise TypeError(f"{type(self).__name__} defines no read()")

    def parse(self, allocate: Allocator) -> ParsedSplits:
        path = self.data_path()
        return self.from_npz(path, allocate) if path.suffix == ".npz" else self.read(self.opened(), allocate)

    def from_npz(self, path: Path, allocate: Allocator) -> ParsedSplits:
        """Parse an .npz in the Keras convention."""
        return parse_npz(path, allocate, self.class_names)
