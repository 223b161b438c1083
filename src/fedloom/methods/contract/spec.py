"""What a method says of itself as data: what is shared, which nets it trains, what the server sees of each client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedloom.nets.roles import Role


@dataclass(frozen=True, slots=True)
class Sent:
    """How the server uses what clients send under one name.

    per_client: it needs every client's own; otherwise only their mean (`Method.mean`), which a wrapper may replace and secure
    aggregation may compute. labels: whether it is counted or averaged by class, and so tells of a client's label mix
    directly; trained weights tell of it indirectly.
    form: how a tree is written: "whole", with the entries that came down under its name; as a "change", to be added to
    something; or in a form of the method's "own", which no wrapper can read.
    spread: how far the uploads of honest clients lie apart under this name, beside what is usual (1). A federation's
    bound on their size (`flower.max_ratio`) is multiplied by it.
    """

    per_client: bool = False
    labels: bool = False
    form: Literal["whole", "change", "own"] = "whole"
    spread: float = 1.0


@dataclass(frozen=True, slots=True)
class Spec:
    """What others must know of a method without running it.

    private: roles that stay with the client between rounds and never travel.
    nets: several nets trained side by side as one `Bundle`, by name: None for the run's model, or the name of another
    registered one; empty for a single net. private_nets: those of them that stay with the client whole.
    architectures: "one", or "any": clients may have different nets.
    sends: what clients send, by name, beside the number of their samples ("samples").
    batch_statistics: the loss needs at least two samples; batches of one are skipped (as with batch norm).
    features: it needs `net.features(x)` and a head on top of them; nets without a head are refused.
    head_bias: False takes the bias out of the net's head before anything else happens.
    views: 2 gives losses a second augmented view of every batch (`Batch.second`).
    public: what it needs of data at the server: "inputs", or "labels" of the clients' classes; None if nothing.
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
    unstackable: str | None = None
