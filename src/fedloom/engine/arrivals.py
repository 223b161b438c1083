"""Jobs that are made on demand, uploads that arrive, and uploads that an attack forges."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from fedloom.core.records import Record, wire_size
from fedloom.data.attacks import UploadAttack
from fedloom.data.attacks.attack import AttackRound
from fedloom.data.scenario import Scenario
from fedloom.engine.jobs import Job
from fedloom.methods.contract.contexts import Task
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import Role

_UNTOUCHED = frozenset({Role.BN_STAT, Role.COUNTER, Role.BUFFER})  # roles of entries that attacks leave alone


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


class SentJobs:
    """The jobs of a round's clients, made by `make` when an engine asks for them, so that few payloads are in memory.

    It counts the bytes of payloads, and keeps those of the clients in `kept`, and the job of the first participant of
    each architecture by group (`samples`).
    """

    def __init__(self, clients: Sequence[int], make: Callable[[int], Job], kept: Container[int]) -> None:
        self._clients, self._make, self._kept = clients, make, kept
        self.bytes = PayloadBytes()
        self.payloads: dict[int, Record] = {}
        self.samples: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Job]:
        for client in self._clients:
            job = self._make(client)
            self.bytes.add(job.payload)
            if client in self._kept:
                self.payloads[client] = job.payload
            sample = self.samples.setdefault(job.ctx.task.group, job)
            if client < sample.ctx.client:
                self.samples[job.ctx.task.group] = job
            yield job


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

    Forgers know the payloads that they received, and the spec says which entries of uploads are changes of weights;
    each draws from its own stream of round `round_`.
    """
    attack = scenario.attack
    if not bad or not isinstance(attack, UploadAttack):
        return uploads
    changes = [name for name, sent in spec.sends.items() if sent.form == "change"]
    honest = {client: uploads[client] for client in sorted(bad)}
    forged = {}
    for client, upload in honest.items():
        task = task_of(client)
        known = AttackRound(
            len(uploads), len(bad), task.names(_UNTOUCHED), changes, task.streams.numpy("attack", round_, client)
        )
        shared = list(honest.values()) if attack.colludes else [upload]
        forged[client] = attack.forge_upload(upload, payloads[client], shared, known)
    return {client: forged.get(client, upload) for client, upload in uploads.items()}
