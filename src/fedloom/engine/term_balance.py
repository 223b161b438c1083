"""Gradients of a loss's terms beside that of cross-entropy: which terms do nothing, and which dominate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedloom.methods.contract.contexts import Diagnostic

# Rounds in which gradients are measured: early, but not in round 1, in which many methods have no server knowledge yet.
# Inactive terms are reported in the last of them, because some terms grow.
ROUNDS = range(2, 6)
MOST_CLIENTS = 20  # of a round; measured steps are not replayed, and a hundred of them take longer than the round
INACTIVE, DOMINATING = 0.01, 10.0
CE = "ce"


def measured_clients(round_: int, clients: Sequence[int]) -> frozenset[int]:
    """Return the clients of a round whose gradients are measured: all if they are few, else some of all parts.

    Args:
        round_: the round.
        clients: ids of the clients of the round.

    Example:
        >>> sorted(measured_clients(2, range(50)))
        [0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45, 48]
    """
    return frozenset(clients[:: -(-len(clients) // MOST_CLIENTS)]) if clients and round_ in ROUNDS else frozenset()


def gradient_norms(
    terms: Mapping[str, Tensor], parameters: Sequence[Tensor], *, stacked: bool = False
) -> dict[str, Tensor]:
    """Return the norm [] of each term's gradient; terms whose names start with "ce" are summed to one term "ce".

    The graph is kept. Empty unless the loss has cross-entropy and another term.

    Args:
        terms: scalar terms of the loss by name.
        parameters: the parameters that the gradients are taken of.
        stacked: terms [K] and parameters [K, ...] belong to K clients; the norms are then [K].
    """
    cross_entropies = [term for name, term in terms.items() if name.startswith(CE)]
    other_terms = {name: term for name, term in terms.items() if not name.startswith(CE)}
    if not cross_entropies or not other_terms:
        return {}
    compared = {CE: torch.stack(cross_entropies).sum(0)} | other_terms
    return {name: _gradient_norm(term, parameters, stacked) for name, term in compared.items()}


def gradient_ratios(norms: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each term's norm divided by that of cross-entropy, both summed over the clients.

    The sums keep a client whose cross-entropy has vanished (it has a single class) from dominating.
    """
    measured = [client for client in norms if client]
    reference = max(sum(client[CE] for client in measured), 1e-12)
    names = dict.fromkeys(name for client in measured for name in client if name != CE)
    return {name: sum(client.get(name, 0.0) for client in measured) / reference for name in names}


def balance_diagnostics(method: str, ratios: Mapping[str, float], round_: int, rounds: int) -> list[Diagnostic]:
    """Return diagnostics of the terms that dominate or are inactive.

    Args:
        method: name of the method, the first word of the diagnostics' codes.
        ratios: gradient of each term divided by cross-entropy's (`gradient_ratios`).
        round_: the round in which they were measured; inactive terms are reported in the last of `ROUNDS`.
        rounds: rounds of the run.
    """
    diagnostics = []
    for name, ratio in ratios.items():
        if ratio > DOMINATING:
            message = f"{method}: the loss term {name} dominates: its gradient is {ratio:.1f} times cross-entropy's"
            diagnostics.append(Diagnostic(f"{method}.dominating_{name}", message, ratio))
        if ratio < INACTIVE and round_ == min(ROUNDS[-1], rounds):
            message = f"{method}: the loss term {name} is inactive: its gradient is {ratio:.1e} of cross-entropy's"
            diagnostics.append(Diagnostic(f"{method}.inactive_{name}", message, ratio))
    return diagnostics


def _gradient_norm(term: Tensor, parameters: Sequence[Tensor], stacked: bool) -> Tensor:
    if not term.requires_grad:
        return torch.zeros(term.shape)
    gradients = torch.autograd.grad(term.sum(), parameters, retain_graph=True, allow_unused=True)
    squares = [gradient.double().square() for gradient in gradients if gradient is not None]
    sums = [square.flatten(1).sum(1) if stacked else square.sum() for square in squares]
    return torch.stack(sums).sum(0).sqrt() if sums else torch.zeros(term.shape)
