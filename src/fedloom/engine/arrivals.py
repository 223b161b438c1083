"""Jobs that are made on demand, and results that arrive while the server already aggregates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedloom.core.records import Record, wire_size
from fedloom.engine.jobs import Job, JobResult


class PayloadBytes:
    """Counts the bytes on the wire of a round's payloads. A payload for several clients is measured once."""

    def __init__(self) -> None:
        self.total = 0
        self._last: tuple[Record, int] = ({}, 0)

    def add(self, payload: Record) -> None:
        """Count a payload; an empty one is not sent."""
        last_payload, size = self._last
        is_same = payload.keys() == last_payload.keys() and all(payload[name] is last_payload[name] for name in payload)
        if not is_same:
            size = wire_size(payload) if payload else 0
        self._last = payload, size
        self.total += size


class ArrivingUploads(Mapping[int, Record]):
    """The uploads of a round in the order of client ids. Reading one waits for it.

    So the server sums the first uploads while other clients still train. `waited_seconds` is its time of waiting.
    """

    def __init__(self, arriving: Iterator[JobResult], clients: Sequence[int]) -> None:
        self._arriving, self._clients = arriving, clients
        self._results: dict[int, JobResult] = {}
        self.bytes, self.waited_seconds = PayloadBytes(), 0.0

    def __getitem__(self, client: int) -> Record:
        if client not in self._results:
            self._wait_for(client)
        return self._results[client].upload

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def drop_missing(self) -> Sequence[int]:
        """Wait for all clients, leave out those that the engine lost, and return the others."""
        self._clients = sorted(self.results())
        return self._clients

    def results(self) -> dict[int, JobResult]:
        """Wait for all clients, and return their results by client id."""
        self._wait_for(None)
        return self._results

    def _wait_for(self, client: int | None) -> None:
        started = time.perf_counter()
        for result in self._arriving:
            self._results[result.client] = result
            self.bytes.add(result.upload)
            if result.client == client:
                break
        self.waited_seconds += time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class LazyJobs:
    """The jobs of a round's clients; `make` is called when an engine asks for the next one."""

    clients: Sequence[int]
    make: Callable[[int], Job]

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Job]:
        return map(self.make, self.clients)
