"""Arrays of samples, as stored in memory and as a net sees them, and digests of them."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import ConfigError, DataError
from fedloom.data.imputation import ImputedColumn
from fedloom.data.labels import class_ids, multi_labels

IDS = ("domain", "group", "suspect")  # of a data set: ids of each sample


@dataclass(frozen=True, slots=True)
class Dataset:
    """Samples and labels. Nothing is copied per client: clients are index views into these arrays.

    Attributes:
        x: [n, c, h, w] or [n, ...] uint8 or float32 as stored, or token ids [n, L] int64.
        y: labels [n], int64, in 0 .. C-1; of samples with several labels [n, L], 1, 0 or -1 (not recorded).
        classes: names of the C classes, or of the L labels.
        mean: mean of each channel [c] in stored units; batches are normalised with it when they are gathered.
        std: standard deviation of each channel [c] in stored units.
        domain: [n] int64, an index into `domains`; None if samples have one origin.
        domains: names of the origins.
        features: names [d] of a table's numbers, "column" or "column=word" (1 if the column holds that word, else 0).
        words: of a text source, from token id 2 on.
        white: stored value of the brightest pixel, if the picture format defines it.
        group: [n] int64, the person, specimen or scene of each sample, numbered as the sorted ids, the same in the
            training and the test set; None if no key names one.
        suspect: the same of a column that looks like groups, where no key says what it is.
        imputed: by which values missing cells of a table were filled.
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    mean: Tensor | None = None
    std: Tensor | None = None
    domain: Tensor | None = None
    domains: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    white: float | None = None
    group: Tensor | None = None
    suspect: Tensor | None = None
    imputed: tuple[ImputedColumn, ...] = ()

    @property
    def num_classes(self) -> int:
        """The number of classes C, or of labels L."""
        return len(self.classes)

    @property
    def multi(self) -> bool:
        """Whether samples have several labels, which do not exclude each other."""
        return self.y.dim() == 2

    def require_one_class(self, what: str, instead: str = "leave it out") -> None:
        """Raise `ConfigError` if samples have several labels, which `what` cannot work with."""
        if self.multi:
            raise ConfigError(f"{what}: needs one class for each sample, and these have several labels; {instead}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample, e.g. (1, 28, 28)."""
        return tuple(self.x.shape[1:])

    @property
    def normalisation(self) -> dict[str, list[float]] | None:
        """`mean` and `std` [c] as plain numbers: nets see (stored value - mean) / std. None: they see stored values."""
        if self.mean is None or self.std is None:
            return None
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        origins = f", {len(self.domains)} domains" if self.domain is not None else ""
        kind = str(self.x.dtype).removeprefix("torch.")
        classes = f"{self.num_classes} {'labels' if self.multi else 'classes'}"
        return f"Dataset({len(self)} samples of shape {self.input_shape}, {kind}, {classes}{origins})"

    def gather(self, indices: Tensor) -> Tensor:
        """indices [B] int64 -> normalised float32 [B, ...], where the data is; token ids stay int64 [B, L]."""
        indices = indices.to(self.x.device)
        if self.x.dtype == torch.int64:
            return self.x.index_select(0, indices)
        x = self.x.index_select(0, indices).to(torch.float32)
        if self.mean is not None and self.std is not None:
            if x.device.type == "cpu" and len(self.mean) == 1:  # a number costs less than a tensor that is stretched
                return x.sub_(float(self.mean)).div_(float(self.std))
            shape = (1, -1, *(1,) * (x.dim() - 2))
            x.sub_(self.mean.view(shape)).div_(self.std.view(shape))
        return x

    def to(self, device: torch.device) -> "Dataset":
        """Return the set with its arrays on `device`, or itself if they are there already."""
        if self.x.device == device:
            return self
        stored = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in stored.items() if isinstance(value, Tensor)}
        return replace(self, **moved)

    def take(self, rows: Tensor | slice) -> "Dataset":
        """Return the samples `rows`: a copy for indices [m] int64, shared memory for a slice."""
        ids: dict[str, Any] = {key: of[rows] for key in IDS if (of := getattr(self, key)) is not None}
        return replace(self, x=self.x[rows], y=self.y[rows], **ids)

    def without_values(self, rows: np.ndarray) -> "Dataset":
        """Return the samples `rows` [m] without their values, x [m, 0]."""
        return replace(self, x=self.x[:, :0]).take(torch.from_numpy(rows))

    def head(self, count: int) -> "Dataset":
        """Return the first `count` samples, or all if there are fewer; memory is shared."""
        return self.take(slice(count))


def checked(
    x: np.ndarray,
    y: np.ndarray,
    *,
    origin: str,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    domain: np.ndarray | None = None,
    domains: Sequence[str] = (),
    tokens: bool = False,
    group: np.ndarray | None = None,
    labels: Literal["single", "multi"] = "single",
) -> Dataset:
    """Check arrays of the set `origin` and build a `Dataset`. x: samples; images [n, h, w] get a channel axis. y:
    labels [n] or [n, 1], 0 .. C - 1; "multi" `labels` are [n, L] of 1, 0 and -1 or NaN (not recorded). classes:
    names; None takes those of the labels (`class_ids`). mean, std: of each channel [c], in the units of `x`. domain: an
    index [n] into the names `domains`. tokens: keep `x` as token ids [n, L]. group: number of each sample's group [n].

    Raises `DataError` for mismatched lengths, labels outside 0 .. C-1, unusable dtypes, values that are not finite, and
    domain ids that do not fit `domains`."""
    y = np.asarray(y)
    multi = labels == "multi"
    if multi:
        (y,), classes = multi_labels([y], origin, classes)
    elif y.ndim == 2 and y.shape[1] == 1:  # the Keras convention keeps a trailing axis in some sets
        y = y[:, 0]
    if x.ndim == 0 or y.ndim != 1 + multi or len(x) != len(y):
        shapes = f"samples of shape {x.shape} but labels of shape {y.shape}"
        raise DataError(f"{origin}: {shapes}; need one label per sample{one_hot_hint(x, y)}")
    if len(y) == 0:
        raise DataError(f"{origin}: holds no samples")
    if x.size == 0:
        raise DataError(f"{origin}: samples of shape {x.shape[1:]} hold no values")
    if not np.issubdtype(y.dtype, np.integer):
        is_whole = y.dtype.kind == "f" and bool((np.isfinite(y) & (y == np.floor(y))).all())
        gaps = int(np.isnan(y).sum()) if y.dtype.kind == "f" else 0
        hint = f"; {gaps} are NaN: leave samples without a label out" if gaps else ""
        hint = "; convert them with y.astype(int)" if y.dtype.kind == "b" or is_whole else hint
        raise DataError(f"{origin}: labels have dtype {y.dtype!s:.60}; need integers 0 .. C-1{hint}")
    if classes is None:
        (y,), classes = class_ids([y], origin)
    num_classes = len(classes)
    if not multi and (y.min() < 0 or y.max() >= num_classes):
        wrong = int(y.min() if y.min() < 0 else y.max())
        hint = "; samples without a label must be left out" if wrong < 0 else ""
        raise DataError(f"{origin}: label {wrong} is outside 0 .. {num_classes - 1}{hint}")
    x = _token_ids(x, origin) if tokens else _values(x, origin)
    return Dataset(
        torch.from_numpy(np.require(x, requirements=["C", "W"])),  # torch warns on memory it must not write to
        torch.from_numpy(y.astype(np.int64)),
        tuple(classes),
        None if mean is None else torch.tensor(mean, dtype=torch.float32),
        None if std is None else torch.tensor(std, dtype=torch.float32),
        None if domain is None else torch.from_numpy(_domain_ids(domain, len(y), len(domains), origin)),
        tuple(domains),
        group=None if group is None else torch.from_numpy(group.astype(np.int64)),
    )


def one_hot_hint(x: np.ndarray, y: np.ndarray) -> str:
    """Return a hint for messages if labels are [n, C], else "". Rows with no 1 or several are no class ids."""
    if y.ndim != 2 or x.ndim == 0 or len(x) != len(y) or y.dtype.kind not in "biuf":
        return ""
    if np.isin(y, (0, 1, -1)).all():
        if not (several := multi_label_rows(y)):
            return "; one-hot labels [n, C] become class ids by y.argmax(1)"
        return (
            f"; {several:,} of {len(y):,} rows hold no 1 or several: multi-label data, where argmax would mislabel "
            "samples; say `labels: multi` (in Python labels='multi')"
        )
    if y.dtype.kind == "f" and (y >= 0).all() and np.allclose(y.sum(1), 1, atol=1e-3):
        return "; probabilities [n, C] become class ids by y.argmax(1)"
    return "; several values for each sample; take the column of the classes, such as y[:, 0]"


def multi_label_rows(y: np.ndarray) -> int:
    """Count the rows of labels [n, L] that are not one-hot, so that they are no class ids; 0 for other labels."""
    if y.ndim != 2 or y.shape[1] < 2 or y.dtype.kind not in "biuf" or not np.isin(y, (0, 1, -1)).all():
        return 0
    return int(((y == 1).sum(1) != 1).sum() if (y >= 0).all() else len(y))


def _values(x: np.ndarray, origin: str) -> np.ndarray:
    """Return uint8 or finite float32 values, images with a channel axis."""
    if x.dtype != np.uint8:
        if not np.issubdtype(x.dtype, np.number) or np.issubdtype(x.dtype, np.complexfloating):
            hint = '; convert them with x.astype("uint8")' if x.dtype == np.bool_ else ""
            raise DataError(f"{origin}: samples have dtype {x.dtype!s:.60}; need uint8 or real numbers{hint}")
        with np.errstate(over="ignore"):  # values that do not fit float32 become infinite, and are refused below
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            hint = "; `incomplete` drops or imputes NaN" if x.ndim == 2 and not np.isinf(x).any() else ""
            need = f"need finite numbers{hint}"
            raise DataError(f"{origin}: {int((~np.isfinite(x)).sum())} values are NaN or infinite; {need}")
    return x[:, None] if x.ndim == 3 else x


def _token_ids(x: np.ndarray, origin: str) -> np.ndarray:
    if x.ndim != 2 or not np.issubdtype(x.dtype, np.integer):
        raise DataError(f"{origin}: token ids have shape {x.shape} and dtype {x.dtype}; need integers [n, length]")
    if x.size and x.min() < 0:
        raise DataError(f"{origin}: token id {x.min()} is negative; need ids from 0 (padding)")
    return x.astype(np.int64, copy=False)


def _domain_ids(domain: np.ndarray, samples: int, num_domains: int, origin: str) -> np.ndarray:
    if domain.shape != (samples,) or not np.issubdtype(domain.dtype, np.integer):
        raise DataError(f"{origin}: domain ids have shape {domain.shape} and dtype {domain.dtype}; need ({samples},)")
    if domain.min() < 0 or domain.max() >= num_domains:
        wrong = int(domain.min() if domain.min() < 0 else domain.max())
        raise DataError(f"{origin}: domain id {wrong} is outside 0 .. {num_domains - 1}")
    return domain.astype(np.int64)


def channel_moments(x: np.ndarray) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation (1 if constant) per channel, in stored units, of x: [n, h, w], [n, c, h, w] or
    [n, c, d, h, w]. Bytes are summed exactly, block by block."""
    images = x[:, None] if x.ndim == 3 else x
    moments = []
    for plane in np.moveaxis(images, 1, 0):
        if plane.dtype == np.uint8:
            moments.append(_byte_moments(plane))
        elif plane.min() == plane.max():
            moments.append((float(plane.min()), 0.0))  # not the rounding error of the mean
        else:
            with np.errstate(invalid="ignore", over="ignore"):  # infinite values are `checked`'s to refuse
                moments.append((float(plane.mean(dtype=np.float64)), float(plane.std(dtype=np.float64))))
    return [mean for mean, _ in moments], [std or 1.0 for _, std in moments]


def constant_inputs(train: Dataset) -> tuple[str, ...]:
    """Return notes on samples that are almost constant (values span at most a hundredth of the training set's) or all
    the same, from which nothing can be learned. Token ids have no notes."""
    if train.x.dtype == torch.int64:
        return ()
    x = train.x.numpy()
    samples = x.reshape(len(x), -1)
    low, high = samples.min(1), samples.max(1)
    span = float(high.max()) - float(low.min())
    if span == 0:
        return (f"all {len(x):,} training samples are the same constant, {float(low[0]):g}",)
    notes = []
    if len(x) > 1 and all(np.array_equal(sample, samples[0]) for sample in samples):
        notes.append(f"all {len(x):,} training samples are the same")
    if x.ndim < 4:
        return tuple(notes)
    if constant := int((high.astype(np.float64) - low <= span / 100).sum()):
        blank = f"{constant:,} of {len(x):,}"
        notes.append(f"training samples that are constant or nearly so (blank pictures, say): {blank}")
    flat = [str(channel) for channel in range(x.shape[1]) if x[:, channel].min() == x[:, channel].max()]
    if flat:
        notes.append(f"channels that are constant in all training samples: {', '.join(flat[:5])} of {x.shape[1]}")
    return tuple(notes)


def _byte_moments(plane: np.ndarray) -> tuple[float, float]:
    total, squares = 0, 0
    step = max(1, 2**16 // max(1, plane[0].size))
    for start in range(0, len(plane), step):
        block = plane[start : start + step].astype(np.uint32)  # squares fit; numpy sums them in 64 bits
        total += int(block.sum())
        block *= block
        squares += int(block.sum())
    n = plane.size
    # In Python's integers, which have no bound: n * squares passes 64 bits for a set such as CIFAR-10.
    return total / n, ((n * squares - total * total) / n**2) ** 0.5


DIGITS = 16  # hex digits of a digest


def sets_digest(sets: Iterable[Dataset]) -> str:
    """Hash samples, labels, domains, names and normalisation of data sets (16 hex digits), at 0.6 s per GB."""
    digest = hashlib.sha256()
    for data in sets:
        add_samples(digest, data)
        add_metadata(digest, data)
    return digest.hexdigest()[:DIGITS]


def add_samples(digest: "hashlib._Hash", data: Dataset) -> None:
    """Add the dtype and shape of the samples, the names of the classes, the samples, their labels and groups."""
    digest.update(str((data.x.dtype, tuple(data.x.shape), data.classes)).encode())
    add_array(digest, data.x)
    add_array(digest, data.y)
    if data.group is not None:
        add_array(digest, data.group)


def add_metadata(digest: "hashlib._Hash", data: Dataset) -> None:
    """Add domains, the names of features and words, and how values are normalised."""
    digest.update(str((data.domains, data.features, data.words, data.normalisation)).encode())
    if data.domain is not None:
        add_array(digest, data.domain)


def add_array(digest: "hashlib._Hash", array: Tensor) -> None:
    """Add the bytes of a tensor."""
    digest.update(array.contiguous().numpy().data)


def require_memory(needed: int, origin: str) -> None:
    """Raise `DataError` if `needed` bytes are more than this machine's memory, where that is known."""
    if not hasattr(os, "sysconf"):
        return
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > total:
        sizes = f"needs {needed / 2**30:,.1f} GiB of memory, this machine has {total / 2**30:,.1f}"
        raise DataError(f"{origin}: {sizes}; take fewer samples")
