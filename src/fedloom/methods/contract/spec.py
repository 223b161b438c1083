"""The declaration of a method: its uploads, private parts, nets and needs, and parts of the samples for its phases."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedloom.core.streams import Streams
from fedloom.nets.net import Role

Requirement: TypeAlias = Literal["trained_head", "trained_body", "linear_head", "same_heads", "same_width"]


@dataclass(frozen=True, slots=True)
class Sent:
    """How the server uses an entry of the uploads.

    Attributes:
        per_client: the server reads the entry of every client. If False, it only needs their mean (`Method.mean`),
            which a wrapper may replace and secure aggregation may compute.
        labels: the entry is counted or averaged by class, and so tells a client's label mix directly.
        statistic: of a client's samples, in words such as "class means of features"; empty for weights and scalars, and
            where the entry's name says it.
        form: "whole": a tree of weights, with the entries that the server sent under this name. "change": an update.
            "own": a format that wrappers such as compression must not touch.
        sliced: trees hold leading slices of the server's entries, of a size for each client (`Method.mean(within=)`).
        spread: how far the entries of honest clients lie apart, relative to weights (1), for the federation's bound on
            uploads (`flower.max_ratio`); infinite for an entry that must not be compared.
        dp: how `+dp` treats an entry that is read client by client. "noise": rows of a class table get noise, all
            classes held. "ones": counts by class become ones, which weigh all clients equally. "refuse": neither works.
        no_feedback: roles whose next change compression must not add its residual to, because the client continues from
            its own weights and not from those it receives.
    """

    per_client: bool = False
    labels: bool = False
    statistic: str = ""
    form: Literal["whole", "change", "own"] = "whole"
    sliced: bool = False
    spread: float = 1.0
    dp: Literal["refuse", "noise", "ones"] = "refuse"
    no_feedback: frozenset[Role] = frozenset()


@dataclass(frozen=True, slots=True)
class Spec:
    """The declaration of a method, which others read without running it.

    Attributes:
        private: roles that stay with the client between rounds and never travel.
        nets: nets that are trained side by side as one `Bundle`, by name; the value None stands for the run's model, a
            text for the registered model of that name. Empty: a single net.
        private_nets: names of nets that stay with the client as a whole.
        architectures: "any" if clients may have different nets, else "one".
        sends: the entries of an upload, by name, in addition to the number of samples ("samples").
        batch_statistics: the loss needs at least two samples, so batches of one are skipped (as with batch norm).
        features: the method needs `net.features(x)` and a head on top of them; nets without a head are refused.
        head_bias: False removes the bias of the net's head before the run starts.
        views: 2 gives losses a second augmented view of every batch (`Batch.second`).
        public: the data that the server must hold: "inputs", "labels" (inputs with the clients' classes), or None.
        pooled: one client has the training samples of all, and nothing travels: a reference, for simulation alone.
        unstackable: why clients cannot be trained in one stack under `torch.vmap`; None if they can.
        requires: properties that the nets must have: a "trained_head"; a "trained_body"; a "linear_head", one layer
            "head.weight" [C, d] that trains, without a bias if `head_bias` is False; "same_heads", of equal shapes in
            all groups; "same_width" of the features in all groups.
        receives: the entries of the server's state that `Method.down` sends, those that there are; None sends all.
        labels: "multi" if its loss and its statistics of classes know samples with several labels; "single" if not.
        single_because: why it needs one label a sample.
        arrivals: asynchronous: the server updates after this many uploads, from whatever state of its own the clients
            started, and `ServerContext.staleness` says how old they are. None waits for the clients of a round.
        least_work: above 0, clients get between this share and all of their usual steps, so that groups of them finish
            together, and the server updates when a group has. `arrivals` is then the smallest group.
        late: whether the server may use an upload that was trained from its state of an earlier round.
        fewer_steps: whether it corrects for clients that take fewer steps than others.
    """

    private: frozenset[Role] = frozenset()
    nets: Mapping[str, str | None] = field(default_factory=dict)
    private_nets: frozenset[str] = frozenset()
    architectures: Literal["one", "any"] = "one"
    sends: Mapping[str, Sent] = field(default_factory=lambda: {"model": Sent()})
    batch_statistics: bool = False
    features: bool = False
    head_bias: bool = True
    views: Literal[1, 2] = 1
    public: Literal["inputs", "labels"] | None = None
    pooled: bool = False
    unstackable: str | None = None
    requires: tuple[Requirement, ...] = ()
    receives: tuple[str, ...] | None = ("model",)
    labels: Literal["single", "multi"] = "single"
    single_because: str = "it does not declare Spec(labels='multi')"
    arrivals: int | None = None
    least_work: float = 0.0
    late: bool = False
    fewer_steps: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a client's training samples that is the same in every phase, round and test of a run. It and
    its `others` share no sample, and each has at least one. A client with a single sample has it in both, which a run
    reports once; a method for which that is wrong asks for `ctx.samples`.

    Attributes:
        name: of the draw. Parts of one name are cut from one random order of the client's samples.
        size: number of samples, at least 1, or their share, a float between 0 and 1, rounded to the nearest number; at
            most the client's samples less one.
        drawn: whether the samples are drawn; False takes the first ones in stored order, perhaps sorted by class.
        remainder: the samples that the part leaves.
    """

    name: str
    size: float
    drawn: bool = True
    remainder: bool = False

    def __post_init__(self) -> None:
        share = isinstance(self.size, float)
        if (share and not 0 < self.size < 1) or (not share and self.size < 1):
            raise ValueError(
                f"Part('{self.name}', {self.size}): a number of samples is an int of at least 1, a share a float "
                "between 0 and 1"
            )

    @property
    def others(self) -> "Part":
        """The samples outside this part."""
        return replace(self, remainder=not self.remainder)

    def count(self, samples: int) -> int:
        """Return how many of a client's `samples` the part has."""
        taken = self._taken(samples)
        return samples - taken if self.remainder and samples > 1 else taken

    def of(self, indices: Tensor, streams: Streams, client: int) -> Tensor:
        """Return the part of a client's `indices` [n], in stored order; `streams` and the `client`'s id draw it."""
        samples = indices.numel()
        if samples < 2:
            return indices
        inside = torch.zeros(samples, dtype=torch.bool)
        if self.drawn:
            order = streams.numpy(f"part {self.name}", 0, client).permutation(samples)
            inside[torch.from_numpy(order[: self._taken(samples)])] = True
        else:
            inside[: self._taken(samples)] = True
        return indices[inside != self.remainder]

    def _taken(self, samples: int) -> int:
        # `round` would take every other half down
        wanted = int(self.size * samples + 0.5) if isinstance(self.size, float) else self.size
        return min(max(wanted, 1), max(samples - 1, 1))
