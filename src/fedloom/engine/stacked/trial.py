"""Try whether a net can be stacked: in one step of two clients, each must get the gradients that it gets alone."""

from __future__ import annotations

import re
from typing import cast

import torch
from torch import Tensor

from fedloom.core.streams import Streams, generator_states
from fedloom.core.trees import Tree
from fedloom.engine.client import Worker
from fedloom.engine.stacked.members import StackedNet, dims
from fedloom.methods.contract.phases import Batch
from fedloom.nets.loaded_net import LoadedNet
from fedloom.nets.net import Net
from fedloom.nets.probe import is_foreign
from fedloom.nets.user_model import error_line

_SAMPLES = 8
_TOLERANCE = 0.05  # of the norm of all gradients: above the rounding of bfloat16, below the error of a wrong rule
_TOLERANCE_OF_OUTPUTS = 2e-3  # allowed change of outputs when masked rows are added
# Reasons for messages of `torch.vmap`, by words in them.
_MEANINGS = {
    "calling .item()": "its code reads values of tensors (.item()), which torch.vmap cannot do",
    "data-dependent control flow": "its code branches on values of tensors, which torch.vmap cannot do",
    "sparse": "it has sparse gradients, for which torch.vmap has no rule",
    "may have escaped": "its code hands tensors on to a later pass, or computes them again (checkpointing)",
}


def obstacle_of(worker: Worker, live: LoadedNet) -> str | None:
    """Return why the net of `live` cannot be stacked; None if no reason is known, and for nets of this library."""
    if not is_foreign(live.net):
        return None
    net, batch = StackedNet(live.net), _batch(worker)
    tree = _entries(live)
    net.module.train()
    with Streams(0).isolated("trial", device=worker.device):
        first = generator_states()
        try:
            alone = _gradients(net, tree, batch)
        except Exception:  # the net cannot take a step at all: training reports the error
            return None
        if generator_states() != first:
            return "it draws random numbers, for one client at a time"
        try:
            together = _stacked_gradients(net, _entries(live), batch)
            mixes = _mixes_samples(net, live, batch)
        except Exception as error:
            return reason_of(error)
    difference, size = (
        torch.stack([gradient.double().square().sum() for gradient in gradients]).sum().sqrt().nan_to_num()
        for gradients in ([together[name] - alone[name] for name in alone], list(alone.values()))
    )
    if difference > _TOLERANCE * size:
        return "its gradients differ in a stack: it has a hook, or state that is no buffer"
    return "its training mixes the samples of a batch, and short batches are padded" if mixes else None


def reason_of(error: BaseException) -> str:
    """Explain an error of a stack in one line."""
    text = str(error)
    if operator := re.search(r"aten::[\w.]+", text):
        return f"torch.vmap has no rule for {operator[0]}"
    for words, meaning in _MEANINGS.items():
        if words in text:
            return meaning
    return error_line(error).partition(". ")[0]


def is_of_vmap(error: BaseException) -> bool:
    """Whether `torch.vmap` raised an error, rather than the code that it runs."""
    text = str(error)
    return isinstance(error, RuntimeError) and any(word in text for word in ("vmap", "Batching rule", "functorch"))


@torch.no_grad()
def _mixes_samples(net: StackedNet, live: LoadedNet, batch: Batch) -> bool:
    """Whether a masked row changes buffers or the outputs of other rows."""
    if len(batch.y) < 2:
        return False
    count = len(batch.y)
    mask = torch.arange(2 * count, device=batch.y.device) < count
    repeated = torch.cat([batch.x, batch.x[:1].expand_as(batch.x)])
    padded = Batch(repeated, torch.cat([batch.y, batch.y]), mask)
    whole = padded._replace(x=batch.x, y=batch.y, mask=mask[:count])
    results = []
    for rows in (whole, padded):
        tree = _entries(live)
        logits = net.call(lambda net, rows: net(rows.x), tree, rows)
        results.append([logits[:count], *(tree[name] for name in tree if name not in net.parameters)])
    tolerance = _TOLERANCE if live.net.in_bfloat16 else _TOLERANCE_OF_OUTPUTS
    return not all(_near(a, b, tolerance) for a, b in zip(*results, strict=True))


def _near(value: Tensor, expected: Tensor, tolerance: float) -> bool:
    if not expected.numel():
        return True
    bound = tolerance * float(expected.abs().max().nan_to_num()) + 1e-6
    return bool(((value.double() - expected.double()).abs().nan_to_num() <= bound).all())


def _entries(live: LoadedNet) -> Tree:
    return {name: value.detach().clone() for name, value in live.tree.items()}


def _batch(worker: Worker) -> Batch:
    samples = torch.arange(min(_SAMPLES, len(worker.data)), device=worker.device)
    return Batch(worker.data.gather(samples), worker.data.y[samples])


def _weighed(net: Net, batch: Batch) -> Tensor:
    """Return a sum of the logits with a different weight for each."""
    logits = net(batch.x)
    weights = torch.linspace(0.5, 1.5, logits.numel(), device=logits.device, dtype=logits.dtype)
    return cast(Tensor, (logits * weights.view(logits.shape)).sum())


def _gradients(net: StackedNet, tree: Tree, batch: Batch) -> Tree:
    trainable = {name: tree[name].requires_grad_() for name in net.parameters}
    total = net.call(_weighed, tree | trainable, batch)
    return _of(total, trainable)


def _stacked_gradients(net: StackedNet, tree: Tree, batch: Batch) -> Tree:
    """Return the gradients of the first of two stacked clients, as `_gradients` does for a single client."""
    stacked = {name: torch.stack([value, value]) for name, value in tree.items()}
    trainable = {name: stacked[name].requires_grad_() for name in net.parameters}
    pair = Batch(torch.stack([batch.x, batch.x]), torch.stack([batch.y, batch.y]))
    totals = torch.vmap(lambda tree, batch: net.call(_weighed, tree, batch), in_dims=(0, dims(pair)))(
        stacked | trainable, pair
    )
    return {name: gradient[0] for name, gradient in _of(totals.sum(), trainable).items()}


def _of(total: Tensor, trainable: Tree) -> Tree:
    gradients = torch.autograd.grad(total, list(trainable.values()), materialize_grads=True)
    return {name: gradient.to_dense() for name, gradient in zip(trainable, gradients, strict=True)}
