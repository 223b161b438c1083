"""Run authors' code and ours on a tiny input, and print the difference: `code-elsewhere gpfl PATH`.

PATH is a clone of the method's repository, whose code is executed. Nothing of it is part of fedloom, and only code
whose licence allows it is run. Packages that the input does not need, such as torchvision, are replaced by stand-ins.
"""

import argparse
import contextlib
import importlib
import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.hostile import prepared
from fedloom.core.records import get_table, get_tree
from fedloom.engine.jobs import Job, JobResult
from fedloom.methods import METHODS
from fedloom.methods.fedfomo import length_of, raw_weights
from fedloom.methods.gpfl import EMBEDDING, conditions
from fedloom.runs.config.run_config import parse

# Methods whose code was read at the commit of their citation and is not executed, with the reason.
READ = dict.fromkeys(("fedpac", "fedas", "fedmrl", "pfedfda"), "the repository has no licence")
ABSENT = ("torchvision", "torchvision.transforms", "torchvision.datasets", "torchvision.models", "h5py")
Check = tuple[str, Any, Any]  # what is compared, the value of the authors' code, and ours
Tree = Mapping[str, Tensor]
Round = tuple[Job, JobResult, list[tuple[Tensor, Tensor]]]


def gpfl(clone: Path) -> Iterator[Check]:
    """Yield two rounds of a client on all its samples in one batch, and the default of `--lamda`."""
    job, result, samples = first_round("gpfl", {"weight": 0.01, "decay": 0.1})
    start, size, counts = job.ctx.task.init, len(samples), job.ctx.class_counts
    classes, width = start["head.weight"].shape
    args = SimpleNamespace(dataset="", device="cpu", num_classes=classes, batch_size=size, local_steps=1)
    args.model, args.local_learning_rate, args.lamda, args.mu = split(start), job.ctx.lr, 0.01, 0.1
    with foreign(clone / "system", "flcore.servers.servergp", "flcore.clients.clientgp") as (server, client):
        client.read_client_data = lambda *_, **__: samples
        args.CoV, args.GCE = server.CoV(width), server.GCE(width, classes)
        args.GCE.embedding.load_state_dict({"weight": start[EMBEDDING]})
        args.CoV.Conditional_gamma.load_state_dict(under(start, "extra.gamma."))
        args.CoV.Conditional_beta.load_state_dict(under(start, "extra.beta."))
        theirs = client.clientGP(args, 0, size, size)
        yield "condition in the first round", theirs.personalized_conditional_input, torch.zeros(width)
        theirs.train()
        ours = {**get_tree(result.state, "model"), **get_tree(result.upload, "model")}
        yield "body after a step", theirs.model.feature_extractor[1].weight, ours["fc.0.weight"]
        yield "head after a step", theirs.model.head.weight, ours["head.weight"]
        yield "embedding after a step", theirs.GCE.embedding.weight, ours[EMBEDDING]
        yield "gamma after a step", theirs.CoV.Conditional_gamma[0].weight, ours["extra.gamma.0.weight"]
        received = server.GCE(width, classes)
        theirs.set_GCE(received)
    condition = theirs.personalized_conditional_input
    yield "next condition, if made of the client's own embedding", condition, conditions(ours[EMBEDDING], counts)[1]
    yield "next condition, if made of the received one", condition, conditions(received.embedding.weight, counts)[1]
    default = re.search(r'"--lamda".*default=([\d.]+)', (clone / "system" / "main.py").read_text(encoding="utf-8"))
    yield "weight of the pull by default", default and float(default[1]), 0.01


def fedl2g(clone: Path) -> Iterator[Check]:
    """Yield what a client with one study and one quiz batch sends, and the server's mean."""
    job, result, samples = first_round("fedl2g", {"warm_up": 1, "server_lr": 1.0, "clip": None}, batches=2)
    start, half = job.ctx.task.init, len(samples) // 2
    vectors = nn.Embedding.from_pretrained(start["extra.guiding"], freeze=False)
    items: dict[str, Any] = {"guiding_vec": vectors, "model": split(start)}
    names = "flcore.clients.clientl2g_logit", "flcore.servers.serverl2g_logit"
    with foreign(clone / "system", *names, higher=SimpleNamespace(innerloop_ctx=inner_loop)) as (client, server):
        client.read_client_data = lambda *_, **__: samples
        client.load_item = lambda role, name, folder: items[name]
        client.save_item = lambda item, role, name, folder: items.update({name: item})
        theirs = object.__new__(client.clientL2G)
        vars(theirs).update(dataset="", id=0, role="", save_folder_name="", device="cpu", learning_rate=job.ctx.lr)
        vars(theirs).update(num_quiz=half, batch_size=half, meta_study_batches=1, meta_quiz_batches=1)
        vars(theirs).update(loss=nn.CrossEntropyLoss(), loss_mse=nn.MSELoss())
        theirs.meta_study()
        means = server.grads_aggregate([{0: torch.ones(2)}, {0: 3 * torch.ones(2), 1: torch.ones(2)}])
    sent, held = sorted(items["grads"]), get_table(result.upload, "guiding").held.nonzero()[:, 0].tolist()
    yield "classes that are sent", sent, held
    steps = start["extra.guiding"][held] - get_table(result.upload, "guiding").values[held]
    yield "gradients of the vectors", torch.stack([items["grads"][c] for c in held]), steps
    _, tiny, _ = first_round("fedl2g", {"warm_up": 1, "server_lr": 1e-9, "clip": None}, batches=2)
    moved = get_table(tiny.upload, "guiding").held.nonzero()[:, 0].tolist()
    yield "classes that are sent after a step below the precision of the vectors", sent, moved
    yield "the server's mean over the senders of a row", torch.stack([means[0], means[1]]), torch.tensor([[2.0], [1.0]])


def fedfomo(clone: Path) -> Iterator[Check]:
    """Yield the weights of three models, and what the affinities gain by them."""
    drawn, models = torch.Generator().manual_seed(0), [nn.Linear(4, 3) for _ in range(4)]
    for model, scale in zip(models, (2.0, 0.5, 1.0, 4.0), strict=True):  # the base, two better ones, and a worse one
        for weight in model.parameters():
            weight.requires_grad_(False).copy_(scale * torch.randn(weight.shape, generator=drawn))
    x, y = torch.randn(9, 4, generator=drawn), torch.arange(9) % 3
    losses = {id(model): float(nn.functional.cross_entropy(model(x), y)) for model in models}
    client = SimpleNamespace(eval=lambda epoch, model, args: losses[id(model)], args=None)
    with foreign(clone, "federation") as (federation,):
        federation.args.baseline_model, federation.args.model_delta_norm = "first_model", "l1"
        weights = federation.compute_fomo_weights(client, models[0], models[1:], parameter_distance=True)
        gaining = SimpleNamespace(id=0, model_ids=[1, 2, 3], model_deltas=list(weights), models=models[1:])
        gaining.client_weights = np.zeros(4)
        with contextlib.suppress(AttributeError):  # records of the client, after the affinities
            federation.Federation.update_client_weights(SimpleNamespace(baseline="first_model"), gaining, 0)
        first = federation.args.client_initial_self_weight
    trees = [dict(model.named_parameters()) for model in models]
    lengths = torch.tensor([length_of(tree, trees[0], "l1") for tree in trees], dtype=torch.float64)
    ours = raw_weights(torch.tensor(list(losses.values())), lengths)[1:]
    yield "weights w of the models", torch.from_numpy(weights), ours
    gained = torch.from_numpy(gaining.client_weights[1:])
    yield "growth of the affinities, if by w / |sum of w|", gained, ours / ours.sum().abs()
    yield "growth of the affinities, if by w as ours", gained, ours
    yield "a client's first affinity to itself", first, 1.0


CHECKS: dict[str, Callable[[Path], Iterator[Check]]] = {"fedfomo": fedfomo, "fedl2g": fedl2g, "gpfl": gpfl}


def split(start: Tree) -> nn.Sequential:
    """Return our MLP with its weights `start`, as a body and a head."""
    (hidden, inputs), (classes, _) = start["fc.0.weight"].shape, start["head.weight"].shape
    body, head = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU()), nn.Linear(hidden, classes)
    body[1].load_state_dict(under(start, "fc.0."))
    head.load_state_dict(under(start, "head."))
    return nn.Sequential(OrderedDict(feature_extractor=body, head=head))


@contextlib.contextmanager
def inner_loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[Any, Any]]:
    """Stand in for the package `higher`: plain SGD that keeps its graph."""
    weights = {name: weight.detach().requires_grad_() for name, weight in model.named_parameters()}

    def step(loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        for (name, weight), gradient in zip(list(weights.items()), gradients, strict=True):
            weights[name] = weight - optimizer.param_groups[0]["lr"] * gradient

    yield (lambda x: functional_call(model, weights, (x,))), SimpleNamespace(step=step)


def first_round(method: str, options: Mapping[str, Any], batches: int = 1) -> Round:
    """Run round 1 of a client with 24 digits in `batches` of equal size; return job, result and samples in order."""
    optimizer = {"name": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    values = {
        "method": method, "preset": "authors", method: options, "model": "mlp", "rounds": 1, "local_epochs": 1,
        "batch_size": 24 // batches, "optimizer": optimizer, "evaluation": {"protocol": "personal/local"},
        "scenario": {"source": "digits", "partition": "iid", "clients": 4, "val": 0.0}, "engine": "serial",
    }  # fmt: skip
    running = prepared(parse(values))
    job, data = running.federation.job(0, 1), running.worker.data
    indices = job.indices[:24]
    counts = torch.bincount(data.y[indices], minlength=10)
    state = job.state | ({"class_counts": counts} if "class_counts" in job.state else {})
    job = replace(job, indices=indices, state=state, ctx=replace(job.ctx, samples=24, class_counts=counts))
    return job, running.worker.run(job), list(zip(data.gather(indices), data.y[indices], strict=True))


@contextlib.contextmanager
def foreign(folder: Path, *names: str, **standins: Any) -> Iterator[tuple[ModuleType, ...]]:
    """Import modules of another repository's `folder` for a while; what they print goes to stderr."""
    absent = {name: MagicMock() for name in ABSENT if importlib.util.find_spec(name.partition(".")[0]) is None}
    with (
        patch.dict(sys.modules, absent | standins),
        patch.object(sys, "path", [str(folder), *sys.path]),
        patch.object(sys, "argv", [str(folder)]),
        contextlib.redirect_stdout(sys.stderr),
    ):
        yield tuple(importlib.import_module(name) for name in names)


def under(tree: Tree, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tree.items() if name.startswith(prefix)}


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks code-elsewhere", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("method", choices=sorted({*CHECKS, *READ}))
    parser.add_argument("clone", type=Path, help="a clone of its repository, with its files checked out")
    arguments = parser.parse_args(words)
    method, clone, citation = arguments.method, arguments.clone, METHODS.get(arguments.method).citation
    commit = str(citation and citation.code).rpartition(" at ")[2]
    if method in READ:
        print(f"{method}: {READ[method]}, so its code was read at {commit} and is not run")
        return 1
    if not any(clone.glob("**/*.py")):
        print(f"{clone}: no Python files; name the folder of a clone, with its files checked out")
        return 2
    git = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    if not head.startswith(commit):
        print(f"note: this is {head[:7] or 'no clone'}, and the page speaks of {commit}")
    for what, theirs, ours in CHECKS[method](clone):
        if isinstance(theirs, Tensor):
            difference, largest = float((theirs.double() - ours.double()).abs().max()), float(theirs.abs().max())
            print(f"{what}: largest difference {difference:.1e}, of values up to {largest:.3g}")
        else:
            print(f"{what}: theirs {theirs}, ours {ours}")
    return 0
