"""The clients of one stack: what each has, their net without weights, their batches and statistics passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.trees import Tree
from fedloom.engine.client import CPU, PASS_BATCH, Draws, Job, Worker
from fedloom.engine.constants import Stacked, placed
from fedloom.methods.method import Start
from fedloom.methods.phases import Batch, Consts, Phase, Statistic
from fedloom.nets.functional import Functional
from fedloom.nets.masked import masked_copy
from fedloom.nets.net import Net


@dataclass(slots=True)
class Member:
    """One client of a stack: its job, what `begin` and `phases` gave, and what it has so far."""

    job: Job
    start: Start
    phases: list[Phase]
    draws: Draws
    consts: Consts
    collected: dict[str, Any] = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    samples: int = 0


def is_linear(net: Net) -> bool:
    """Whether only linear layers have weights."""
    return all(isinstance(module, nn.Linear) for module in net.modules() if _has_entries(module))


class StackedNet:
    """A net without weights of its own, which looks at a batch's mask. linear: whether only linear layers have any."""

    def __init__(self, net: Net) -> None:
        self.linear = is_linear(net)
        copied, self._rows = masked_copy(net)
        for module in copied.modules():
            if isinstance(module, Net):
                module.native = False  # native kernels know one client's tensors
        self.parameters = [name for name, _ in net.named_parameters()]
        self._net = Functional(copied)

    def train(self) -> None:
        self._net.train()

    def eval(self) -> None:
        self._net.eval()

    def call(self, function: Callable[..., Any], tree: Tree, batch: Batch, *arguments: Any) -> Any:
        """`function(net, batch, *arguments)`, the net having the weights `tree`."""
        self._rows.mask = batch.mask
        try:
            return self._net.call(function, tree, batch, *arguments)
        finally:
            self._rows.mask = None


def batch_of(worker: Worker, parts: Sequence[Tensor], draws: Sequence[Draws] | None = None) -> Batch:
    """One batch of every client, [K, B, ...], padded to the longest with rows that do not count."""
    data, longest = worker.data, max(part.numel() for part in parts)
    short = any(part.numel() < longest for part in parts)
    padded = [_padded(part, longest) for part in parts] if short else list(parts)
    rows = torch.stack(padded)
    if draws is None or draws[0].augment is None:
        x = data.gather(rows.flatten())
        x = x.view(*rows.shape, *x.shape[1:])
    else:
        own = [worker.gathered(part, drawn) for part, drawn in zip(parts, draws, strict=True)]
        x = torch.stack([_padded(images, longest) for images in own])
    mask = None
    if short:
        lengths = torch.tensor([part.numel() for part in parts])
        mask = (torch.arange(longest) < lengths.unsqueeze(1)).to(worker.device)
    return Batch(x, data.y[rows], mask)


@torch.no_grad()
def passed(
    worker: Worker,
    net: StackedNet,
    statistics: Mapping[str, Statistic],
    members: list[Member],
    tree: Tree,
    *,
    keep: bool = False,
) -> None:
    """A statistics pass of all members. Results go to their constants and, with `keep`, to what they collect."""
    classes = members[0].job.ctx.task.num_classes
    consts = Stacked.of([member.consts for member in members]).on(worker.device)
    parts = [list(torch.split(member.job.indices, PASS_BATCH)) for member in members]
    sums: dict[str, Tree] = {name: {} for name in statistics}

    def added(sums: dict[str, Tree], own: list[Tensor], tree: Tree, batch: Batch) -> dict[str, Tree]:
        new = {}
        for name, statistic in statistics.items():
            assert callable(statistic.of), f"statistic {name} of a pass names a tap; it needs a function"
            values = net.call(statistic.of, tree, batch, consts.of_one(own))
            new[name] = statistic.add(sums[name], values, batch, classes)
        return new

    net.eval()
    for step in range(max(len(own) for own in parts)):
        active = sum(len(own) > step for own in parts)
        batch = batch_of(worker, [own[step] for own in parts[:active]])
        fresh = torch.vmap(added, in_dims=(0, 0, 0, dims(batch)))(
            first_rows(sums, active), consts.first(active), {n: v[:active] for n, v in tree.items()}, batch
        )
        put_rows(sums, fresh)
    for row, member in enumerate(members):
        results = {
            name: statistic.result({n: value[row] for n, value in sums[name].items()})
            for name, statistic in statistics.items()
        }
        results = placed(results, CPU)
        member.consts = member.consts | results
        if keep:
            member.collected |= results


def stacked_trees(trees: Sequence[Tree], device: torch.device) -> Tree:
    """Trees as one of [K, ...]: what they have in common without a copy (`is_common`)."""
    first, count = trees[0], len(trees)
    stacked = {}
    for name, value in first.items():
        common = all(tree[name].data_ptr() == value.data_ptr() for tree in trees)
        stacked[name] = (
            value.to(device).expand(count, *value.shape)
            if common
            else torch.stack([tree[name] for tree in trees]).to(device)
        )
    return stacked


def is_common(stacked: Tensor) -> bool:
    """Whether the rows of a stack are all the same memory."""
    return stacked.stride(0) == 0


def _has_entries(module: nn.Module) -> bool:
    return any(True for _ in (*module.parameters(recurse=False), *module.buffers(recurse=False)))


def _padded(rows: Tensor, length: int) -> Tensor:
    """rows [B, ...] with repetitions of the first one up to `length`."""
    missing = length - len(rows)
    return torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])]) if missing else rows


def dims(batch: Batch) -> Any:
    return Batch(0, 0, None if batch.mask is None else 0)  # type: ignore[arg-type]


def first_rows(sums: dict[str, Tree], clients: int) -> dict[str, Tree]:
    return {name: {n: value[:clients] for n, value in tree.items()} for name, tree in sums.items()}


def put_rows(sums: dict[str, Tree], fresh: dict[str, Tree]) -> None:
    """`fresh` into the first rows of `sums`; the first time, it comes with all rows."""
    for name, tree in fresh.items():
        for n, value in tree.items():
            if n in sums[name]:
                sums[name][n][: len(value)] = value
            else:
                sums[name][n] = value
