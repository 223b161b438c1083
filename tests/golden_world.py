"""The golden world of `golden/baselines.json`: three unequal clients, a net in float64, two or three rounds.

Numbers come from numpy with complex-step gradients, not from this project. Nothing here is checked itself.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.core.records import Record, get_table
from fedloom.core.streams import Streams
from fedloom.core.trees import Tree
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.engine import Federation, LocalTraining, Serial, Worker
from fedloom.methods import OptimizerSpec, Train
from fedloom.methods.contract.contexts import Task
from fedloom.nets.blueprint import prepare_net
from fedloom.nets.net import Net


class Values(Mapping[str, Any]):
    """Golden values by name, which note in `READ` the paths of those that a test reads."""

    def __init__(self, values: dict[str, Any], path: tuple[str, ...]) -> None:
        self.data, self.path = values, path

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other}

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**other, **self}

    def __getitem__(self, name: str) -> Any:
        value = self.data[name]
        if isinstance(value, dict):
            return Values(value, (*self.path, name))
        READ.add((*self.path, name))
        return value

    def paths(self) -> set[tuple[str, ...]]:
        """Paths of all values that are no text: of numbers and of lists."""
        nested = [Values(v, (*self.path, n)).paths() for n, v in self.data.items() if isinstance(v, dict)]
        return {(*self.path, n) for n, v in self.data.items() if not isinstance(v, dict | str)}.union(*nested)


READ: set[tuple[str, ...]] = set()


def golden_file(name: str) -> Values:
    """The entries of a file of golden numbers, by method; each states its `convention`."""
    return Values(json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text()), (name,))


GOLDEN = golden_file("baselines")
CLASS_KNOWLEDGE = golden_file("class-knowledge")
SHARED_BASELINES = golden_file("shared-baselines")
WORLD = GOLDEN["world"]
CLIENTS, CLASSES = len(WORLD["n"]), WORLD["classes"]
WIDTH, INPUTS = np.shape(WORLD["init"]["fc.weight"])
EVERYBODY = list(range(CLIENTS))
SIZES = np.cumsum([0, *WORLD["n"]])


class GoldenNet(Net):
    """The golden world's net, in float64; its inputs have two decimals."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.double()
        with torch.no_grad():
            for name, value in self.named_parameters():
                value.copy_(torch.tensor(WORLD["init"][name], dtype=torch.float64))

    def features(self, x: Tensor) -> Tensor:
        x = x.double().mul(100).round().div(100)
        return (x @ self.fc.weight.T + self.fc.bias).relu()


class GoldenNorm(GoldenNet):
    """The golden world's net with batch norm after its first layer, as the entry "fedbn" describes it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, **GOLDEN["fedbn"]["options"]).double()
        with torch.no_grad():
            for name, value in GOLDEN["fedbn"]["norm_init"].items():
                self.get_parameter(name).copy_(torch.tensor(value, dtype=torch.float64))

    def features(self, x: Tensor) -> Tensor:
        x = x.double().mul(100).round().div(100)
        z: Tensor = self.norm(self.fc(x)).relu()
        return z


def golden_scenario() -> Scenario:
    """The three clients' samples; the server's public inputs, whose labels are unknown (0)."""
    data = Dataset(
        torch.cat([torch.tensor(x, dtype=torch.float64) for x in WORLD["x"]]),
        torch.cat([torch.tensor(y) for y in WORLD["y"]]),
        tuple("abcdefgh"[:CLASSES]),
    )
    shared = torch.tensor(WORLD["public"], dtype=torch.float64)
    public = Dataset(shared, torch.zeros(len(shared), dtype=torch.int64), data.classes)
    views = Views.from_lists([np.arange(a, b) for a, b in itertools.pairwise(SIZES)])
    return Scenario("golden", data, data, views, Views.from_lists([np.arange(0)] * CLIENTS), views, public=public)


def golden_run(
    kind: Any,
    rounds: int | None = None,
    *,
    drawn: list[list[int]] | None = None,
    lr: float | None = None,
    momentum: float = 0.0,
    epochs: int | None = None,
    batch_size: int | None = None,
    net: Net | None = None,
    **options: Any,
) -> tuple[Federation, list[Record]]:
    """The federation after its rounds in the golden world, and the server's state after each of them.

    drawn: the participants of each round, if they are not the world's; epochs: local ones, each a step on all samples;
    net: instead of the world's.
    """
    schedule = drawn or WORLD["rounds"]

    class Drawn:
        def select(self, server: Record, count: int, ctx: Any) -> list[int]:
            return schedule[ctx.round - 1]

    method = type(kind.__name__, (Drawn, kind), {})(kind.Options(**options))
    scenario, rounds = golden_scenario(), rounds or len(schedule)
    batch_size = batch_size or max(WORLD["n"]) + 2
    net = prepare_net(net or GoldenNet(), nets=method.spec.nets, extra=method.extra, head_bias=method.spec.head_bias)
    net.double()
    optimizer = OptimizerSpec(lr=WORLD["lr"] if lr is None else lr, momentum=momentum)
    facts = {"clients": CLIENTS, "num_classes": CLASSES, "rounds": rounds, "local_epochs": epochs or WORLD["epochs"]}
    task = Task.of(net, **facts, streams=Streams(0), optimizer=optimizer, batch_size=batch_size)
    worker = Worker(method, [net], scenario.train_set, LocalTraining(batch_size, optimizer))
    federation = Federation(method, Serial(worker), [task], scenario, participation=2 / CLIENTS, nets=[net.functional])
    servers = []
    for _ in range(rounds):
        federation.step()
        servers.append(federation.server)
    return federation, servers


def with_steps(kind: Any, steps: list[int]) -> Any:
    """The method, but that client k makes steps[k] local steps."""

    class Steps(kind):
        def phases(self, start: Any, ctx: Any) -> list[Any]:
            found = super().phases(start, ctx)
            return [replace(p, steps=steps[ctx.client]) if isinstance(p, Train) else p for p in found]

    return type(kind.__name__, (Steps,), {})


def noting(kind: Any) -> tuple[Any, dict[str, Any]]:
    """The method, and its objectives at the first step of each client's round, two clients a round: "round1/0"."""
    seen: list[int] = []
    firsts: dict[str, Any] = {}

    class Noting(kind):
        def loss(self, net: Any, batch: Any, consts: Any) -> Any:
            out = super().loss(net, batch, consts)
            seen.append(WORLD["n"].index(len(batch.y)))
            firsts.setdefault(f"round{(len(seen) - 1) // (2 * WORLD['epochs']) + 1}/{seen[-1]}", out)
            return out

    return type(kind.__name__, (Noting,), {}), firsts


def noting_uploads(kind: Any) -> tuple[Any, dict[str, dict[str, Record]]]:
    """The method, and the uploads of each round by client: "round1", "0"."""
    seen: dict[str, dict[str, Record]] = {}

    class Noting(kind):
        def aggregate(self, server: Record, uploads: Any, ctx: Any) -> Record:
            seen[f"round{ctx.round}"] = {str(client): dict(upload) for client, upload in uploads.items()}
            return super().aggregate(server, uploads, ctx)

    return type(kind.__name__, (Noting,), {}), seen


def matches(tree: Tree, golden: Mapping[str, Any], *, prefix: str = "", tolerance: float = 1e-7) -> bool:
    """Whether the entries of a tree that a golden one has are its numbers."""
    expected = {prefix + name: torch.tensor(value, dtype=torch.float64) for name, value in golden.items()}
    assert expected.keys() <= tree.keys()
    return all(torch.allclose(tree[n].double(), v, rtol=0, atol=tolerance) for n, v in expected.items())


def probe(tree: Tree, names: Iterable[str] = tuple(WORLD["init"])) -> float:
    """The fingerprint of golden/baselines.md: sum_i v_i cos(i + 1), i over all numbers of a tree."""
    flat = torch.cat([tree[name].double().flatten() for name in names])
    return float((flat * torch.cos(torch.arange(1, len(flat) + 1, dtype=torch.float64))).sum())


def mistakes(golden: Mapping[str, Any], *others: str) -> list[float]:
    """The fingerprints of an entry's known mistakes and of what other code computes instead; one at least."""
    names = [name for name in golden if name.startswith("WRONG") or name in others]
    values = [golden[name] for name in names]
    numbers = [value for value in values if isinstance(value, float)]
    assert numbers, "no fingerprint is a number: compare this entry by hand"
    return numbers


def refuted(
    tree: Tree, golden: Mapping[str, Any], names: Iterable[str] = tuple(WORLD["init"]), *, others: Iterable[str] = ()
) -> bool:
    """Whether a tree has the fingerprint of none of an entry's known mistakes, and of no other code's results."""
    return all(abs(probe(tree, names) - value) > 1e-6 for value in mistakes(golden, *others))


def golden_entries(names: str) -> dict[str, Values]:
    """The entries of some methods, whichever file has them."""
    files = (GOLDEN, SHARED_BASELINES, CLASS_KNOWLEDGE)
    return {name: next(file for file in files if name in file)[name] for name in names.split()}


def table_values(server: Record) -> Tree:
    """The rows of the server's prototypes, as the tree that golden probes cover."""
    return {"rows": get_table(server, "prototypes").values}


def assert_golden(
    kind: Any,
    entry: Values,
    variant: str = "out",
    *,
    prefix: str = "",
    own: str | None = "",
    kept: str = "model",
    tolerance: float = 1e-7,
    others: Iterable[str] = (),
    refutes: bool = True,
    **run: Any,
) -> tuple[Federation, list[Record]]:
    """Run the golden world and hold it to a variant of an entry: the server's model, its rows per class, their
    fingerprint after each round, the clients' own models at the end, and the fingerprints of known mistakes.

    prefix, own: what our names of the server's and of the clients' entries begin with; clients are not looked at if
    `own` is None. kept: where clients keep these. others: further fingerprints that must not come out. run: keys of
    `golden_run`, the method's options among them.
    """
    gold = entry[variant]
    federation, servers = golden_run(kind, sum(name.startswith("round") for name in gold), **run)
    for number, server in enumerate(servers, 1):
        wanted = gold[f"round{number}"]
        tree, names = dict(server.get("model", {})), [prefix + name for name in wanted.get("server", ())]
        assert matches(tree, wanted.get("server", {}), prefix=prefix, tolerance=tolerance)
        if "rows" in wanted:
            tree, names = tree | table_values(server), [*names, "rows"]
            assert matches(tree, {"rows": wanted["rows"]}, tolerance=tolerance)
        if "held" in wanted:
            assert get_table(server, "prototypes").held.tolist() == wanted["held"]
        if "probe" in wanted:
            assert abs(probe(tree, names) - wanted["probe"]) < tolerance
    for client, wanted in gold.get("own", {}).items() if own is not None else ():
        assert matches(federation.states[int(client)][kept], wanted, prefix=own, tolerance=tolerance)
    if refutes and any(name.startswith("WRONG") and isinstance(entry.data[name], float) for name in entry):
        assert refuted(tree, entry, names, others=others)
    return federation, servers


def variant_probe(kind: Any, entry: Values, variant: str = "out", *, prefix: str = "", **run: Any) -> float:
    """The fingerprint of the server's model or rows after the rounds of a variant under other options."""
    gold = entry[variant]
    rounds = [name for name in gold if name.startswith("round")]
    _, servers = golden_run(kind, len(rounds), **run)
    covered = gold[rounds[0]]
    tree, names = dict(servers[-1].get("model", {})), [prefix + name for name in covered.get("server", ())]
    return probe(tree | table_values(servers[-1]), [*names, "rows"]) if "rows" in covered else probe(tree, names)


def nearest_rows(rows: Tensor, golden: Any) -> Tensor:
    """The rows [n, d] in the golden file's order, which numbers clusters as it likes; each golden row has its own."""
    wanted = torch.tensor(golden, dtype=torch.float64)
    order = torch.cdist(wanted, rows.double()).argmin(1)
    assert sorted(order.tolist()) == list(range(len(rows))), "the rows are not those of the file"
    return rows[order]


def personal(federation: Federation, client: int) -> Tree:
    """The weights with which a client is tested, before it adapts them."""
    facts, context = federation.client_context(client, federation.round), federation.server_context(client)
    offered = federation.method.predictors(federation.server, federation.state_of(facts), context)
    return offered["personal"].tree
