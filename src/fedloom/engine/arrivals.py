"""Jobs that are made on demand, uploads that arrive, and uploads that an attack forges."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedloom.core.records import Record, wire_size
from fedloom.data.attacks import UploadAttack
from fedloom.data.attacks.attack import AttackRound
from fedloom.data.scenario import Scenario
from fedloom.engine.jobs import Job, JobResult
from fedloom.methods.contract.contexts import Diagnostic, Task
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import Role


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


_UNTOUCHED = frozenset({Role.BN_STAT, Role.COUNTER, Role.BUFFER})  # roles of entries that attacks leave alone


def with_forged(
    uploads: Mapping[int, Record],
    bad: frozenset[int],
    payloads: Mapping[int, Record],
    scenario: Scenario,
    spec: Spec,
    task_of: Callable[[int], Task],
    round_: int,
) -> Mapping[int, Record]:
    """Return the uploads of a round, with those of bad clients forged if the scenario has an attack on uploads.

    Args:
        uploads: the uploads of all participants by client id.
        bad: the participants that attack.
        payloads: the payloads that they received, by client; complete once their uploads can be read.
        scenario: has the attack.
        spec: says which entries of the method's uploads are changes of weights.
        task_of: returns the task of a client.
        round_: the round, which counts from 1; each bad client draws from a stream of its own.
    """
    attack = scenario.attack
    if not bad or not isinstance(attack, UploadAttack):
        return uploads
    changes = [name for name, sent in spec.sends.items() if sent.form == "change"]

    def round_of(client: int) -> AttackRound:
        task = task_of(client)
        rng = task.streams.numpy("attack", round_, client)
        return AttackRound(len(uploads), len(bad), task.names(_UNTOUCHED), changes, rng)

    return _ForgedUploads(uploads, attack, bad, payloads, round_of)


def idle_attack_diagnostics(scenario: Scenario, participants: int) -> list[Diagnostic]:
    """Return a diagnostic if the scenario's attack has no effect in rounds of `participants` clients."""
    reason = None if scenario.attack is None else scenario.attack.why_idle(participants)
    return [] if reason is None else [Diagnostic("attack.idle", reason, 0.0)]


class _ForgedUploads(Mapping[int, Record]):
    """Uploads of which those of `bad` participants are forged, each once, when it is read.

    round_of: returns what a bad client knows in this round. A colluding attack needs the honest uploads of all bad
    participants, and waits for them.
    """

    def __init__(
        self,
        uploads: Mapping[int, Record],
        attack: UploadAttack,
        bad: frozenset[int],
        payloads: Mapping[int, Record],
        round_of: Callable[[int], AttackRound],
    ) -> None:
        self._uploads, self._attack, self._bad = uploads, attack, bad
        self._payloads, self._round_of = payloads, round_of
        self._forged: dict[int, Record] = {}

    def __getitem__(self, client: int) -> Record:
        if client not in self._bad:
            return self._uploads[client]
        if client not in self._forged:
            honest = self._uploads[client]
            shared = [self._uploads[k] for k in sorted(self._bad)] if self._attack.colludes else [honest]
            forged = self._attack.forge_upload(honest, self._payloads[client], shared, self._round_of(client))
            self._forged[client] = forged
        return self._forged[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._uploads)

    def __len__(self) -> int:
        return len(self._uploads)
