"""Accuracy under lies that pass the bounds of a federation, and in rounds too small for a median, with three seeds.

    python -m benchmarks lies --out lies             # into results/lies.csv.gz; skips the runs that it has
    python -m benchmarks lies --methods fedavg --settings "ten nodes" --attacks "label flip"

The nodes run in this process and speak as real ones do. Those that lie train honestly (on wrong labels for
`label flip`) and forge what they send. Data: scikit-learn's digits, MLP, one epoch a round; accuracy is the protocol's,
over honest clients. A row counts refusals, and has the deviations by which clients stand out.
"""

import argparse
import dataclasses
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks.bounds import METHODS
from benchmarks.data import RESULTS, Row, read_rows, write_rows
from benchmarks.hostile import config_of
from fedloom.core.errors import FedloomError
from fedloom.core.records import Record, from_bytes, to_bytes
from fedloom.core.trees import Tree
from fedloom.data.attacks import Alie, AttackRound, Ipm, LabelFlip, Scaled, SignFlip, UploadAttack
from fedloom.flower import remote
from fedloom.flower.node import Node
from fedloom.flower.scores import ClientScores
from fedloom.flower.server import serve
from fedloom.flower.transport import InProcessTransport
from fedloom.flower.wire import EvalReply, Message, Request, TrainReply, read
from fedloom.methods import METHODS as KINDS
from fedloom.methods.contract.spec import Sent
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.storage.run_data import RunData

SETTINGS: dict[str, dict[str, Any]] = {
    "ten nodes": {"clients": 10, "partition": "dirichlet", "alpha": 0.5, "rounds": 10},
    "3 of 20": {"clients": 20, "partition": "dirichlet", "alpha": 0.5, "participation": 0.15, "rounds": 20},
    "three nodes": {"clients": 3, "partition": "iid", "rounds": 10},
    "two nodes": {"clients": 2, "partition": "iid", "rounds": 10},
}
HONEST: dict[str, dict[str, Any]] = {  # of 20 rounds each
    "one class": {"clients": 20, "partition": "classes", "classes_per_client": 1, "participation": 0.15},
    "very small": {"clients": 100, "partition": "iid", "participation": 0.03},
    "very unequal": {"clients": 10, "partition": "quantity", "alpha": 0.3, "participation": 0.3},
    "two very unequal nodes": {"clients": 2, "partition": "quantity", "alpha": 0.3},
    "dirichlet 0.1, 8 of 10": {"clients": 10, "partition": "dirichlet", "alpha": 0.1, "participation": 0.8},
}
LATE = 5  # the first round of a late node
_INSIDE = 4.75  # 0.95 of the bound on lengths
ATTACKS: dict[str, tuple[UploadAttack | str, int, tuple[str, ...]]] = {  # forgery, colluders, settings
    "absent": ("absent", 1, (*SETTINGS,)),
    "x -20": (SignFlip(factor=20), 1, (*SETTINGS,)),
    "x -1": (SignFlip(factor=1), 1, (*SETTINGS,)),
    "ipm": (Ipm(factor=_INSIDE), 1, ("ten nodes", "three nodes")),
    "ipm, 2 nodes": (Ipm(factor=_INSIDE), 2, ("ten nodes",)),
    "alie, 2 nodes": (Alie(z=1.5), 2, ("ten nodes",)),
    "label flip": ("label flip", 1, ("ten nodes", "three nodes", "two nodes")),
    "label flip, 2 nodes": ("label flip", 2, ("ten nodes",)),
    "drift": ("drift", 1, ("ten nodes", "three nodes")),
    "replay": ("replay", 1, ("ten nodes",)),
    "late x 4.75": (Scaled(factor=_INSIDE), 1, ("ten nodes",)),
    "late x -1": (SignFlip(factor=1), 1, ("ten nodes",)),
    "false tests": ("false tests", 1, ("ten nodes", "three nodes")),
}


class Liars(InProcessTransport):
    """Nodes of this process, some of which lie. liars: their ids, all with the same attack."""

    def __init__(self, nodes: Mapping[int, Node], attack: str, liars: Collection[int]) -> None:
        super().__init__(nodes)
        self._name, self._liars = attack, sorted(liars)
        self._attack = ATTACKS[attack][0]
        self._sends: Mapping[str, Sent] = nodes[0].config.build_method().spec.sends
        self._first: dict[int, Record] = {}  # of each liar: its first honest change, or its first upload
        self._answers: dict[str, Message] = {}  # honest ones of this round, by message
        self._round = 0

    def nodes(self) -> set[int]:
        is_away = self._attack == "absent" or (self._name.startswith("late") and self._round < LATE)
        return super().nodes() - ({*self._liars} if is_away else set())

    def receive(self, message_ids: Collection[str]) -> list[tuple[str, Message | str]]:
        for message_id in message_ids:
            if message_id in self._waiting:
                node, message = self._waiting[message_id]
                request = read(message, Request)
                if (request.round or 0) > self._round:
                    self._round, self._answers = request.round or 0, {}
                if node not in self._liars or request.do == "join":
                    return super().receive([message_id])
                return [(message_id, self._lie(message_id, request))]
        return []

    def _lie(self, message_id: str, request: Request) -> Message:
        client, message = self._waiting[message_id]
        if request.do != "train":
            _, answer = super().receive([message_id])[0]
            assert isinstance(answer, Message)
            return _all_right(answer) if self._attack == "false tests" and request.do == "test" else answer
        # Colluders see each other's honest uploads, so all of them train before the first one answers.
        for at, (of, sent) in self._waiting.items():
            if of in self._liars and at not in self._answers and read(sent, Request).do == "train":
                self._answers[at] = self._nodes[of].answer(sent)
        honest = {at: from_bytes(answer.body) for at, answer in self._answers.items()}
        answer, payload = self._answers[message_id], from_bytes(message.body)
        if isinstance(self._attack, UploadAttack):
            changes = [name for name, sent in self._sends.items() if sent.form == "change"]
            rng = np.random.default_rng((request.round or 0, client))
            # Batch norm's running statistics and counters are forged, too: a liar may send anything.
            known = AttackRound(len(self._nodes), len(self._liars), (), changes, rng)
            forged = self._attack.forge_upload(honest[message_id], payload, [*honest.values()], known)
        else:
            forged = self._by_hand(client, honest[message_id], payload)
        del self._waiting[message_id]
        trained = read(answer, TrainReply)
        return trained.to_message(to_bytes(forged))

    def _by_hand(self, client: int, upload: Record, payload: Record) -> Record:
        if self._attack == "replay":
            return self._first.setdefault(client, upload)
        if self._attack != "drift":
            return upload
        # The same direction in every round: against the first change, 1.5 times as long as the honest one.
        forged = dict(upload)
        first = self._first.setdefault(
            client, {name: _change(tree, payload.get(name)) for name, tree in upload.items()}
        )
        for name, tree in upload.items():
            direction = first[name]
            if isinstance(tree, dict) and isinstance(direction, dict):
                change = _change(tree, payload.get(name))
                length, whole = _length(change), max(_length(direction), 1e-12)
                forged[name] = {
                    entry: tensor - (1.5 * length / whole * direction[entry]).to(tensor.dtype)
                    if tensor.is_floating_point()
                    else tensor
                    for entry, tensor in tree.items()
                }
        return forged


def _change(tree: Any, sent: Any) -> Any:
    if not isinstance(tree, dict):
        return 0
    before = sent if isinstance(sent, dict) else {}
    return {
        name: tensor - before[name] if name in before and before[name].shape == tensor.shape else tensor
        for name, tensor in tree.items()
        if tensor.is_floating_point()
    }


def _length(tree: Tree) -> float:
    return float(torch.stack([tensor.double().square().sum() for tensor in tree.values()]).sum().sqrt())


def _all_right(answer: Message) -> Message:
    """Change a test: all samples are classified correctly, without a loss."""
    scored = read(answer, EvalReply)
    tested = {
        name: result.model_copy(
            update={
                "states": {
                    **result.states,
                    "accuracy": {"correct": result.total, "total": result.total},
                    "loss": {**result.states["loss"], "value_sum": 0.0},
                }
            }
        )
        for name, result in scored.tested.items()
    }
    return scored.model_copy(update={"tested": tested}).to_message()


class Refusals(Callback):
    """Collects the clients that are refused."""

    def __init__(self) -> None:
        self.clients: list[int] = []

    def on_note(self, config: RunConfig, note: str) -> None:
        if getattr(note, "event", "") == "refused":
            self.clients.append(getattr(note, "client", None) or 0)


class Recorded(ClientScores):
    """ClientScores that keep the deviations by which clients are judged, by client and in order."""

    series: ClassVar[dict[int, list[float]]] = {}

    def deviation(self, client: int) -> tuple[float, str]:
        deviation, name = super().deviation(client)
        Recorded.series.setdefault(client, []).append(round(deviation, 2))
        return deviation, name


def config(method: str, scenario: Mapping[str, Any], seed: int) -> RunConfig:
    """Return the run of a method in a setting, with the flower keys of a quick start."""
    keys = dict(scenario)
    participation, rounds = keys.pop("participation", 1.0), keys.pop("rounds", 20)
    public = {"public": 0.05} if KINDS.get(method).spec.public else {}
    described = {"source": "digits", "val": 0.0, **keys, **public}
    plain = config_of(method, rounds, 1).resolved()
    return parse(
        plain
        | {"scenario": described, "participation": participation, "seed": seed}
        | {"evaluation": plain["evaluation"] | {"every": 5}, "flower": {"join_timeout": 0.2}}
    )


def measured(method: str, setting: str, attack: str | None, seed: int) -> Row:
    """Measure one run: with `attack`, or honest (None)."""
    scenario_keys = SETTINGS[setting] if setting in SETTINGS else HONEST[setting]
    run, notes = config(method, scenario_keys, seed), Refusals()
    remote.ClientScores, Recorded.series = Recorded, {}  # type: ignore[misc]
    liars = _liars(run.scenario.clients, ATTACKS[attack][1] if attack else 0)
    row: Row = {"method": method, "setting": setting, "attack": attack, "seed": seed}
    try:
        result = _federate(run, attack, liars, notes)
    except FedloomError as error:
        row["error"] = " ".join(str(error).split())[:200]
        result = None
    return row | {
        **({} if result is None else _accuracies(result, liars)),
        "refused": sum(client in liars for client in notes.clients),
        "honest_refused": sum(client not in liars for client in notes.clients),
        "deviations": [series for client, series in Recorded.series.items() if client in liars],
        "honest_deviations": [max(series) for client, series in Recorded.series.items() if client not in liars],
    }


def _liars(clients: int, count: int) -> list[int]:
    return [3, 4][:count] if clients > 3 else [1][:count]


def _federate(run: RunConfig, attack: str | None, liars: list[int], notes: Refusals) -> RunData:
    scenario = run.scenario.build(run.seed)
    wrong = scenario
    if attack is not None and ATTACKS[attack][0] == "label flip":
        wrong = LabelFlip().poison(dataclasses.replace(scenario, bad=tuple(liars)))
    with tempfile.TemporaryDirectory() as folder:
        firsts = {id(of): Node(run, 0, Path(folder), of) for of in (scenario, wrong)}
        nodes = {
            k: Node(run, k, Path(folder), of, None, firsts[id(of)])
            for k in range(scenario.clients)
            for of in (wrong if k in liars else scenario,)
        }
        transport = InProcessTransport(nodes) if attack is None else Liars(nodes, attack, liars)
        return serve(run, transport, scenario=scenario, callbacks=[notes])


def _accuracies(result: RunData, liars: Collection[int]) -> Row:
    last = max(row["round"] for row in result.rows if row["name"] == "accuracy")
    tested = {
        row["client"]: row["value"]
        for row in result.rows
        if (row["round"], row["name"], row["split"]) == (last, "accuracy", "test")
    }
    clients = {client: value for client, value in tested.items() if client is not None}
    honest = [value for client, value in clients.items() if client not in liars] or [tested[None]]
    return {
        "accuracy": round(100 * sum(honest) / len(honest), 2),
        "reported": round(100 * sum(clients.values()) / len(clients), 2) if clients else round(100 * tested[None], 2),
    }


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks lies", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="*", default=["fedavg", *METHODS])
    parser.add_argument("--settings", nargs="*", default=[*SETTINGS, *HONEST])
    parser.add_argument("--attacks", nargs="*", default=[*ATTACKS], help="in addition to the honest run")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--out", metavar="NAME", help="keep the rows in results/NAME.csv.gz")
    arguments = parser.parse_args(words)
    torch.set_num_threads(1)
    path = RESULTS / f"{arguments.out}.csv.gz"
    rows = read_rows(path) if arguments.out and path.exists() else []
    done = {_cell(row) for row in rows}
    cells = [
        (method, setting, attack, seed)
        for seed in arguments.seeds
        for method in arguments.methods
        for setting in arguments.settings
        for attack in (None, *arguments.attacks)
        if attack is None or (setting in ATTACKS[attack][2] and _acts(method, attack))
    ]
    for cell in cells:
        if cell not in done:
            rows.append(measured(*cell))
            print(*(f"{name} {value}" for name, value in rows[-1].items()), sep=", ", flush=True)
            if arguments.out:
                write_rows(path, sorted(rows, key=lambda row: _order(_cell(row))))


def _cell(row: Row) -> tuple[str, str, str | None, int]:
    return row["method"], row["setting"], row["attack"], row["seed"]


def _order(cell: tuple[str, str, str | None, int]) -> tuple[int, ...]:
    """Return the place of a cell in the file, so that tables have the same order however the runs came."""
    method, setting, attack, seed = cell
    attacks = [None, *ATTACKS]
    return [*SETTINGS, *HONEST].index(setting), ["fedavg", *METHODS].index(method), attacks.index(attack), seed


def _acts(method: str, attack: str) -> bool:
    """Whether an attack changes anything: clients are only asked for tests of personal models."""
    protocol: Callable[[], str] = lambda: config(method, SETTINGS["ten nodes"], 0).evaluation.protocol  # noqa: E731
    return attack != "false tests" or protocol().startswith("personal")
