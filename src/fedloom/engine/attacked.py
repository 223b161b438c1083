"""Uploads as the server sees them where some clients lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fedloom.core.records import Record
from fedloom.data.attacks import UploadAttack
from fedloom.data.attacks.upload_attacks import AttackRound
from fedloom.data.scenario import Scenario
from fedloom.methods.contract.contexts import Diagnostic, Task
from fedloom.methods.contract.spec import Spec
from fedloom.nets.roles import Role

_LEFT = frozenset({Role.BN_STAT, Role.COUNTER})  # entries that attacks leave alone


def as_seen(
    uploads: Mapping[int, Record],
    bad: frozenset[int],
    received: Mapping[int, Record],
    scenario: Scenario,
    spec: Spec,
    task_of: Callable[[int], Task],
    round_: int,
) -> Mapping[int, Record]:
    """The uploads of a round, those of bad clients forged, if the scenario's attack is one on uploads.

    bad: those of the participants that misbehave; received: what they were sent, once they have ended. task_of: the
    facts of the run for one client.
    """
    attack = scenario.attack
    if not bad or not isinstance(attack, UploadAttack):
        return uploads
    changes = [name for name, sent in spec.sends.items() if sent.form == "change"]

    def now(client: int) -> AttackRound:
        task = task_of(client)
        rng = task.streams.numpy("attack", round_, client)
        return AttackRound(len(uploads), len(bad), task.names(_LEFT), changes, rng)

    return _Attacked(uploads, attack, bad, received, now)


def idle(scenario: Scenario, participants: int) -> list[Diagnostic]:
    """A diagnostic if the scenario's attack does nothing in rounds of so many participants."""
    why = None if scenario.attack is None else scenario.attack.why_idle(participants)
    return [] if why is None else [Diagnostic("attack.idle", why, 0.0)]


class _Attacked(Mapping[int, Record]):
    """Uploads of which those of `bad` participants are forged, each when it is asked for, and once.

    now: what a bad client knows in this round. A colluding attack waits for the honest uploads of all bad participants.
    """

    def __init__(
        self,
        uploads: Mapping[int, Record],
        attack: UploadAttack,
        bad: frozenset[int],
        received: Mapping[int, Record],
        now: Callable[[int], AttackRound],
    ) -> None:
        self._uploads, self._attack, self._bad, self._received, self._now = uploads, attack, bad, received, now
        self._forged: dict[int, Record] = {}

    def __getitem__(self, client: int) -> Record:
        if client not in self._bad:
            return self._uploads[client]
        if client not in self._forged:
            own = self._uploads[client]
            known = [self._uploads[k] for k in sorted(self._bad)] if self._attack.colludes else [own]
            self._forged[client] = self._attack.forge_upload(own, self._received[client], known, self._now(client))
        return self._forged[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._uploads)

    def __len__(self) -> int:
        return len(self._uploads)
