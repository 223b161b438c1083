"""MNIST and its relatives in IDX files: Fashion-MNIST and EMNIST."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocator, ParsedSamples, ParsedSplits
from fedloom.data.sources.files import Files
from fedloom.data.sources.idx import idx_names, parse_idx_set
from fedloom.data.sources.published import PublishedImages
from fedloom.data.sources.source import source

_FIRST = "train-images-idx3-ubyte"
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@source("mnist")
class MNIST(PublishedImages):
    """MNIST (LeCun et al. 1998): 60,000 + 10,000 gray images of 28x28, 10 classes; the four IDX files, .gz or not, or
    `mnist.npz` in the Keras convention. Official test set kept.
    """

    publisher: ClassVar[str] = "Yann LeCun, Corinna Cortes and Christopher Burges as four train-/t10k- IDX files"
    published: ClassVar[tuple[tuple[float, ...], tuple[float, ...]] | None] = ((0.1307,), (0.3081,))

    def layouts(self) -> Sequence[tuple[str, str]]:
        folders = [("", name) for name in (f"{_FIRST}.gz", _FIRST)] + [("MNIST/raw", _FIRST)]
        return [*folders, ("mnist.npz", "")]

    def names_to_read(self, files: Files) -> list[str] | None:
        return idx_names(files, "train", "t10k")

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        return parse_idx_set(files, "train", "t10k", self.class_names)


@source("fashion-mnist")
class FashionMNIST(MNIST):
    """Fashion-MNIST (Xiao et al. 2017, MIT licence): 60,000 + 10,000 images of 28x28, 10 classes.

    Official test set kept.
    """

    published: ClassVar[tuple[tuple[float, ...], tuple[float, ...]] | None] = ((0.2860,), (0.3530,))
    class_names: ClassVar[tuple[str, ...]] = (
        "t-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    )

    path: Path | None = Field(
        _DEBIAN,
        description="Folder of the four IDX files; without it, the folder of Debian's package `dataset-fashion-mnist`.",
    )

    def data_path(self) -> Path:
        if self.path is not None and not self.path.exists():
            raise DataError(
                f"source fashion-mnist: no folder {self.path}; install Debian's package dataset-fashion-mnist, or set "
                "scenario.path to a folder with the four IDX files"
            )
        return super().data_path()


@source("emnist")
class EMNIST(PublishedImages):
    """EMNIST (Cohen et al. 2017): gray images of 28x28, 47 classes of digits and letters. The published `gzip.zip`, or
    its IDX files in a folder.

    The published images are transposed; they are turned upright here, as MNIST's are.
    """

    publisher: ClassVar[str] = "NIST as gzip.zip with emnist-<subset>-train-images-idx3-ubyte.gz and three more"
    checksums: ClassVar[dict[str, str]] = {"gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"}
    class_names: ClassVar[tuple[str, ...]] = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
    model: ClassVar[str] = "emnist-cnn"

    subset: Literal["bymerge", "balanced"] = Field(
        "bymerge",
        description="Part of EMNIST: bymerge (697,932 + 116,323 images) or balanced (112,800 + 18,800 images).",
    )

    def layouts(self) -> Sequence[tuple[str, str]]:
        first = f"emnist-{self.subset}-{_FIRST}"
        folders = [(place, f"{first}{gz}") for place in ("", "gzip", "EMNIST/raw") for gz in (".gz", "")]
        return [*folders, ("gzip.zip", "")]

    def names_to_read(self, files: Files) -> list[str] | None:
        return idx_names(files, f"emnist-{self.subset}-train", f"emnist-{self.subset}-test")

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        stored = parse_idx_set(files, f"emnist-{self.subset}-train", f"emnist-{self.subset}-test", self.class_names)
        train, test = (ParsedSamples(part.x.swapaxes(-1, -2), part.y) for part in (stored.train, stored.test))
        return replace(stored, train=train, test=test)
