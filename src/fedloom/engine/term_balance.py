"""How a loss's terms balance with cross-entropy: those that do nothing, and those that drown it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedloom.methods.contract.contexts import Diagnostic

# Rounds in which gradients are measured: early, and not in round 1, which has no knowledge yet in most methods. Whether
# a term is inactive is said at the last of them, because some grow.
ROUNDS = range(2, 6)
INACTIVE, DOMINATING = 0.01, 10.0
CE = "ce"


def gradient_norms(
    terms: Mapping[str, Tensor], parameters: Sequence[Tensor], *, stacked: bool = False
) -> dict[str, Tensor]:
    """Norm of every term's gradient, the cross-entropies (names that start with "ce") together as "ce": scalars.

    stacked: terms [K] and parameters [K, ...] are those of K clients, and so are the norms [K]. The graph is kept.
    Empty where there is nothing to compare.
    """
    ce = [term for name, term in terms.items() if name.startswith(CE)]
    others = {name: term for name, term in terms.items() if not name.startswith(CE)}
    if not ce or not others:
        return {}
    every = {CE: torch.stack(ce).sum(0)} | others
    return {name: _gradient_norm(term, parameters, stacked) for name, term in every.items()}


def balance(norms: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each term's norm over cross-entropy's, both summed over the clients: one whose cross-entropy has vanished (it
    holds a single class) must not decide."""
    measured = [client for client in norms if client]
    reference = max(sum(client[CE] for client in measured), 1e-12)
    names = dict.fromkeys(name for client in measured for name in client if name != CE)
    return {name: sum(client.get(name, 0.0) for client in measured) / reference for name in names}


def diagnostics(method: str, measured: Mapping[str, float], round_: int, rounds: int) -> list[Diagnostic]:
    """Terms that are out of proportion in this round."""
    found = []
    for name, ratio in measured.items():
        if ratio > DOMINATING:
            message = f"{method}: the loss term {name} dominates: its gradient is {ratio:.1f} times cross-entropy's"
            found.append(Diagnostic(f"{method}.dominating_{name}", message, ratio))
        if ratio < INACTIVE and round_ == min(ROUNDS[-1], rounds):
            message = f"{method}: the loss term {name} is inactive: its gradient is {ratio:.1e} of cross-entropy's"
            found.append(Diagnostic(f"{method}.inactive_{name}", message, ratio))
    return found


def _gradient_norm(term: Tensor, parameters: Sequence[Tensor], stacked: bool) -> Tensor:
    if not term.requires_grad:
        return torch.zeros(term.shape)
    gradients = torch.autograd.grad(term.sum(), parameters, retain_graph=True, allow_unused=True)
    squares = [gradient.double().square() for gradient in gradients if gradient is not None]
    sums = [square.flatten(1).sum(1) if stacked else square.sum() for square in squares]
    return torch.stack(sums).sum(0).sqrt() if sums else torch.zeros(term.shape)
