"""The declaration of a method: what it sends and keeps, which nets it trains, and what it needs of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedloom.nets.net import Role


@dataclass(frozen=True, slots=True)
class Sent:
    """How the server uses an entry of the uploads.

    Attributes:
        per_client: the server reads the entry of every client. If False, it only needs their mean (`Method.mean`),
            which a wrapper may replace and secure aggregation may compute.
        labels: the entry is counted or averaged by class, and so tells a client's label mix directly.
        form: how a tree is written. "whole": weights, with the entries that the server sent under this name. "change":
            an update. "own": a format that wrappers such as compression must not touch.
        sliced: entries of a tree are leading slices of the server's, of another size for each client, and the server
            averages them by `Method.mean(..., within=...)`.
        spread: how far the entries of honest clients lie apart, relative to weights (1). It multiplies the federation's
            bound on the size of uploads (`flower.max_ratio`); infinite for an entry that must not be compared.
        dp: what `+dp` does with an entry that is read client by client. "noise": it is a class table, of which the
            server can read every client's rows with noise, all classes held. "ones": it counts samples by class, and
            the server can do with ones, which weigh all clients the same. "refuse": neither would do.
        no_feedback: roles of a tree's entries to whose next change compression must not add what it left out of this
            one: the client goes on from its own and not from what it receives, so that the next change has it anyway,
            or it may train another of several models next time.
    """

    per_client: bool = False
    labels: bool = False
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
        sends: the entries of an upload, by name, beside the number of samples ("samples").
        batch_statistics: the loss needs at least two samples, so batches of one are skipped (as with batch norm).
        features: the method needs `net.features(x)` and a head on top of them; nets without a head are refused.
        head_bias: False removes the bias of the net's head before the run starts.
        views: 2 gives losses a second augmented view of every batch (`Batch.second`).
        public: the data that the server must hold: "inputs", "labels" (inputs with the clients' classes), or None.
        pooled: one client has the training samples of all, and nothing travels: a reference, for simulation alone.
        unstackable: why clients cannot be trained in one stack under `torch.vmap`; None if they can.
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
