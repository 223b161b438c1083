"""A scenario: a source dealt to clients, with training, validation and test views. No sample is copied."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from fedloom.core.errors import ConfigError, short_repr
from fedloom.data.dataset import Dataset
from fedloom.data.digest import DIGITS, add_array, add_metadata, add_samples
from fedloom.data.views import Indices, Views

if TYPE_CHECKING:
    from fedloom.data.attacks.attack import Attack

TestRows = Literal["official", "train", "train+test"]
"""Where a scenario's test samples come from: the source's test set, or the clients' own pool."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Clients and their data.

    Attributes:
        train: views per client into `train_set`.
        val: views per client into `train_set`.
        test: views per client into `test_set`.
        test_set: the global test set.
        test_origin: "official" if `test_set` is the source's; otherwise it is the union of the clients' own test
            samples, the rows `test_rows` of the training set ("train") or of the training and then the official test
            set.
        draws: how many draws the partition took.
        accepted: how many of them it accepted.
        public: samples that the server holds.
        attack: how the clients `bad` (ids, ascending) misbehave; their training data are changed already.
        remote: clients keep their samples to themselves; `train_set` is a stand-in, and views only get the right sizes.
        notes: sentences on unusual samples (`Splits.notes`).
        source_digest: digest of the source's samples before they were dealt, empty if unknown.
        newcomers: clients that never train, with views into the same training samples.
        newcomer_ids: their ids before they were held out, after which the others were numbered anew.
        by_owners: whether each client is an owner that the data came with.

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
    attack: Attack | None = None
    bad: tuple[int, ...] = ()
    remote: bool = False
    notes: tuple[str, ...] = ()
    source_digest: str = ""
    newcomers: Scenario | None = None
    newcomer_ids: tuple[int, ...] = ()
    by_owners: bool = False

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
        lines = [f"{self.clients} clients, {self.num_classes} classes, samples of shape {self.train_set.input_shape}"]
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
        """The share of the partition's draws that were accepted, in (0, 1]."""
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
        """Hash (16 hex digits) of what was dealt, by which a run folder knows its data again: as `digest`, with all
        names, domains and tested rows.

        Of a known source (`source_digest`), samples are not hashed a second time: skews change them as the config says,
        but need not round alike on every processor.
        """
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

    def _add_views(self, digest: hashlib._Hash) -> None:
        """Add the views, those of newcomers too, and the attack."""
        of_newcomers = () if (held := self.newcomers) is None else (held.train, held.val, held.test)
        for views in (self.train, self.val, self.test, *of_newcomers):
            digest.update(np.ascontiguousarray(views.order).data)
            digest.update(np.ascontiguousarray(views.offsets).data)
        if self.attack is not None:
            digest.update(str((self.attack.kind, self.attack.model_dump(), self.bad)).encode())

    def _sets(self) -> list[Dataset]:
        """All samples: the clients', the test samples, and the server's if it has any."""
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
