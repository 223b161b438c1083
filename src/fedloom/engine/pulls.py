"""How hard each term of a loss pulls beside cross-entropy: terms that do nothing, and terms that drown it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedloom.methods.method import Finding

# Rounds in which pulls are measured, for one client a round: early, and not in round 1, which has no knowledge yet in
# most methods. Whether a term is inactive is said at the last of them, because some grow.
PROBED = range(2, 6)
INACTIVE, DOMINATING = 0.01, 10.0


def pulls(terms: Mapping[str, Tensor], parameters: Sequence[Tensor]) -> dict[str, float]:
    """Gradient norm of every term over that of the cross-entropies (names that start with "ce") together.

    The graph is kept. Empty where there is nothing to compare.
    """
    ce = [term for name, term in terms.items() if name.startswith("ce")]
    others = {name: term for name, term in terms.items() if not name.startswith("ce")}
    if not ce or not others:
        return {}
    reference = max(_gradient_norm(torch.stack(ce).sum(), parameters), 1e-12)
    return {name: _gradient_norm(term, parameters) / reference for name, term in others.items()}


def findings(method: str, measured: Mapping[str, float], round_: int, rounds: int) -> list[Finding]:
    """Terms that are out of proportion in this round."""
    found = []
    for name, pull in measured.items():
        if pull > DOMINATING:
            message = f"{method}: the loss term {name} dominates: its gradient is {pull:.1f} times cross-entropy's"
            found.append(Finding(f"{method}.dominating_{name}", message, pull))
        if pull < INACTIVE and round_ == min(PROBED[-1], rounds):
            message = f"{method}: the loss term {name} is inactive: its gradient is {pull:.1e} of cross-entropy's"
            found.append(Finding(f"{method}.inactive_{name}", message, pull))
    return found


def _gradient_norm(term: Tensor, parameters: Sequence[Tensor]) -> float:
    if not term.requires_grad:
        return 0.0
    gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
    squares = [gradient.double().square().sum() for gradient in gradients if gradient is not None]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0
