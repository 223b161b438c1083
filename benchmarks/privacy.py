"""What uploads tell of clients: labels, inputs, membership, by method, with and without +dp and +topk.

    python benchmarks/privacy.py --json benchmarks/results/privacy.json      # everything, in minutes
    python benchmarks/privacy.py --methods fedavg fedavg+dp --seeds 1
    python benchmarks/privacy_page.py                                        # the tables of docs/privacy-leaks.md

Data: scikit-learn's digits, ten clients, Dirichlet 0.5; MLP; 20 rounds of 2 epochs. What an attacker sees is a client's
upload as the server unpacks it; with +dp it is the server's next state, because that is what gets noise. "mean alone"
shows the same state without noise, as after a secure sum.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.files import write_atomic
from fedloom.core.records import Record
from fedloom.core.streams import Streams
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.data.statistics import total_variation
from fedloom.diagnosis.privacy.inputs import best_psnr, inputs_of_linear_layer, invert_features, invert_gradient
from fedloom.diagnosis.privacy.label_inference import infer_labels
from fedloom.diagnosis.privacy.membership import losses_of, membership_auc
from fedloom.engine.jobs import Job
from fedloom.engine.serial import Serial
from fedloom.methods import METHODS
from fedloom.nets import MODELS
from fedloom.nets.net import Net, tree_of
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.run import _Run
from hostile import accuracy, config_of

STRONG, WEAK, SUM = "dp, z = 1", "dp, z = 0.1", "mean alone"
NOISE = {STRONG: 1.0, WEAK: 0.1}
CLOSE = ("fedavg", "fedskc", "fedsc", "feddw")  # with each wrapper
OTHERS = ("fedssa", "fedco2", "fedproto", "fedpac")
CELLS = [(name, "") for name in (*CLOSE, *OTHERS)] + [(name, word) for name in CLOSE for word in ("topk", SUM, *NOISE)]
BATCHES = (1, 4, 16)
INVERTED = (1, 4)  # batches of the search, which takes longer
ATTACKED = 3  # clients whose inputs are searched for
CLASSES, SHAPE = 10, (1, 8, 8)


def name_of(method: str, wrapper: str) -> str:
    """The method of a cell, as a config names it."""
    word = {SUM: "", STRONG: "dp", WEAK: "dp"}.get(wrapper, wrapper)
    return f"{method}+{word}" if word else method


def config(method: str, wrapper: str, seed: int, rounds: int, epochs: int) -> RunConfig:
    """The run of a method in a wrapper, with one of the two noises if that is `+dp`."""
    name = name_of(method, wrapper)
    plain = config_of(name, rounds, epochs)
    options: dict[str, Any] = {}
    if wrapper in NOISE:
        lengths = {"dp_row_clip": 1.0} if method == "feddw" else {}
        options = {name: {"dp_noise": NOISE[wrapper], "dp_delta": 1e-3, "dp_table_clip": 10**0.5, **lengths}}
    values = {key: value for key, value in plain.resolved().items() if key != name}
    return parse(values | {"seed": seed} | options)


class Recording(Serial):
    """The serial engine, which keeps the jobs and uploads of some rounds, and the server's state before each."""

    def __init__(self, running: _Run, rounds: tuple[int, ...]) -> None:
        super().__init__(running.worker)
        self._running, self._rounds = running, rounds
        self.seen: dict[int, dict[int, tuple[Job, Record]]] = {}
        self.before: dict[int, Record] = {}

    def run(self, jobs: Any) -> Iterator[Any]:
        for job in sorted(jobs, key=lambda job: job.ctx.client):
            done = self.worker.run(job)
            if job.ctx.round in self._rounds:
                self.before.setdefault(job.ctx.round, self._running.federation.server)
                self.seen.setdefault(job.ctx.round, {})[job.ctx.client] = job, done.upload
            yield done


@dataclass
class View:
    """What an attacker sees of a client's round: what the client had received, and what it then sent."""

    received: Record
    upload: Record


def views(
    running: _Run, wrapper: str, seen: Mapping[int, tuple[Job, Record]], before: Record, released: Record | None = None
) -> dict[int, View]:
    """The view of each client; with +dp that of an outsider on all of them, from one server state to the next.

    Args:
        running: the run.
        wrapper: that of the cell.
        seen: jobs and uploads by client.
        before: the server's state before the round.
        released: its next state; None if it is still to be computed.
    """
    sent = {client: upload for client, (_, upload) in seen.items()}
    uploads = running.method.unpack(before, sent, running.federation.server_context)
    if wrapper == SUM or wrapper in NOISE:
        ctx = replace(running.federation.server_context(), round=1)
        after = released or running.method.aggregate(before, uploads, ctx)
        return {client: View(before, of_client(after, position)) for position, client in enumerate(seen)}
    return {client: View(job.payload, uploads[client]) for client, (job, _) in seen.items()}


def of_client(server: Record, position: int) -> Record:
    """The server's state, with one participant's tables out of stacks [m, C, d], which FedSC sends to everybody."""
    return {
        name: ClassTable(value.values[position], value.held[position])
        if isinstance(value, ClassTable) and value.values.dim() == 3
        else value
        for name, value in server.items()
    }


# -- attacks -------------------------------------------------------------------------------------------------
def label_errors(
    seen: Mapping[int, tuple[Job, Record]], of: Mapping[int, View], changes: Collection[str] = ()
) -> dict[str, Any]:
    """Mean total variation between guessed and true label shares of the clients, beside that of equal shares.

    Args:
        seen: jobs and uploads by client.
        of: what the attacker sees.
        changes: upload entries that are changes, not weights.
    """
    guesses, uniform, sources = [], [], set()
    for client, (job, _) in seen.items():
        truth = job.ctx.class_counts.double() / job.ctx.class_counts.sum()
        guess = infer_labels(of[client].upload, of[client].received, CLASSES, changes)
        sources.add(guess.source)
        guesses.append(float(total_variation(guess.shares, truth)))
        uniform.append(float(total_variation(np.full(CLASSES, 1 / CLASSES), truth)))
    return {"error": float(np.mean(guesses)), "uniform": float(np.mean(uniform)), "from": sorted(sources)}


def weights_in(record: Record) -> Tree:
    """The weights of one net in a record under their own names; of Fed-CO2's two nets the online one."""
    trees = [value for key, value in record.items() if isinstance(value, dict) and key in ("model", "head")]
    whole = {name.removeprefix("online."): value for tree in trees for name, value in tree.items()}
    return {name: value for name, value in whole.items() if not name.startswith("offline.")}


def change_in(view: View) -> Tree:
    """The change of the weights that were sent, and received before."""
    sent, received = weights_in(view.upload), weights_in(view.received)
    return {name: sent[name] - received[name] for name in sent if name in received}


def input_errors(method: str, wrapper: str, seed: int) -> dict[str, Any]:
    """PSNR of inputs from the upload of one step on B samples, beside that of the mean image."""
    running = _Run(config(method, wrapper, seed, 1, 1), None, None, ())
    federation, data = running.federation, running.worker.data
    pixels = data.gather(torch.arange(len(data.y)))
    peak, mean = float(pixels.max() - pixels.min()), pixels.mean(0, keepdim=True)
    found: dict[str, Any] = {}
    for size in BATCHES:
        jobs = {client: first_samples(federation.job(client, 1), data.y, size) for client in range(10)}
        seen = {client: (job, running.worker.run(job).upload) for client, job in jobs.items()}
        of = views(running, wrapper, seen, federation.server)
        exact, searched, guess = [], [], []
        full = [client for client, job in jobs.items() if len(job.indices) == size][:ATTACKED]
        for client in full:
            x, y = data.gather(jobs[client].indices), data.y[jobs[client].indices]
            guess.append(best_psnr(mean, x, peak))
            change = change_in(of[client])
            if "fc.0.weight" in change and bool(change["fc.0.bias"].count_nonzero()):
                candidates = inputs_of_linear_layer(change["fc.0.weight"], change["fc.0.bias"])
                exact.append(best_psnr(candidates, x, peak))
            if size in INVERTED and change and not searched:
                searched.append(best_psnr(searched_inputs(of[client], change, y, seed), x, peak))
        found[str(size)] = {"mean image": float(np.mean(guess)), "exact": average(exact), "search": average(searched)}
    return found


def first_samples(job: Job, labels: Tensor, size: int) -> Job:
    """The job on the client's first `size` samples: with one epoch, one step."""
    indices = job.indices[:size]
    counts = torch.bincount(labels[indices], minlength=CLASSES)
    return replace(job, indices=indices, ctx=replace(job.ctx, samples=len(indices), class_counts=counts))


def searched_inputs(view: View, change: Tree, y: Tensor, seed: int) -> Tensor:
    """Inputs whose gradient points as the change did, by Adam."""
    start = weights_in(view.received)
    net = mlp(start)
    gradient = {name: -value for name, value in change.items()}
    return invert_gradient(net, tree_of(net) | start, gradient, y, SHAPE, rng=np.random.default_rng(seed), steps=200)


def prototype_errors(running: _Run, seen: Mapping[int, tuple[Job, Record]], of: Mapping[int, View]) -> Any:
    """PSNR of inputs whose features are a client's prototypes, to its class means, beside that of the mean image.

    The attacker takes the weights that the client sent, or the first ones if it sends none.
    """
    data = running.worker.data
    pixels = data.gather(torch.arange(len(data.y)))
    peak, mean = float(pixels.max() - pixels.min()), pixels.mean(0, keepdim=True)
    found, guess = [], []
    for client, (job, _) in list(seen.items())[:ATTACKED]:
        start = {name.removeprefix("online."): value for name, value in running.federation.tasks[0].init.items()}
        weights = {**start, **weights_in(of[client].upload)}
        net = mlp(weights)
        tables = [
            value
            for value in of[client].upload.values()
            if isinstance(value, ClassTable) and value.values.shape[-1] == net.head.in_features
        ]
        if not tables:
            return None
        counts = job.ctx.class_counts
        classes = [c for c in range(CLASSES) if tables[0].held[c] and counts[c] > 0]
        x, y = data.gather(job.indices), data.y[job.indices]
        truth = torch.stack([x[y == c].mean(0) for c in classes])
        tree = tree_of(net) | {name: value for name, value in weights.items() if name in tree_of(net)}
        inverted = invert_features(
            net, tree, tables[0].values[classes].float(), SHAPE, rng=np.random.default_rng(client), steps=200
        )
        for one, true in zip(inverted, truth, strict=True):
            found.append(best_psnr(one.unsqueeze(0), true.unsqueeze(0), peak))
            guess.append(best_psnr(mean, true.unsqueeze(0), peak))
    return {"inverted": float(np.mean(found)), "mean image": float(np.mean(guess))}


def memberships(method: str, wrapper: str, seed: int, rounds: int) -> dict[str, Any]:
    """AUC of the loss threshold: a client's samples under its last upload, and all under the final global model.

    Clients train on a fifth of their samples, for 5 epochs a round, so that nets know samples by heart. The others are
    the client's remaining samples, which have its label mix.
    """
    plain = config(method, wrapper, seed, rounds, 5).resolved()
    running, engine = started(parse(plain | {"scenario": plain["scenario"] | {"val": 0.8}}), (rounds,))
    running.execute(None)
    seen, scenario, data = engine.seen[rounds], running.scenario, running.worker.data
    of = views(running, wrapper, seen, engine.before[rounds], running.federation.server)

    def losses(weights: Tree, indices: Tensor) -> Tensor:
        return losses_of(mlp(weights), weights, data.gather(indices), data.y[indices])

    areas = []
    for client, (job, _) in seen.items():
        weights, held_out = weights_in(of[client].upload), scenario.val.tensor(client)
        if "fc.0.weight" in weights and "head.weight" in weights and len(held_out):
            areas.append(membership_auc(losses(weights, job.indices), losses(weights, held_out)))
    final = weights_in(running.federation.server)
    if "fc.0.weight" not in final or "head.weight" not in final:
        return {"upload": average(areas), "global": None}
    members = torch.cat([losses(final, job.indices) for job, _ in seen.values()])
    others = torch.cat([losses(final, scenario.val.tensor(client)) for client in seen])
    return {"upload": average(areas), "global": membership_auc(members, others)}


def started(config: RunConfig, rounds: tuple[int, ...]) -> tuple[_Run, Recording]:
    """A run whose engine keeps the uploads of these rounds."""
    running = _Run(config, None, None, ())
    recording = Recording(running, rounds)
    running.engine_factory = lambda *_: recording
    return running, recording


def mlp(weights: Tree) -> Net:
    """The net of these weights."""
    with Streams(0).isolated("init"):
        return MODELS.get("mlp")(input_shape=SHAPE, num_classes=CLASSES, head_bias="head.bias" in weights)


def average(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


# -- cells ---------------------------------------------------------------------------------------------------
def measured(method: str, wrapper: str, seed: int, rounds: int) -> dict[str, Any]:
    """One run of a cell, and all attacks on it."""
    running, engine = started(config(method, wrapper, seed, rounds, 2), (1, 2, rounds))
    result = running.execute(None)
    seen, before = engine.seen, engine.before
    released = {1: before[2], rounds: running.federation.server}
    of = {r: views(running, wrapper, seen[r], before[r], state) for r, state in released.items()}
    return {
        "method": method,
        "wrapper": wrapper,
        "seed": seed,
        "accuracy": accuracy(result),
        "bytes_up": result.numbers["bytes_up"] / (rounds * 10),
        "epsilon": result.numbers.get("figures", {}).get("epsilon"),
        "labels": {"first": label_errors(seen[1], of[1]), "last": label_errors(seen[rounds], of[rounds])},
        "inputs": input_errors(method, wrapper, seed),
        "prototypes": prototype_errors(running, seen[rounds], of[rounds]),
        "membership": memberships(method, wrapper, seed, rounds),
    }


def labels_alone(method: str, seed: int) -> dict[str, Any]:
    """The label attack on the first uploads of any method."""
    running = _Run(parse(config_of(method, 2, 2).resolved() | {"seed": seed}), None, None, ())
    federation = running.federation
    seen = {}
    for client in range(10):
        job = federation.job(client, 1)
        seen[client] = job, running.worker.run(job).upload
    changes = {name for name, sent in running.method.spec.sends.items() if sent.form == "change"}
    return {"method": method, "seed": seed} | label_errors(seen, views(running, "", seen, federation.server), changes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("cells", "labels"), help="one part; what the file has is not measured again")
    parser.add_argument("--methods", nargs="*", help="cells such as fedsc or fedsc+dp, or methods; all unless given")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path: Path | None = arguments.json
    found = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {"cells": [], "labels": []}

    def wanted(name: str) -> bool:
        return not arguments.methods or name in arguments.methods

    measured_cells = {(row["method"], row["wrapper"], row["seed"]) for row in found["cells"]}
    measured_labels = {(row["method"], row["seed"]) for row in found["labels"]}
    for seed in range(arguments.seeds) if arguments.only != "labels" else ():
        for method, wrapper in (cell for cell in CELLS if wanted(name_of(*cell))):
            if (method, wrapper, seed) not in measured_cells:
                found["cells"].append(measured(method, wrapper, seed, arguments.rounds))
                print(json.dumps(rounded(found["cells"][-1])), flush=True)
                write(path, found)
    for seed in range(arguments.seeds) if arguments.only != "cells" else ():
        for name in (name for name, kind in METHODS if wanted(name) and not kind.spec.pooled):
            if (name, seed) in measured_labels:
                continue
            try:
                found["labels"].append(labels_alone(name, seed))
            except ConfigError as error:
                print(f"{name}: left out: {' '.join(str(error).split())[:120]}", flush=True)
            write(path, found)


def write(path: Path | None, found: Any) -> None:
    """Write what is known so far, if a path is given."""
    if path:
        write_atomic(path, json.dumps(rounded(found), indent=1) + "\n")


def rounded(value: Any) -> Any:
    """The value with four digits after the point."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
