"""What attacks find in the uploads of each method, with and without +dp and +topk: labels, inputs, membership.

    python -m benchmarks privacy --keep                            # everything, in minutes, into results/
    python -m benchmarks privacy --methods fedavg fedavg+dp --seeds 1

Data: scikit-learn's digits, ten clients, Dirichlet 0.5; MLP; 20 rounds of 2 epochs. The attacker sees a client's upload
as the server unpacks it; with +dp it sees the server's next state, because that is what gets noise. "mean alone" is the
same state without noise, as after a secure sum. Rows that are in the results are not measured again.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.attacks import (
    best_psnr,
    inputs_of_linear_layer,
    invert_features,
    invert_gradient,
    losses_of,
    membership_auc,
)
from benchmarks.data import RESULTS, Row, read_rows, write_rows
from benchmarks.hostile import accuracy, config_of, prepared
from benchmarks.label_inference import infer_labels
from fedloom.core.errors import ConfigError
from fedloom.core.records import Record
from fedloom.core.streams import Streams
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.data.scenario import total_variation
from fedloom.engine.jobs import Job
from fedloom.engine.serial import Serial
from fedloom.methods import METHODS
from fedloom.nets import MODELS
from fedloom.nets.net import Net, tree_of
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.run import _Run

STRONG, WEAK, SUM = "dp, z = 1", "dp, z = 0.1", "mean alone"
NOISE = {STRONG: 1.0, WEAK: 0.1}
CLOSE = ("fedavg", "fedskc", "fedsc", "feddw")  # with each wrapper
OTHERS = ("fedssa", "fedco2", "fedproto", "fedpac")
CELLS = [(name, "") for name in (*CLOSE, *OTHERS)] + [(name, word) for name in CLOSE for word in ("topk", SUM, *NOISE)]
BATCHES = (1, 4, 16)
INVERTED = (1, 4)  # batches of the search, which takes longer
ATTACKED = 3  # clients whose inputs are searched for
CLASSES, SHAPE = 10, (1, 8, 8)
CELLS_PATH, LABELS_PATH = RESULTS / "privacy.csv.gz", RESULTS / "privacy-labels.csv.gz"
STAGES_PATH = RESULTS / "privacy-stages.csv.gz"


def name_of(method: str, wrapper: str) -> str:
    """Return the method of a cell, as a config names it."""
    word = {SUM: "", STRONG: "dp", WEAK: "dp"}.get(wrapper, wrapper)
    return f"{method}+{word}" if word else method


def config(method: str, wrapper: str, seed: int, rounds: int, epochs: int) -> RunConfig:
    """Return the run of a method in a wrapper, with one of the two noises if that is `+dp`."""
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
    """An attacker's view of a client's round: the record that the client received, and its upload."""

    received: Record
    upload: Record


def views(
    running: _Run, wrapper: str, seen: Mapping[int, tuple[Job, Record]], before: Record, released: Record | None = None
) -> dict[int, View]:
    """Return the view of each client, from the jobs and uploads `seen` in a round; with +dp that of an outsider on all,
    from the server's state `before` the round to the next (`released`; None computes it)."""
    sent = {client: upload for client, (_, upload) in seen.items()}
    uploads = running.method.unpack(before, sent, running.federation.server_context)
    if wrapper == SUM or wrapper in NOISE:
        ctx = replace(running.federation.server_context(), round=1)
        after = released or running.method.aggregate(before, uploads, ctx)
        return {client: View(before, of_client(after, position)) for position, client in enumerate(seen)}
    return {client: View(job.payload, uploads[client]) for client, (job, _) in seen.items()}


def of_client(server: Record, position: int) -> Record:
    """Return the server's state with one participant's tables out of the stacks [m, C, d] that FedSC sends."""
    return {
        name: ClassTable(value.values[position], value.held[position])
        if isinstance(value, ClassTable) and value.values.dim() == 3
        else value
        for name, value in server.items()
    }


# -- attacks -------------------------------------------------------------------------------------------------
def label_errors(seen: Mapping[int, tuple[Job, Record]], of: Mapping[int, View], changes: Collection[str] = ()) -> Row:
    """Return the mean total variation between guessed and true label shares of the clients, and that of equal shares,
    from jobs and uploads `seen` in a round, in the attacker's view `of` each client. changes: as of `infer_labels`."""
    guesses, uniform, sources = [], [], set()
    for client, (job, _) in seen.items():
        truth = job.ctx.class_counts.double() / job.ctx.class_counts.sum()
        guess = infer_labels(of[client].upload, of[client].received, CLASSES, changes)
        sources.add(guess.source)
        guesses.append(float(total_variation(guess.shares, truth)))
        uniform.append(float(total_variation(np.full(CLASSES, 1 / CLASSES), truth)))
    return {"error": float(np.mean(guesses)), "uniform": float(np.mean(uniform)), "from": sorted(sources)}


def weights_in(record: Record) -> Tree:
    """Return the weights of one net in a record under their own names; of Fed-CO2's two nets the online one."""
    trees = [value for key, value in record.items() if isinstance(value, dict) and key in ("model", "head")]
    whole = {name.removeprefix("online."): value for tree in trees for name, value in tree.items()}
    return {name: value for name, value in whole.items() if not name.startswith("offline.")}


def change_in(view: View) -> Tree:
    """Return the change from the received weights to those that were sent."""
    sent, received = weights_in(view.upload), weights_in(view.received)
    return {name: sent[name] - received[name] for name in sent if name in received}


def input_errors(method: str, wrapper: str, seed: int) -> Row:
    """Return the PSNR of inputs from the upload of one step on B samples, and that of the mean image."""
    running = prepared(config(method, wrapper, seed, 1, 1))
    federation, data = running.federation, running.worker.data
    pixels = data.gather(torch.arange(len(data.y)))
    peak, mean = float(pixels.max() - pixels.min()), pixels.mean(0, keepdim=True)
    errors: Row = {}
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
        psnr = {"mean image": average(guess), "exact": average(exact), "search": average(searched)}
        errors |= {f"{size}.{name}": value for name, value in psnr.items()}
    return errors


def first_samples(job: Job, labels: Tensor, size: int) -> Job:
    """Return the job on the client's first `size` samples; with one epoch it makes one step."""
    indices = job.indices[:size]
    counts = torch.bincount(labels[indices], minlength=CLASSES)
    return replace(job, indices=indices, ctx=replace(job.ctx, samples=len(indices), class_counts=counts))


def searched_inputs(view: View, change: Tree, y: Tensor, seed: int) -> Tensor:
    """Search by Adam for inputs whose gradient points in the direction of the change."""
    start = weights_in(view.received)
    net = mlp(start)
    gradient = {name: -value for name, value in change.items()}
    return invert_gradient(net, tree_of(net) | start, gradient, y, SHAPE, rng=np.random.default_rng(seed), steps=200)


def prototype_errors(
    running: _Run, seen: Mapping[int, tuple[Job, Record]], of: Mapping[int, View], attacked: int = ATTACKED
) -> Row:
    """Return the PSNR to a client's class means of inputs whose features are its prototypes, and of the mean image.

    The attacker takes the weights that the client sent or received, or the first ones if there are none. Both are None
    where a method sends no prototypes. "lone": the same for classes of which the client has a single sample.
    """
    data = running.worker.data
    pixels = data.gather(torch.arange(len(data.y)))
    peak, mean = float(pixels.max() - pixels.min()), pixels.mean(0, keepdim=True)
    psnr, guess, lone = [], [], []
    for client, (job, _) in list(seen.items())[:attacked]:
        start = {name.removeprefix("online."): value for name, value in running.federation.tasks[0].init.items()}
        weights = {**start, **weights_in(of[client].received), **weights_in(of[client].upload)}
        net = mlp(weights)
        tables = [
            value
            for value in with_means(of[client].upload).values()
            if isinstance(value, ClassTable) and value.values.shape[-1] == net.head.in_features
        ]
        if not tables:
            return {"inverted": None, "mean image": None, "lone": None}
        counts = job.ctx.class_counts
        classes = [c for c in range(CLASSES) if tables[0].held[c] and counts[c] > 0]
        x, y = data.gather(job.indices), data.y[job.indices]
        truth = torch.stack([x[y == c].mean(0) for c in classes])
        tree = tree_of(net) | {name: value for name, value in weights.items() if name in tree_of(net)}
        inverted = invert_features(
            net, tree, tables[0].values[classes].float(), SHAPE, rng=np.random.default_rng(client), steps=200
        )
        for image, class_mean, c in zip(inverted, truth, classes, strict=True):
            psnr.append(best_psnr(image.unsqueeze(0), class_mean.unsqueeze(0), peak))
            lone += psnr[-1:] if counts[c] == 1 else []
            guess.append(best_psnr(mean, class_mean.unsqueeze(0), peak))
    return {"inverted": average(psnr), "mean image": average(guess), "lone": average(lone)}


def with_means(upload: Record) -> Record:
    """Return an upload with the class means that its sums by class hold, as Fed3R sends them."""
    if "class_sums" not in upload:
        return upload
    return upload | {"means": ClassTable.from_sums(upload["class_sums"], upload["class_shares"])}


def memberships(method: str, wrapper: str, seed: int, rounds: int) -> Row:
    """Return the AUC of a loss threshold, for each client's last upload and the final global model. Clients train on a
    fifth of their samples for 5 epochs per round, and overfit; the others are their remaining samples."""
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
    """Start a run whose engine keeps the uploads of these rounds."""
    running = prepared(config)
    recording = Recording(running, rounds)
    running.engine_factory = lambda *_: recording
    return running, recording


def mlp(weights: Tree) -> Net:
    """Return a net for these weights."""
    with Streams(0).isolated("init"):
        return MODELS.get("mlp")(input_shape=SHAPE, num_classes=CLASSES, head_bias="head.bias" in weights)


def average(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


# -- cells ---------------------------------------------------------------------------------------------------
def measured(method: str, wrapper: str, seed: int, rounds: int) -> Row:
    """Run a cell once and attack it."""
    running, engine = started(config(method, wrapper, seed, rounds, 2), (1, 2, rounds))
    result = running.execute(None)
    seen, before = engine.seen, engine.before
    released = {1: before[2], rounds: running.federation.server}
    of = {r: views(running, wrapper, seen[r], before[r], state) for r, state in released.items()}
    attacks = {
        "labels.first": label_errors(seen[1], of[1]),
        "labels.last": label_errors(seen[rounds], of[rounds]),
        "inputs": input_errors(method, wrapper, seed),
        "prototypes": prototype_errors(running, seen[rounds], of[rounds]),
        "membership": memberships(method, wrapper, seed, rounds),
    }
    return {
        "method": method,
        "wrapper": wrapper,
        "seed": seed,
        "accuracy": accuracy(result),
        "bytes_up": result.numbers["bytes_up"] / (rounds * 10),
        "epsilon": result.numbers.get("figures", {}).get("epsilon"),
        **{f"{attack}.{name}": value for attack, row in attacks.items() for name, value in row.items()},
    }


def labels_alone(method: str, seed: int) -> Row:
    """Run the label attack on the first uploads of any method."""
    running = prepared(parse(config_of(method, 2, 2).resolved() | {"seed": seed}))
    federation = running.federation
    seen = {}
    for client in range(10):
        job = federation.job(client, 1)
        seen[client] = job, running.worker.run(job).upload
    changes = {name for name, sent in running.method.spec.sends.items() if sent.form == "change"}
    return {"method": method, "seed": seed} | label_errors(seen, views(running, "", seen, federation.server), changes)


def stages(method: str, seed: int, rounds: int) -> Iterator[Row]:
    """Run a method, and attack the uploads of its rounds before the first and after the last: each client's, and where
    the server needs no more, the mean over clients."""
    instance = METHODS.get(method).configured("sound", {})
    if instance.opening() is None and instance.closing() is None:
        return
    running, engine = started(config(method, "", seed, rounds, 2), (0, rounds + 1))
    result = running.execute(None)
    for stage, round_ in (("opening", 0), ("closing", rounds + 1)):
        if round_ not in engine.seen:
            continue
        seen, of_stage = engine.seen[round_], running.federation.methods[stage]
        sends, uploads = of_stage.spec.sends, {client: upload for client, (_, upload) in seen.items()}
        single = {client: View(job.payload, upload) for client, (job, upload) in seen.items()}
        attacks = {"each client": single}
        if not any(sent.per_client for sent in sends.values()):
            mean: Record = {name: of_stage.mean(uploads, name) for name in sends}
            attacks[SUM] = {client: View(view.received, mean) for client, view in single.items()}
        for view, of in attacks.items():
            means = prototype_errors(running, seen, of, attacked=len(seen))
            yield {
                "method": method,
                "seed": seed,
                "stage": stage,
                "view": view,
                "accuracy": accuracy(result),
                **label_errors(seen, of),
                **{f"means.{name}": value for name, value in means.items()},
            }


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks privacy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ("cells", "labels", "stages")
    parser.add_argument("--only", choices=parts, help="all attacks, labels of all methods, or opening, closing rounds")
    parser.add_argument("--methods", nargs="*", help="cells such as fedsc or fedsc+dp, or methods; all unless given")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--keep", action="store_true", help="keep the rows in results/")
    arguments = parser.parse_args(words)
    torch.set_num_threads(1)
    federated = [(name, "") for name, kind in METHODS if not kind.spec.pooled]
    measures: dict[str, tuple[Path, list[tuple[str, str]], Callable[[str, str, int], list[Row]]]] = {
        "cells": (CELLS_PATH, CELLS, lambda *cell: [measured(*cell, arguments.rounds)]),
        "labels": (LABELS_PATH, federated, lambda name, _, seed: [labels_alone(name, seed)]),
        "stages": (STAGES_PATH, federated, lambda name, _, seed: list(stages(name, seed, arguments.rounds))),
    }
    for path, cells, measure in (measures[part] for part in parts if arguments.only in (None, part)):
        rows = read_rows(path) if arguments.keep and path.exists() else []
        done = {(row["method"], row.get("wrapper", ""), row["seed"]) for row in rows}
        wanted = [cell for cell in cells if not arguments.methods or name_of(*cell) in arguments.methods]
        for seed, cell in itertools.product(range(arguments.seeds), wanted):
            try:
                fresh = [] if (*cell, seed) in done else measure(*cell, seed)
            except ConfigError as error:
                print(f"{name_of(*cell)}: left out: {' '.join(str(error).split())[:120]}", flush=True)
                continue
            for row in fresh:
                rows.append(
                    {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
                )
                print(json.dumps(rows[-1]), flush=True)
            if arguments.keep and fresh:
                write_rows(path, sorted(rows, key=lambda row: cells.index((row["method"], row.get("wrapper", "")))))
