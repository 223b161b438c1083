"""Several models of one architecture: at the server (IFCA, FedEM), or a private and a shared one (FML, FedKD)."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.contract.means import RECORDED, recorded_shares

NOISE = 0.1  # of first weights that cannot be drawn again, relative to the root mean square of an entry


def first_models(task: fm.Task, count: int) -> list[fm.Tree]:
    """Return `count` first weights: the run's own, and others drawn the same way, or with noise of size `NOISE`."""
    return [task.init, *(_other_weights(task, number) for number in range(1, count))]


def _other_weights(task: fm.Task, number: int) -> fm.Tree:
    if draws_weights(task):
        # clients draw with ids of 0 and more, so models have negative ones
        return task.fresh(-1 - number)
    rng, trained = task.streams.numpy("first models", 0, number), task.names(fm.TRAINABLE) - task.frozen
    weights = dict(task.init)
    # In the net's order: that of a set differs from process to process, and so would the draws.
    for name in (name for name in task.init if name in trained):
        value = task.init[name]
        noise = torch.from_numpy(rng.standard_normal(value.shape)).to(value)
        weights[name] = value + NOISE * value.square().mean().sqrt() * noise
    return weights


def draws_weights(task: fm.Task) -> bool:
    """Whether further first weights of the run's net can be drawn."""
    try:
        task.fresh(-2)
    except fm.ConfigError:
        return False
    return True


def noisy_starts(method: str, count: int, task: fm.Task) -> list[fm.Diagnostic]:
    """Report, as `method`, if the first weights of `count` models differ by noise alone."""
    if count < 2 or draws_weights(task):
        return []
    message = f"this net comes with its weights: the {count} models start from them with noise of {NOISE:.0%}"
    return [fm.Diagnostic(f"{method}.noisy_starts", message, NOISE)]


def key_of(number: int) -> str:
    """Return the name of a model in a record: "model", "model.1", "model.2", ..."""
    return f"model.{number}" if number else "model"


def named_models(models: Sequence[fm.Tree]) -> fm.Record:
    """Return the models as entries of a record."""
    return {key_of(number): model for number, model in enumerate(models)}


def models_in(record: fm.Record, count: int) -> list[fm.Tree]:
    """Return the first `count` models of a record."""
    return [fm.get_tree(record, key_of(number)) for number in range(count)]


def losses_of_models(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    """Return the CE of the trees `consts["models"]` on each sample of a `batch` [B, models], in evaluation mode."""
    logits = [net.functional.logits(tree, batch.x) for tree in consts["models"]]
    return torch.stack([fm.cross_entropy(scores, batch.y) for scores in logits], 1)


def head_in(upload: fm.Record, name: str) -> fm.Tree:
    """Return the head of an `upload`, with the shares of samples that record each of several labels."""
    shares = recorded_shares({0: upload})
    return fm.get_tree(upload, name) | ({} if shares is None else {RECORDED: shares[0]})


def as_uploads(trees: Sequence[fm.Tree], name: str) -> fm.Uploads:
    """Return trees of `head_in` as uploads of the entry `name`, for their mean."""
    rests = ({n: value for n, value in tree.items() if n != RECORDED} for tree in trees)
    pairs = enumerate(zip(trees, rests, strict=True))
    return {k: {name: rest, "samples": 1, **fm.select(tree, {RECORDED})} for k, (tree, rest) in pairs}


def with_recorded(heads: Sequence[fm.Tree]) -> list[fm.Tree]:
    """Return all `heads` with shares if one has them: first heads, which nobody has trained, count for every label."""
    shares = [torch.ones_like(head[RECORDED]) for head in heads if RECORDED in head]
    return [{RECORDED: shares[0]} | head for head in heads] if shares else list(heads)


def require_same_net(tasks: fm.Tasks, net: str, option: str) -> None:
    """Raise `ConfigError` unless `net`, which `option` names, has the same entries in the bundles of all groups."""
    prefix = f"{net}."
    entries_by_group = [[(n, v.shape) for n, v in task.init.items() if n.startswith(prefix)] for task in tasks]
    for group, entries in enumerate(entries_by_group):
        if entries != entries_by_group[0]:
            raise fm.ConfigError(
                f"{option}: the {net} of group {group} is not that of group 0, and it is averaged; name one for all"
            )


def pair_predictors(
    method: fm.Method, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext, shared: str
) -> dict[str, fm.Predictor]:
    """Return from a `server`: "personal", the bundle's first net; and net `shared`, "global" if `state` is None."""
    tree = method._full(server, state, ctx.task)
    shared_predictor = fm.Predictor(tree, lambda net, x: cast(fm.Bundle, net)[shared](x))
    return {"global": shared_predictor} if state is None else {"personal": fm.Predictor(tree), shared: shared_predictor}
