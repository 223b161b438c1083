"""Forged uploads: the server's view of a round in which some clients attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fedloom.core.records import Record
from fedloom.data.attacks import UploadAttack
from fedloom.data.attacks.upload_attacks import AttackRound
from fedloom.data.scenario import Scenario
from fedloom.methods.contract.contexts import Diagnostic, Task
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import Role

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
