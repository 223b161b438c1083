"""Pictures in folders: those of a user, Tiny-ImageNet, and the domains of Office-Caltech10 and DomainNet."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.dataset import require_memory
from fedloom.data.sources import class_folders, medical
from fedloom.data.sources.cached import Allocator, ImageSource, Normalise, ParsedSamples, ParsedSplits, published_set
from fedloom.data.sources.class_folders import LabelledFiles
from fedloom.data.sources.files import Files, open_files
from fedloom.data.sources.npz import PublishedImages, channels_first, read_npz
from fedloom.data.sources.pixels import WHITE, PictureNotes, decode_into, read_pixels, resized
from fedloom.data.sources.source import (
    GroupPattern,
    MaxBadSamples,
    file_name_notes,
    first_rows,
    number_groups,
    source,
    stratified_split,
)


def decode_parts(
    files: Files,
    train: LabelledFiles,
    test: LabelledFiles,
    classes: Sequence[str],
    size: int,
    channels: int,
    allocate: Allocator,
    max_bad: int = 0,
) -> ParsedSplits:
    """Decode the pictures of both parts (names and labels, of `classes`) from files into uint8 [n, channels, size,
    size] made by `allocate`; NIfTI becomes float32, volumes [n, channels, size, size, size]. Raises `DataError`,
    for pictures that cannot be decoded if these are more than `max_bad`."""
    arrays = {"train.x": train, "test.x": test}
    names, shape = [name for name, _ in (*train, *test)], [channels, size, size]
    count = sum(map(medical.is_nifti, names))
    if 0 < count < len(names):
        remedy = "part them"
        raise DataError(f"{files.path}: {count:,} of {len(names):,} files are NIfTI, without black and white; {remedy}")
    if count and _first_readable(files, names, max_bad).ndim == 3:
        shape = [channels, size, size, size]
        require_memory(4 * len(names) * math.prod(shape), str(files.path))
    stored = np.float32 if count else np.uint8
    pixels = {key: allocate(key, (len(listed), *shape), stored) for key, listed in arrays.items()}
    rows = {name: (key, row) for key, listed in arrays.items() for row, (name, _) in enumerate(listed)}
    if len(rows) < len(train) + len(test):
        raise DataError(f"{files.path}: a picture is listed twice; each may be in one part only, once")
    notes, damaged = decode_into(files, rows, pixels, allocate, max_bad)
    places = [[row for key, row in map(rows.__getitem__, damaged) if key == part] for part in arrays]
    parts = [
        ParsedSamples(pixels[key], np.array([label for _, label in listed], np.int64)) for key, listed in arrays.items()
    ]
    unreadable = tuple(np.array(of_part, np.int64) for of_part in places)
    parsed = ParsedSplits(str(files.path), parts[0], parts[1], tuple(classes), notes=notes, unreadable=unreadable)
    return parsed if count else replace(parsed, white=WHITE)


def _first_readable(files: Files, names: Sequence[str], max_bad: int) -> np.ndarray:
    for name in names[:max_bad]:
        with contextlib.suppress(DataError):
            return read_pixels(files.read(name), files.display_name(name), 1, PictureNotes())
    return read_pixels(files.read(names[max_bad]), files.display_name(names[max_bad]), 1, PictureNotes())


def parse_class_folders(
    files: Files,
    size: int,
    channels: int,
    allocate: Allocator,
    *,
    classes: Sequence[str] | None = None,
    test_share: float = 0.2,
    group: GroupPattern | str | None = None,
    max_bad: int = 0,
) -> ParsedSplits:
    """Make a set from class folders, see `find_class_folders` (files, classes) and `decode_parts` (size, channels,
    max_bad). The training set is shuffled. Without a test part, `test_share` of each class is one (seed 0), in whole
    groups."""
    origin = str(files.path)
    listed = class_folders.find_class_folders(files, classes)
    rng = np.random.default_rng(0)
    pictures = [part for part in (listed.train, listed.test) if part is not None]
    groups: list[np.ndarray | None] = [None, None]
    roots = zip(pictures, (listed.roots[0], listed.roots[-1]), strict=False)
    paths = [[name[len(root) :].partition("/")[2] for name, _ in part] for part, root in roots]
    if isinstance(group, GroupPattern):
        ids = [group.ids(part, origin) for part in paths]
        groups = [*number_groups(ids, [*map(len, ids)], origin)]
    patients, about_patients = medical.patients(group, files, [name for part in pictures for name, _ in part])
    if patients is not None:
        groups = [*np.split(np.unique(patients, return_inverse=True)[1], [len(pictures[0])])]
    if listed.test is not None:
        rows = rng.permutation(len(listed.train)), np.arange(len(listed.test))
    else:
        labels = np.array([label for _, label in listed.train])
        rows = stratified_split(labels, test_share, rng, origin, groups[0])
        pictures, paths, groups = pictures * 2, paths * 2, groups[:1] * 2
    train, test = ([part[row] for row in chosen] for part, chosen in zip(pictures, rows, strict=True))
    parsed = decode_parts(files, train, test, listed.classes, size, channels, allocate, max_bad)
    samples = zip((parsed.train, parsed.test), groups, rows, strict=True)
    parts = [replace(part, group=None if of is None else of[chosen]) for part, of, chosen in samples]
    parsed = replace(parsed, train=parts[0], test=parts[1])
    about_classes = class_folders.missing_classes(train, test, listed.classes)
    if classes is None:
        about_classes += class_folders.class_name_notes(train, test, listed.classes, origin)
    if group is None and patients is None and classes is None:
        shown = [[part[row] for row in chosen] for part, chosen in zip(paths, rows, strict=True)]
        about_classes += file_name_notes(shown[0], shown[1], origin)
    about_classes += about_patients
    return replace(parsed.with_notes(*listed.notes, *files.notes(), *about_classes), has_class_notes=True)


@source("image-folder")
class ImageFolder(ImageSource):
    """Any pictures in class folders, in a folder or an archive (.zip, .tar.gz).

    train/<class>/* and test/<class>/*, or <class>/train/* and <class>/test/*, or <class>/* alone: then a share of
    each class is held out, the same in every run. Parts may be spelled as is usual ("Train", "val_images", "Testing
    Set"), and folders may lie around all of it. Without a test folder, validation pictures are the test set. Each
    picture is turned as its EXIF orientation says and resized. PNG, JPEG, BMP, GIF, WebP, TIFF and PPM are read, and
    with the extra `medical` DICOM and NIfTI; other files are counted in a note. Pixels with 12 or 16 bits keep their
    levels, as real numbers."""

    keys_added_later = frozenset({"max_bad_samples"})

    path: Path = Field(description="Path of the folder or the archive.", examples=["photos"])
    size: int = Field(64, ge=1, le=2048, description="Height and width that pictures are resized to, in pixels.")
    channels: Literal[1, 3] = Field(3, description="Number of channels of the images: 1 for gray, 3 for colour.")
    test_share: float = Field(0.2, gt=0, lt=1)
    max_bad_samples: MaxBadSamples = 0

    def files(self) -> Sequence[Path]:
        if not self.path.exists():
            raise DataError(f"source image-folder: no {self.path}; need a folder or archive of class folders")
        return open_files(self.path).stamped_paths()

    def parse(self, allocate: Allocator) -> ParsedSplits:
        files = open_files(self.path)
        keys: dict[str, Any] = {"test_share": self.test_share, "group": self.group, "max_bad": self.max_bad_samples}
        return parse_class_folders(files, self.size, self.channels, allocate, **keys)


_ANNOTATIONS = "val/val_annotations.txt"


@published_set("tiny-imagenet")
class TinyImageNet(PublishedImages):
    model = "resnet18-cifar"

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        train, ids = class_folders.list_classes(files.names(), "train", None, str(files.path))
        rows = np.random.default_rng(0).permutation(len(train))
        label = {name: c for c, name in enumerate(ids)}
        test = []
        for number, line in enumerate(files.lines(_ANNOTATIONS), 1):
            name, wnid, *_ = [*line.split("\t", 2), "", ""]
            if wnid not in label:
                place = f"{files.display_name(_ANNOTATIONS)}: line {number}"
                raise DataError(f"{place} names class '{wnid}', which train/ lacks")
            test.append((f"val/images/{name}", label[wnid]))
        return decode_parts(files, [train[row] for row in rows], test, _called(files, ids), 64, 3, allocate)


def _called(files: Files, ids: Sequence[str]) -> list[str]:
    if not files.has("words.txt"):
        return list(ids)
    lines = (line.partition("\t") for line in files.lines("words.txt"))
    first = {wnid: words.split(",")[0].strip() for wnid, _, words in lines}
    names = [first.get(wnid, wnid) for wnid in ids]
    return [name if names.count(name) == 1 else wnid for name, wnid in zip(names, ids, strict=True)]


_TEST_SHARE = 0.2


class _DomainFolders(PublishedImages):
    """Base: <domain>/<class>/*. Lists `<domain>_train.txt` and `<domain>_test.txt` (lines "path label", classes taken
    from the path) decide; without them 20 % of each class are test, and training pictures shuffled."""

    domain_names: ClassVar[tuple[str, ...]]
    folder: ClassVar[str]
    archives: ClassVar[tuple[str, ...]]
    model = "fedbn-alexnet"

    normalise: Normalise = "unit"
    size: int = Field(256, ge=1, le=2048, description="Height and width that pictures are resized to, in pixels.")
    per_domain: int | None = Field(None, ge=1)

    def named_domains(self) -> tuple[str, ...]:
        return self.domain_names

    def layouts(self) -> Sequence[tuple[str, str]]:
        folders = [(subpath, f"{self.domain_names[0]}/") for subpath in ("", self.folder)]
        return [*folders, *((archive, "") for archive in self.archives)]

    def names_to_read(self, files: Files) -> list[str]:
        names, class_names = files.names(), set(self.class_names)
        present = {name.partition("/")[0] for name in names if "/" in name}
        if absent := [f"{domain}/" for domain in self.domain_names if domain not in present]:
            raise DataError(f"{files.path}: no {' and no '.join(absent)}; published by {self.publisher}")
        return [
            name
            for name in names
            if name.endswith(("_train.txt", "_test.txt"))
            or ((parts := name.split("/"))[0] in self.domain_names and len(parts) > 2 and parts[1] in class_names)
        ]

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        names = self.names_to_read(files)
        split = [self._split(files, names, number) for number in range(len(self.domain_names))]
        train, test = ([sample for parts in split for sample in parts[side]] for side in (0, 1))
        parsed = decode_parts(files, train, test, self.class_names, self.size, 3, allocate)
        parsed = replace(parsed, has_class_notes=True)  # those of each domain, below
        if isinstance(self.group, GroupPattern):
            ids = number_groups([self._ids(part) for part in (train, test)], [len(train), len(test)], str(files.path))
            train_part, test_part = replace(parsed.train, group=ids[0]), replace(parsed.test, group=ids[1])
            parsed = replace(parsed, train=train_part, test=test_part)
        missing = [
            note
            for domain, parts in zip(self.domain_names, split, strict=True)
            for note in class_folders.missing_classes(*parts, self.class_names, f" in domain {domain}")
        ]
        counts = [(len(a), len(b)) for a, b in split]
        return self._with_domains(parsed.with_notes(*files.notes(), *missing), counts)

    def from_npz(self, path: Path, allocate: Allocator) -> ParsedSplits:
        """x_<domain> [n, h, w, 3] uint8 (or features [n, d]) and y_<domain>, split as folders without lists are."""
        arrays = read_npz(path, [f"{key}_{domain}" for domain in self.domain_names for key in "xy"])
        named = [str(name).replace("_", "") for name in arrays.get("classes", self.class_names)]
        if named != [name.replace("_", "") for name in self.class_names]:
            raise DataError(f"{path}: its classes are {', '.join(named)[:200]}; need {', '.join(self.class_names)}")
        split_parts: tuple[list[ParsedSamples], list[ParsedSamples]] = ([], [])
        for number, domain in enumerate(self.domain_names):
            x, y = channels_first(arrays[f"x_{domain}"]), arrays[f"y_{domain}"]
            if x.ndim == 4 and x.dtype != np.uint8:
                raise DataError(f"{path}: x_{domain} has dtype {x.dtype}; need uint8 pixels")
            if y.shape != (len(x),):
                raise DataError(f"{path}: y_{domain} has shape {y.shape}; need one label for each of {len(x)} samples")
            for rows, parts in zip(self._rows(y, number), split_parts, strict=True):
                parts.append(ParsedSamples(resized(x[rows], self.size, 3) if x.ndim == 4 else x[rows], y[rows]))
        if len({part.x.shape[1:] for part in (*split_parts[0], *split_parts[1])}) > 1:
            raise DataError(f"{path}: domains differ in sample shape")
        train, test = (
            ParsedSamples(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))
            for parts in split_parts
        )
        counts = [(len(a.y), len(b.y)) for a, b in zip(*split_parts, strict=True)]
        return self._with_domains(ParsedSplits(str(path), train, test, self.class_names), counts)

    def _split(self, files: Files, names: Sequence[str], number: int) -> tuple[LabelledFiles, LabelledFiles]:
        domain = self.domain_names[number]
        if files.has(f"{domain}_train.txt") and files.has(f"{domain}_test.txt"):
            train, test = (self._listed(files, f"{domain}_{part}.txt") for part in ("train", "test"))
            return first_rows(train, self.per_domain, domain), test
        listed, _ = class_folders.list_classes(names, domain, self.class_names, str(files.path))
        groups = np.unique(self._ids(listed), return_inverse=True)[1] if isinstance(self.group, GroupPattern) else None
        rows = self._rows(np.array([label for _, label in listed]), number, groups)
        train, test = ([listed[row] for row in part] for part in rows)
        return train, test

    def _ids(self, listed: LabelledFiles) -> list[str]:
        """Return the group of each picture by the pattern of the key `group`: no group has pictures of two domains."""
        assert isinstance(self.group, GroupPattern)
        ids = self.group.ids([name.split("/", 2)[2] for name, _ in listed], self.kind)
        return [f"{name.partition('/')[0]}/{of}" for (name, _), of in zip(listed, ids.tolist(), strict=True)]

    def _rows(self, labels: np.ndarray, number: int, groups: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        domain = self.domain_names[number]
        # A stream for each domain: its split does not depend on how many samples the others have.
        train, test = stratified_split(labels, _TEST_SHARE, np.random.default_rng([0, number]), domain, groups)
        return first_rows(train, self.per_domain, domain), test

    def _listed(self, files: Files, name: str) -> LabelledFiles:
        listed = []
        for number, line in enumerate(files.lines(name), 1):
            # From the right, because the name of a file may hold spaces.
            picture = line.strip().rpartition(" ")[0]
            parts = picture.split("/")
            if len(parts) < 3:
                place = f"{files.display_name(name)}: line {number}"
                raise DataError(f"{place} is '{line[:80]}'; need 'domain/class/file label'")
            if parts[1] in self.class_names:
                listed.append((picture, self.class_names.index(parts[1])))
        if not listed:
            raise DataError(f"{files.display_name(name)}: lists no picture of {', '.join(self.class_names)}")
        return listed

    def _with_domains(self, parsed: ParsedSplits, counts: Sequence[tuple[int, int]]) -> ParsedSplits:
        ids = np.arange(len(counts), dtype=np.int64)
        train, test = (
            replace(part, domain=np.repeat(ids, [pair[side] for pair in counts]))
            for side, part in enumerate((parsed.train, parsed.test))
        )
        return replace(parsed, train=train, test=test, domains=self.domain_names)


@published_set("office-caltech10")
class OfficeCaltech10(_DomainFolders):
    pass


@published_set("domainnet")
class DomainNet(_DomainFolders):
    pass
