"""FedSC as released (commit a04dc8e): what its training loop really minimises.

`torch.mean` is called there on a list; the error is swallowed by a bare `except`, so the positive of every sample is
the sample itself (cosine 1, no gradient) and the consistency target is the sample itself (CPDR = 0). What remains
is a repulsion from the pooled negatives of the whole batch, in which every class occurs once for every sample of
another class. Relational prototypes are computed and thrown away: R holds the raw local prototypes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.tables import ClassTable
from fedloom.methods.contract.phases import Batch, Consts
from fedloom.methods.parts.contrast import log_sum_exp, unit


def constants(relational: ClassTable) -> Consts:
    """A round's constants from prototypes [m, C, d]: "prototypes" [m C, d], "directions" (the same at length 1), "own"
    [C, m C] (which are of a class) and "held" [m C].
    """
    holders, classes, width = relational.values.shape
    prototypes = relational.values.reshape(-1, width)
    is_own_class = torch.arange(classes).repeat(holders) == torch.arange(classes).unsqueeze(1)
    held = relational.held.reshape(-1)
    return {"prototypes": prototypes, "directions": unit(prototypes), "own": is_own_class, "held": held}


def repulsion(z: Tensor, batch: Batch, consts: Consts, tau: float) -> Tensor:
    """mean_i log(1 + sum over the pool of exp((cos(z_i, p) - 1) / tau)); z [B, d] -> scalar."""
    scores = (unit(z) @ consts["directions"].to(z.dtype).T - 1) / tau
    counted = torch.ones_like(batch.y) if batch.mask is None else batch.mask.long()
    same = (consts["own"][batch.y] * counted.unsqueeze(1)).sum(0)  # [Q] samples of the prototype's own class
    repeats = (counted.sum() - same).to(z.dtype)  # [Q] how often the pool holds each prototype
    pooled = (repeats > 0) & consts["held"]
    scores = scores + torch.where(pooled, repeats, torch.ones_like(repeats)).log()
    repelled = torch.nn.functional.softplus(log_sum_exp(scores, pooled))
    return batch.mean(torch.where(pooled.any(), repelled, 0.0))
