"""The round that an observer sees, which the round loop calls after each aggregation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedloom.core.records import Record
from fedloom.engine.jobs import Job
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.method import Method, Uploads


@dataclass(frozen=True, slots=True)
class ObservedRound:
    """A round whose uploads were aggregated, before the federation takes the new states over.

    Attributes:
        method: the method of the round.
        ctx: the server's context.
        before: the server's state before the round.
        after: its next state.
        payloads: the payloads of the participants, by client id.
        uploads: the uploads that were aggregated, unpacked, by client id.
        samples: training samples of every client that has some, by client id.
        job: returns the job that a client has in this round, participant or not, from the states before the round.
    """

    method: Method
    ctx: ServerContext
    before: Record
    after: Record
    payloads: Mapping[int, Record]
    uploads: Uploads
    samples: Mapping[int, int]
    job: Callable[[int], Job]


class RoundObserver(Protocol):
    """Watches the rounds of a federation, without those before the first and after the last. It changes nothing."""

    def noting(self, method: Method) -> Method:
        """Return the method that aggregates: the same arithmetic, of which the observer may take notes."""
        ...

    def observe(self, observed: ObservedRound) -> None:
        """Look at a round. Random numbers that are drawn here reach nothing else."""
        ...
