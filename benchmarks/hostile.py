"""Accuracy of every method with one hostile node of ten, by attack, under the default bounds of a federation.

    python -m benchmarks hostile --out hostile                    # all methods, into results/hostile.csv.gz
    python -m benchmarks hostile --wrapper median --out median    # with a robust mean around each
    python -m benchmarks hostile --honest --out honest            # without a hostile node: uploads that are refused
    python -m benchmarks hostile --methods fedavg fedsc

The nodes run in this process and speak as real ones do. Client 3 trains honestly, but its uploads are changed.
Data: scikit-learn's digits, ten clients, Dirichlet 0.5; MLP; 20 rounds of 2 epochs; accuracy is the protocol's, which
leaves out the hostile client where clients are tested.
"""

import argparse
import functools
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks.data import RESULTS, write_rows
from fedloom.core.errors import ConfigError, FedloomError
from fedloom.core.records import Record, from_bytes, to_bytes
from fedloom.core.tables import ClassTable
from fedloom.flower import remote
from fedloom.flower.checks import References
from fedloom.flower.node import Node
from fedloom.flower.server import serve
from fedloom.flower.transport import InProcessTransport
from fedloom.flower.wire import EvalReply, JoinReply, Message, Request, TrainReply, read
from fedloom.methods import METHODS
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.run import _Run
from fedloom.runs.storage.run_data import RunData

HOSTILE = 3  # the client
INSIDE = 0.95  # share of the bound
Change = Callable[[Tensor, Tensor, float], Tensor]
"""Forges a tensor. Arguments: the honest upload, the value that the server had sent (zeros if none), and how many
times larger than usual it may be."""

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
    """Nodes of this process, one of which forges its answers."""

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
    """Change every floating tensor and number of an upload's entry; of a class table the held rows."""
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
    """Change an answer: the node claims a million samples wherever it reports its samples."""
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
    """Collects the refusals."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def on_note(self, config: RunConfig, note: str) -> None:
        if getattr(note, "event", "") in ("refused", "left_out"):
            self.refused.append(str(note))


def config_of(method: str, rounds: int = 20, epochs: int = 2, clients: int = 10, **flower: Any) -> RunConfig:
    """Return the run of a method, with a protocol that it has a model for."""
    kind = METHODS.get(method)
    scenario = {"source": "digits", "partition": "dirichlet", "alpha": 0.5, "clients": clients, "val": 0.0}
    flower = {"join_timeout": 1.0, **flower}  # do not wait for a node that was refused when it joined
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
    try:
        prepared(config)
    except ConfigError:
        return False
    return True


def prepared(config: RunConfig) -> _Run[RunData]:
    """Return a run that has not begun."""
    return _Run(config, None, None, (), None, RunData)


def federate(config: RunConfig, attack: str | None) -> tuple[RunData, list[str]]:
    """Run a federation in this process with one hostile node or none. Returns the result and the refusals."""
    scenario, notes = config.scenario.build(config.seed), Notes()
    with tempfile.TemporaryDirectory() as folder:
        first = Node(config, 0, Path(folder), scenario)
        nodes = {0: first} | {
            k: Node(config, k, Path(folder), scenario, None, first) for k in range(1, scenario.clients)
        }
        transport = InProcessTransport(nodes) if attack is None else HostileTransport(nodes, attack)
        return serve(config, transport, scenario=scenario, callbacks=[notes]), notes.refused


def accuracy(result: RunData) -> float:
    """Return the protocol's accuracy in percent, without the hostile client where clients are tested."""
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
    """Measure one cell of the table."""
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


class Measured(References):
    """The bounds of a federation, which also note how near the largest honest upload came to them."""

    nearest: ClassVar[float] = 0.0  # the largest ratio to the reference, as a multiple that the bound of 5 limits

    def judge(self, norms: Any, samples: Any, sends: Any, max_ratio: float, rehearsed: Any) -> Any:
        judged = super().judge(norms, samples, sends, max_ratio, rehearsed)
        Measured.nearest = max([Measured.nearest, *(max_ratio * excess for excess, _ in judged.values())])
        return judged


def honest(method: str, name: str, rounds: int) -> dict[str, Any]:
    """Measure an honest run with default bounds: the refusals, and the size of the largest upload."""
    remote.References = Measured  # type: ignore[misc]
    Measured.nearest = 0.0
    plain = config_of(method, rounds, 1)
    scenario = {"source": "digits", "clients": 10, "val": 0.0, **SCENARIOS[name]}
    public = {"public": 0.05} if METHODS.get(method).spec.public else {}
    values = plain.resolved() | {"scenario": scenario | public, "participation": 0.8}
    _, refused = federate(parse(values), None)
    return {"method": method, "scenario": name, "refused": refused, "largest": round(Measured.nearest, 2)}


def _federated() -> list[str]:
    """Return the methods whose clients keep their data; only these run over nodes."""
    return [name for name, kind in METHODS if not kind.spec.pooled]


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks hostile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="*", help="all unless given")
    parser.add_argument("--wrapper", help="a robust mean around each, e.g. median")
    parser.add_argument("--attacks", nargs="*", default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--honest", action="store_true", help="without a hostile node: count the refusals")
    parser.add_argument("--out", metavar="NAME", help="keep the rows in results/NAME.csv.gz")
    arguments = parser.parse_args(words)
    rows: list[dict[str, Any]] = []
    if arguments.honest:
        for name in arguments.methods or _federated():
            rows += [honest(name, scenario, arguments.rounds) for scenario in SCENARIOS]
            print(name, [(row["largest"], len(row["refused"])) for row in rows[-len(SCENARIOS) :]], flush=True)
            if arguments.out:
                write_rows(RESULTS / f"{arguments.out}.csv.gz", rows)
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
        if arguments.out:
            write_rows(RESULTS / f"{arguments.out}.csv.gz", rows)
