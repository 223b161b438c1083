"""A scenario: a source dealt to clients, with training, validation and test views; and measures of its skew."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil, floor, isfinite, isinf, log10
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedloom.core.errors import ConfigError, short_repr
from fedloom.data.dataset import DIGITS, Dataset, add_array, add_metadata, add_samples
from fedloom.data.imputation import ImputedColumn, impute, imputed_cells
from fedloom.data.views import Indices, Views, evenly_spaced, positives, starts

if TYPE_CHECKING:
    from fedloom.data.attacks import Attack


TestRows = Literal["official", "train", "train+test"]
"""Where a scenario's test samples come from: the source's test set, or the clients' own pool."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Clients and their data.

    Attributes:
        train, val: views per client into `train_set`.
        test: views per client into `test_set`, the global test set.
        test_origin: "official" if `test_set` is the source's; otherwise it is the union of the clients' own test
            samples, the rows `test_rows` of the training set ("train") or of the training and then the official test
            set.
        draws, accepted: how many draws the partition took, and how many of them it accepted.
        public: samples that the server holds.
        attack: how the clients `bad` (ids, ascending) misbehave; their training data are changed already.
        remote: clients keep their samples to themselves; `train_set` is a stand-in, and views only get the right sizes.
        notes: sentences on unusual samples (`Splits.notes`).
        source_digest: digest of the source's samples before they were dealt, empty if unknown.
        newcomers: clients that never train, with views into the same training samples. newcomer_ids: their ids before
            they were held out and the other clients were renumbered.
        by_owners: whether each client is an owner that the data came with.
        suspect: the column of `Dataset.suspect`; "none" where a key says that there are no groups.
        flow: `Splits.flow`.

    Raises `ConfigError` if public samples have another shape than the clients'.
    """

    name: str
    train_set: Dataset
    test_set: Dataset
    train: Views
    val: Views
    test: Views
    draws: int = 1
    accepted: int = 1
    test_origin: TestRows = "official"
    test_rows: Indices | None = None
    public: Dataset | None = None
    attack: "Attack | None" = None
    bad: tuple[int, ...] = ()
    remote: bool = False
    notes: tuple[str, ...] = ()
    source_digest: str = ""
    newcomers: "Scenario | None" = None
    newcomer_ids: tuple[int, ...] = ()
    by_owners: bool = False
    suspect: str = ""
    flow: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        public, data = self.public, self.train_set
        if public is None:
            return
        (public_is_tokens, public_shape), (is_tokens, shape) = (
            (samples.x.dtype == torch.int64, samples.input_shape) for samples in (public, data)
        )
        if (public_is_tokens, public_shape) != (is_tokens, shape):
            public_kind, kind = ("token ids" if tokens else "values" for tokens in (public_is_tokens, is_tokens))
            raise ConfigError(
                f"scenario.public: samples are {public_kind} of shape {public_shape}, the clients' are {kind} of shape "
                f"{shape}; take a source with the clients' shape"
            )

    def __repr__(self) -> str:
        further = (
            [] if self.attack is None else [f"attack {self.attack.kind} by {len(self.bad)} of {self.clients} clients"]
        )
        further += [] if self.newcomers is None else [f"{self.newcomers.clients} newcomers"]
        further += [] if self.public is None else [f"{len(self.public)} public samples"]
        classes = f"{self.num_classes} {'labels' if self.train_set.multi else 'classes'}"
        lines = [f"{self.clients} clients, {classes}, samples of shape {self.train_set.input_shape}"]
        sizes = ((len(views.order), name) for views, name in ((self.train, "training"), (self.val, "validation")))
        lines.append(", ".join([*(f"{size} {name}" for size, name in sizes), f"{len(self.test_set)} test", *further]))
        return f"Scenario({short_repr(self.name)}: " + ";\n  ".join(lines) + ")"

    @property
    def clients(self) -> int:
        """The number of clients N."""
        return len(self.train)

    @property
    def num_classes(self) -> int:
        """The number of classes C."""
        return self.train_set.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class [C]; of whole-numbered labels the number."""
        return self.train_set.classes

    @property
    def normalisation(self) -> dict[str, list[float]] | None:
        """The normalisation of stored values before a net sees them, see `Dataset.normalisation`."""
        return self.train_set.normalisation

    @property
    def acceptance(self) -> float:
        """The share of the partition's draws that were accepted, in [0, 1]."""
        return self.accepted / self.draws

    def digest(self) -> str:
        """Hash all samples, labels, views and the standardisation of features (16 hex digits), with public samples."""
        digest = hashlib.sha256()
        for data in self._sets():
            add_samples(digest, data)
            if data.x.dim() == 2 and data.mean is not None:  # for images it is no part: run folders know them without
                digest.update(str(data.normalisation).encode())
        self._add_views(digest)
        return digest.hexdigest()[:DIGITS]

    def dealt_digest(self) -> str:
        """Hash (16 hex digits) of the dealt data, by which a run folder knows its data. Samples of a known source
        (`source_digest`) are not hashed again after skews: processors may round the changes of a skew differently."""
        digest = hashlib.sha256(self.source_digest.encode())
        for data in self._sets():
            if self.source_digest and data is not self.public:
                add_array(digest, data.y)
                continue
            add_samples(digest, data)
            add_metadata(digest, data)
        self._add_views(digest)
        if self.test_rows is not None:
            digest.update(np.ascontiguousarray(self.test_rows).data)
        return digest.hexdigest()[:DIGITS]

    def _add_views(self, digest: "hashlib._Hash") -> None:
        of_newcomers = () if (held := self.newcomers) is None else (held.train, held.val, held.test)
        for views in (self.train, self.val, self.test, *of_newcomers):
            digest.update(np.ascontiguousarray(views.order).data)
            digest.update(np.ascontiguousarray(views.offsets).data)
        if self.attack is not None:
            digest.update(str((self.attack.kind, self.attack.model_dump(), self.bad)).encode())

    def _sets(self) -> list[Dataset]:
        return [self.train_set, self.test_set, *([] if self.public is None else [self.public])]

    def class_counts(self, first: int | None = None) -> Indices:
        """Count training samples per client and class [N, C]; with `first`, only of the first clients."""
        return self.train.class_counts(self.train_set.y.numpy(), self.num_classes, first)

    def domain_counts(self, first: int | None = None) -> Indices:
        """Count training samples per client and domain [N, D]; D = 0 if the source knows no domains."""
        domain, domains = self.train_set.domain, len(self.train_set.domains)
        if domain is None:
            return np.zeros((min(self.clients, self.clients if first is None else first), 0), np.int64)
        return self.train.class_counts(domain.numpy(), domains, first)


def recorded_labels(scenario: Scenario) -> Indices:
    """Count the training samples of each client that record each label [N, L]."""
    is_recorded = (scenario.train_set.y.numpy() >= 0).astype(np.int64)
    return scenario.train.class_counts(is_recorded, scenario.num_classes)


_SAMPLES = 500  # of each domain, for its figures of feature shift


@dataclass(frozen=True, slots=True)
class LabelSkew:
    """Measures over the clients that hold samples."""

    total_variation: float  # mean over pairs of clients of 1/2 sum_c |p_k(c) - p_q(c)|, in [0, 1]
    classes_per_client: float  # mean number of classes held
    imbalance: float  # largest class / smallest class over all clients; inf if one is empty
    size_ratio: float  # largest client / smallest client
    empty_clients: tuple[int, ...]
    empty_classes: tuple[int, ...]


def label_skew(views: Views, labels: Indices, num_classes: int, max_pairs: int = 500) -> LabelSkew:
    """Measure the label skew of views into samples with `labels` [n] of num_classes classes, or [n, L], whose positives
    count; the total variation over the pairs of at most `max_pairs` evenly spaced clients."""
    rows, held_labels = positives(labels[views.order])
    sizes, holders = views.sizes, views.holders()[rows]
    label_sizes, totals = (
        np.bincount(of, minlength=least) for of, least in ((holders, len(views)), (held_labels, num_classes))
    )
    of_clients = Views(held_labels, starts(label_sizes))
    class_client_pairs = len(np.unique(holders * num_classes + held_labels))  # with at least one sample
    chosen: list[int] = evenly_spaced(np.flatnonzero(label_sizes), max_pairs).tolist()
    shares = [np.bincount(of_clients[k], minlength=num_classes) / label_sizes[k] for k in chosen]
    distances = [total_variation(shares[k + 1 :], shares[k]) for k in range(len(shares) - 1)]
    held = int((sizes > 0).sum())
    return LabelSkew(
        total_variation=float(np.concatenate(distances).mean()) if distances else 0.0,
        classes_per_client=class_client_pairs / held if held else 0.0,
        imbalance=float(totals.max() / totals.min()) if totals.min() > 0 else float("inf"),
        size_ratio=float(sizes.max() / sizes[sizes > 0].min()) if held else float("inf"),
        empty_clients=tuple(np.flatnonzero(sizes == 0).tolist()),
        empty_classes=tuple(np.flatnonzero(totals == 0).tolist()),
    )


def total_variation(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """Return the total variation [...] of two distributions p and q [..., C] that broadcast, half of sum |p - q|: 0 for
    equal ones, 1 for those without a common class.

    Example:
        >>> float(total_variation([0.5, 0.5], [1.0, 0.0]))
        0.5
    """
    return np.asarray(np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64)).sum(-1) / 2)


def feature_shift(data: Dataset) -> float | None:
    """Return the mean over pairs of domains of the RMS, over inputs, of |mean_a - mean_b| / pooled standard deviation:
    1 where domains differ by one standard deviation at every input. It is taken over at most 500, evenly spaced samples
    of each domain, without constant inputs. None without at least two domains that hold samples, and for tokens."""
    if data.domain is None or (not data.x.dtype.is_floating_point and data.x.dtype != torch.uint8):
        return None
    moments = []
    for domain in range(len(data.domains)):
        members = np.flatnonzero(data.domain == domain)
        if len(members):
            x = data.x[evenly_spaced(members, _SAMPLES)].flatten(1).double()
            moments.append((x.mean(0), x.var(0, correction=0)))
    shifts = []
    for (mean_a, var_a), (mean_b, var_b) in combinations(moments, 2):
        pooled = (var_a + var_b) / 2
        varies = pooled > 0
        squared = (mean_a - mean_b).square()[varies] / pooled[varies]
        shifts.append(float(squared.mean().sqrt()) if len(squared) else 0.0)
    return sum(shifts) / len(shifts) if shifts else None


PICTURED_CLIENTS = 200


def client_samples(described: Mapping[str, Any]) -> list[int]:
    """Return the training samples of the first clients of what `describe_scenario` has returned."""
    return described.get("client_samples") or [sum(row) for row in described.get("class_counts") or ()]


def describe_scenario(scenario: Scenario) -> dict[str, Any]:
    """Return class and domain counts of the first clients, and skew measures of all, as JSON values; of remote clients
    only their number. With several labels also their samples, and positives, recorded cells and clients by label."""
    data = scenario.train_set
    if scenario.remote:
        known = {"name": scenario.name, "clients": scenario.clients, "classes": list(data.classes)}
        return known | ({"labels": {}} if data.multi else {})
    skew = label_skew(scenario.train, data.y.numpy(), scenario.num_classes)
    sizes = sorted(size for size in scenario.test.sizes.tolist() if size)
    attack = scenario.attack
    several: dict[str, Any] = {}
    if data.multi:
        recorded, positives = recorded_labels(scenario), scenario.class_counts().sum(0)
        by_label = {"positives": positives, "recorded": recorded.sum(0), "clients": (recorded > 0).sum(0)}
        several = {"labels": {key: values.tolist() for key, values in by_label.items()}}
        several["client_samples"] = scenario.train.sizes[:PICTURED_CLIENTS].tolist()
    attack_entry = (
        {} if attack is None else {"attack": {"name": attack.kind, **attack.model_dump(), "clients": scenario.bad}}
    )
    return (
        attack_entry
        | {
            "name": scenario.name,
            "clients": scenario.clients,
            "classes": list(data.classes),
            "class_counts": scenario.class_counts(PICTURED_CLIENTS).tolist(),
            "domains": list(data.domains),
            "domain_counts": scenario.domain_counts(PICTURED_CLIENTS).tolist() if data.domain is not None else [],
            "feature_shift": feature_shift(data),
            "draws": scenario.draws,
            "acceptance": scenario.acceptance,
            "total_variation": skew.total_variation,
            "classes_per_client": skew.classes_per_client,
            "imbalance": None if isinf(skew.imbalance) else skew.imbalance,
            "size_ratio": None if isinf(skew.size_ratio) else skew.size_ratio,
            "empty_clients": len(skew.empty_clients),
            "empty_classes": list(skew.empty_classes),
            "train_samples": len(scenario.train.order),
            "val_samples": len(scenario.val.order),
            "test_samples": len(scenario.test_set),
            "notes": list(scenario.notes),
        }
        | ({"client_test_smallest": sizes[0], "client_test_median": float(median(sizes))} if sizes else {})
        | ({"newcomers": list(scenario.newcomer_ids)} if scenario.newcomer_ids else {})
        | several
    )


def describe_input(data: Dataset, rows: np.ndarray | None = None) -> dict[str, Any]:
    """Return how samples must look for a net trained on `data`, the training set, as JSON values. Keys: `shape` of one
    sample; `dtype` as stored: uint8, float32, or int64 for token ids; `mean` and `std` [c] that normalise stored
    values, or None; `white`: the stored value of a picture's brightest pixel, None for other data; `ids`: the number of
    token ids, and `words` those from id 2 on; `features`: the columns of a table, or "column=word"; `ranges`: for each
    feature the lowest and highest value, rounded outwards to about a tenth of their distance, which hides the exact
    value of a single person; `imputed`: only where missing cells are filled, by which values. rows: numbers of the
    samples that clients train on, for `ranges`; None takes all."""
    mean, std = (None if moments is None else moments.tolist() for moments in (data.mean, data.std))
    tokens = data.x.dtype == torch.int64
    return {
        "shape": list(data.input_shape),
        "dtype": str(data.x.dtype).removeprefix("torch."),
        "mean": mean,
        "std": std,
        "white": _white(data) if data.x.dim() == 4 else None,
        # Words that no sample holds have ids as well; without words the largest id is all that is known.
        "ids": max(int(data.x.max()) + 1, len(data.words) + 2) if tokens else None,
        "words": list(data.words),
        "features": list(data.features),
        "ranges": _ranges(data.x if rows is None else data.x[torch.from_numpy(rows)]) if data.features else [],
    } | ({"imputed": [column.model_dump(mode="json") for column in data.imputed]} if data.imputed else {})


def _ranges(x: Tensor) -> list[tuple[float, float]]:
    if not len(x):
        return []
    lowest, highest = x.min(0).values.tolist(), x.max(0).values.tolist()
    return [_rounded_outwards(*ends) for ends in zip(lowest, highest, strict=True)]


def _rounded_outwards(low: float, high: float) -> tuple[float, float]:
    """Return a range on a grid whose step is a power of ten, at most a tenth of the range.

    Example:
        >>> _rounded_outwards(17.3, 93.8)
        (17.0, 94.0)
    """
    if not isfinite(high - low) or low == high:
        return low, high
    exponent = floor(log10((high - low) / 10))
    step = 10.0**exponent
    # `round` takes off the rounding error of a product such as 3 * 0.1.
    return round(floor(low / step) * step, -exponent), round(ceil(high / step) * step, -exponent)


def _white(data: Dataset) -> float | None:
    """Return the stored value of white: as the format defines it, 255 for bytes above 127, else the largest value."""
    if data.white is not None:
        return data.white
    if float(data.x.min()) < 0:
        return None
    largest = float(data.x.max())
    return 255.0 if data.x.dtype == torch.uint8 and largest >= 128 else largest


def impute_scenario(scenario: Scenario, rules: Sequence[ImputedColumn]) -> Scenario:
    """Fill missing cells of all samples by values over the training views, and note how many. Raises `ConfigError` for
    other public features."""
    data, rows = scenario.train_set, torch.from_numpy(scenario.train.order)
    if scenario.public is not None and scenario.public.features != data.features:
        raise ConfigError("scenario.public: its features are not the clients', by whose values its cells are filled")
    position, x = {name: number for number, name in enumerate(data.features)}, data.x[rows].numpy()
    columns = [rule.fitted(x[:, [position[name] for name in rule.features]]) for rule in rules]
    counts = Counter[str]()
    for samples in [data] if scenario.test_origin != "official" else [data, scenario.test_set]:
        counts.update(impute(samples, columns)[1])
    note = f"missing cells, filled by values over the training rows: {imputed_cells(columns, counts)}"
    scenario = with_sets(scenario, lambda samples: impute(samples, columns)[0])
    return replace(scenario, notes=(*scenario.notes, note)) if counts else scenario


def with_sets(scenario: Scenario, change: Callable[[Dataset], Dataset]) -> Scenario:
    """Change all samples of a scenario, those of newcomers included, in the same way."""
    sets = {"train_set": scenario.train_set, "test_set": scenario.test_set, "public": scenario.public}
    changed: dict[str, Any] = {name: change(samples) for name, samples in sets.items() if samples is not None}
    if (newcomers := scenario.newcomers) is not None:
        test_set = changed["test_set"] if newcomers.test_set is scenario.test_set else change(newcomers.test_set)
        changed["newcomers"] = replace(newcomers, train_set=changed["train_set"], test_set=test_set)
    return replace(scenario, **changed)
