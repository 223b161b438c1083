"""Diagnostics that several methods share."""

from __future__ import annotations

from torch import Tensor

from fedloom.methods.contract.contexts import Diagnostic


def one_holder_per_class(method: str, held: Tensor, consequence: str) -> list[Diagnostic]:
    """Report if, of several participants, no two hold a class in common.

    Args:
        method: name of the method, the first word of the diagnostic's code.
        held: which classes each participant holds [m, C], bool.
        consequence: what this means for the method, for the message.
    """
    if len(held) < 2 or int(held.sum(0).max()) > 1:
        return []
    message = f"every class is held by one participant: {consequence}"
    return [Diagnostic(f"{method}.one_holder_per_class", message, 1.0)]


def neighbours_clamped(method: str, neighbours: int, participants: int) -> list[Diagnostic]:
    """Report if M neighbours are configured and a round has no more than M participants."""
    if neighbours < participants:
        return []
    noun = "participant" if participants == 1 else "participants"
    message = f"neighbours = {neighbours}: with {participants} {noun} a round, at most {participants - 1} are used"
    return [Diagnostic(f"{method}.neighbours_clamped", message, float(participants - 1))]
