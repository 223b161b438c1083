"""Phases that tune a trained model on a client's own data, by plain cross-entropy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

from torch import Tensor

from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.phases import Batch, Consts, OptimizerSpec, Phase, Predictor, Train
from fedloom.nets.net import Net
from fedloom.nets.roles import Role

Tuned: TypeAlias = Literal["all", "head", "lp_ft"]
_FULL_TUNING_RATE = 0.1  # of the linear probe's rate (Kumar et al. 2022)
_HEAD = frozenset({Role.HEAD})
_BODY = frozenset(Role) - _HEAD  # statistics of batch norm too


def tuning_phases(
    tuned: Tuned, predictor: Predictor, optimizer: OptimizerSpec, epochs: int, probe_epochs: int | None = None
) -> list[Phase]:
    """Return the phases that tune a predictor's weights on its own predictions.

    Args:
        tuned: "all" weights; the "head" alone, with the rest of the net in evaluation mode; or "lp_ft", the head and
            then all weights at a tenth of the rate (Kumar et al., ICLR 2022, arXiv 2202.10054).
        epochs: passes over the client's data. probe_epochs: of those that tune the head first; None takes `epochs`.
        optimizer: of the first phase; each phase starts afresh.
    """
    loss = functools.partial(_cross_entropy, predictor.logits)
    if tuned == "all":
        return [Train(loss, epochs, optimizer=optimizer)]
    passes = epochs if probe_epochs is None else probe_epochs
    probe = Train(loss, passes, trains=_HEAD, evaluates=_BODY, optimizer=optimizer)
    if tuned == "head":
        return [probe]
    return [probe, Train(loss, epochs, optimizer=replace(optimizer, lr=optimizer.lr * _FULL_TUNING_RATE))]


def _cross_entropy(logits: Callable[[Net, Tensor], Tensor], net: Net, batch: Batch, consts: Consts) -> Tensor:
    return batch.mean(cross_entropy(logits(net, batch.x), batch.y))
