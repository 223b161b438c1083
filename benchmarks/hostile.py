"""One of ten nodes is hostile: the accuracy of every method, by attack, with the default bounds of a federation.

    python benchmarks/hostile.py --json benchmarks/results/hostile.json            # all methods
    python benchmarks/hostile.py --methods fedavg fedsc --wrapper median
    python benchmarks/hostile.py --honest --json benchmarks/results/honest.json    # nobody is hostile: what is refused?
    python benchmarks/hostile_page.py                                              # the tables of docs/hostile-nodes.md

The nodes are in this process and speak as real ones do. Client 3 trains honestly, and what it uploads is changed.
Data: scikit-learn's digits, ten clients, Dirichlet 0.5; MLP; 20 rounds of 2 epochs; accuracy is the protocol's, without
the hostile client where clients are tested.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError, FedloomError
from fedloom.core.files import write_atomic
from fedloom.core.records import Record, from_bytes, to_bytes
from fedloom.core.tables import ClassTable
from fedloom.flower import remote
from fedloom.flower.bounds import NormBounds
from fedloom.flower.node import Node
from fedloom.flower.server import serve
from fedloom.flower.transport import InProcessTransport
from fedloom.flower.wire import EvalReply, JoinReply, Message, Request, TrainReply, read
from fedloom.methods import METHODS
from fedloom.results.result import Result
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig, parse

HOSTILE = 3  # the client
INSIDE = 0.95  # of what the bounds allow
Change = Callable[[Tensor, Tensor, float], Tensor]
"""From a tensor that was uploaded, what was sent in its place (zeros, if nothing was), and how many times larger than
usual it may be: what the node uploads."""

ATTACKS: dict[str, Change] = {
    "x100": lambda value, sent, limit: 100 * value,
    "constant": lambda value, sent, limit: torch.full_like(value, 1.0),
    "1e38": lambda value, sent, limit: torch.full_like(value, 1e38),
    "nan": lambda value, sent, limit: torch.full_like(value, float("nan")),
    "just inside": lambda value, sent, limit: sent + INSIDE * limit * (value - sent),
    "flipped x2": lambda value, sent, limit: sent - 2 * (value - sent),
    "constant, same length": lambda value, sent, limit: (
        torch.full_like(value, 1.0) * value.norm() / value.numel() ** 0.5
    ),
}
COUNT = "count"
NAMES = (*ATTACKS, COUNT)


class HostileTransport(InProcessTransport):
    """Nodes of this process, of which one changes what it answers."""

    def __init__(self, nodes: Mapping[int, Node], attack: str, hostile: int = HOSTILE) -> None:
        super().__init__(nodes)
        self._attack, self._hostile = attack, hostile
        config = nodes[hostile].config
        self._sends, self._max_ratio = config.build_method().spec.sends, config.flower.max_ratio or 1.0

    def receive(self, names: Collection[str]) -> list[tuple[str, Message | str]]:
        for name in names:
            if name in self._waiting:
                node, message = self._waiting.pop(name)
                answer = self._nodes[node].answer(message)
                return [(name, self._changed(message, answer) if node == self._hostile else answer)]
        return []

    def _changed(self, message: Message, answer: Message) -> Message:
        do = read(message, Request).do
        if self._attack == COUNT:
            return claims(answer, do)
        if do != "train":
            return answer
        upload, sent = from_bytes(answer.body), from_bytes(message.body)
        change = ATTACKS[self._attack]
        limits = {name: self._max_ratio * kind.spread for name, kind in self._sends.items()}
        forged = {
            name: changed(value, sent.get(name), functools.partial(change, limit=limits.get(name, self._max_ratio)))
            for name, value in upload.items()
        }
        return Message(answer.facts, to_bytes(forged))


def changed(value: Any, sent: Any, change: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """An entry of an upload, every floating tensor and number of it changed; of a class table the held rows."""
    if isinstance(value, dict):
        before = sent if isinstance(sent, dict) else {}
        return {name: _tensor(tensor, before.get(name), change) for name, tensor in value.items()}
    if isinstance(value, ClassTable):
        rows = torch.stack([_tensor(row, None, change) for row in value.values.flatten(0, -2)])
        rows = rows.view(value.values.shape)
        return ClassTable(torch.where(value.held.unsqueeze(-1), rows, torch.zeros_like(rows)), value.held)
    if isinstance(value, Tensor):
        return _tensor(value, sent if isinstance(sent, Tensor) else None, change)
    if isinstance(value, float):
        return float(change(torch.tensor([value]), torch.zeros(1)))
    return value


def _tensor(value: Tensor, sent: Tensor | None, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    if not value.is_floating_point() or not value.numel():
        return value
    fits = sent is not None and sent.shape == value.shape  # a mask that was sent may come back as shares
    return change(value, sent.to(value.dtype) if sent is not None and fits else torch.zeros_like(value))


def claims(answer: Message, do: str, samples: int = 10**6) -> Message:
    """The answer of a node that claims to have a million samples, wherever it tells of its samples."""
    if do == "join":
        return read(answer, JoinReply).model_copy(update={"samples": samples}).to_message()
    if do == "test":
        scored = read(answer, EvalReply)
        full = {"accuracy": {"correct": samples, "total": samples}, "loss": {"loss_sum": 0.0, "total": samples}}
        tested = {
            name: result.model_copy(update={"total": samples, "states": {**result.states, **full}})
            for name, result in scored.tested.items()
        }
        return scored.model_copy(update={"tested": tested}).to_message()
    trained, upload = read(answer, TrainReply), from_bytes(answer.body)
    record: Record = {name: samples if name == "samples" else value for name, value in upload.items()}
    return trained.model_copy(update={"samples": samples}).to_message(to_bytes(record))


class Notes(Callback):
    """Counts what is refused."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def on_note(self, config: RunConfig, note: str) -> None:
        if getattr(note, "event", "") in ("refused", "left_out"):
            self.refused.append(str(note))


def config_of(method: str, rounds: int = 20, epochs: int = 2, clients: int = 10, **flower: Any) -> RunConfig:
    """The run of a method; a protocol that it has a model for, and what else it needs."""
    kind = METHODS.get(method)
    scenario = {"source": "digits", "partition": "dirichlet", "alpha": 0.5, "clients": clients, "val": 0.0}
    flower = {"join_timeout": 1.0, **flower}  # a node that is refused at the door is not waited for
    keys: dict[str, Any] = {"scenario": scenario | ({"public": 0.05} if kind.spec.public else {})}
    if kind.spec.views == 2:
        keys |= {"model": "digits-cnn", "augment": {"crop": 1}}
    for protocol in ("global/global", "personal/local"):
        values = {
            "method": method, "model": "mlp", "rounds": rounds, "local_epochs": epochs, "batch_size": 16,
            "engine": "serial", "evaluation": {"protocol": protocol, "every": rounds}, "flower": flower, **keys,
        }  # fmt: skip
        config = parse(values)
        if _offers(config):
            return config
    raise ConfigError(f"{method} has neither a global nor a personal model")


def _offers(config: RunConfig) -> bool:
    from fedloom.runs.run import _Run

    try:
        _Run(config, None, None, ())
    except ConfigError:
        return False
    return True


def federate(config: RunConfig, attack: str | None) -> tuple[Result, list[str]]:
    """Run a federation in this process with one hostile node, or none; what was refused."""
    scenario, notes = config.scenario.build(config.seed), Notes()
    with tempfile.TemporaryDirectory() as folder:
        first = Node(config, 0, Path(folder), scenario)
        nodes = {0: first} | {
            k: Node(config, k, Path(folder), scenario, None, first) for k in range(1, scenario.clients)
        }
        transport = InProcessTransport(nodes) if attack is None else HostileTransport(nodes, attack)
        return serve(config, transport, scenario=scenario, callbacks=[notes]), notes.refused


def accuracy(result: Result) -> float:
    """The protocol's accuracy in percent, without the hostile client where clients are tested."""
    last = max(row["round"] for row in result.rows if row["name"] == "accuracy")
    tested = {
        row["client"]: row["value"]
        for row in result.rows
        if row["round"] == last and row["name"] == "accuracy" and row["split"] == "test"
    }
    of_clients = [value for client, value in tested.items() if client is not None and client != HOSTILE]
    values = of_clients or [tested[None]]
    return 100 * sum(values) / len(values)


def measured(method: str, attack: str | None, rounds: int, epochs: int) -> dict[str, Any]:
    """One cell of the table."""
    try:
        result, refused = federate(config_of(method, rounds, epochs), attack)
    except FedloomError as error:
        return {"method": method, "attack": attack, "error": " ".join(str(error).split())[:200]}
    return {"method": method, "attack": attack, "accuracy": round(accuracy(result), 2), "refused": len(refused)}


SCENARIOS: dict[str, dict[str, Any]] = {
    "iid": {"partition": "iid"},
    "dirichlet 0.1": {"partition": "dirichlet", "alpha": 0.1},
    "two classes": {"partition": "classes", "classes_per_client": 2},
    "unequal sizes": {"partition": "quantity", "alpha": 0.3},
}


class Measured(NormBounds):
    """The bounds of a federation, which also keep how near the largest honest upload came to them."""

    nearest = 0.0  # the largest ratio to the reference, over spread and relative number of samples

    def judge(self, items: Any, samples: Any, sends: Any) -> dict[int, Any]:
        excesses = super().judge(items, samples, sends)
        tiny = 1e-9
        for excess in NormBounds(tiny, dict(self.references)).judge(items, samples, sends).values():
            Measured.nearest = max(Measured.nearest, tiny * excess.ratio / excess.limit)
        return excesses


def honest(method: str, name: str, rounds: int) -> dict[str, Any]:
    """One honest run with default bounds: what was refused, and how large the largest upload was."""
    remote.NormBounds = Measured  # type: ignore[misc]
    Measured.nearest = 0.0
    plain = config_of(method, rounds, 1)
    scenario = {"source": "digits", "clients": 10, "val": 0.0, **SCENARIOS[name]}
    public = {"public": 0.05} if METHODS.get(method).spec.public else {}
    values = plain.resolved() | {"scenario": scenario | public, "participation": 0.8}
    _, refused = federate(parse(values), None)
    return {"method": method, "scenario": name, "refused": refused, "largest": round(Measured.nearest, 2)}


def _federated() -> list[str]:
    """The methods whose clients keep their data: the others run over no nodes."""
    return [name for name, kind in METHODS if not kind.spec.pooled]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", help="all unless given")
    parser.add_argument("--wrapper", help="a robust mean around each, e.g. median")
    parser.add_argument("--attacks", nargs="*", default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--honest", action="store_true", help="nobody is hostile: count what is refused")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if arguments.honest:
        for name in arguments.methods or _federated():
            rows += [honest(name, scenario, arguments.rounds) for scenario in SCENARIOS]
            print(name, [(row["largest"], len(row["refused"])) for row in rows[-len(SCENARIOS) :]], flush=True)
            if arguments.json:
                write_atomic(arguments.json, json.dumps(rows, indent=1) + "\n")
        return
    for name in arguments.methods or _federated():
        method = f"{name}+{arguments.wrapper}" if arguments.wrapper else name
        try:
            config_of(method)
        except ConfigError as error:
            print(f"{method}: left out: {' '.join(str(error).split())[:120]}", flush=True)
            continue
        rows += [measured(method, attack, arguments.rounds, arguments.epochs) for attack in (None, *arguments.attacks)]
        cells = [
            f"{row['attack'] or 'honest'} {row.get('accuracy', 'ended')}" for row in rows if row["method"] == method
        ]
        print(f"{method}: {', '.join(cells)}", flush=True)
        if arguments.json:
            write_atomic(arguments.json, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
