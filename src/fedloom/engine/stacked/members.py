"""The clients of one stack: their constants, their net without weights, their batches and statistics passes.

Equal leaves of constants stay single, the others get a dimension for clients."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedloom.core.trees import Tree
from fedloom.engine.batch_sampler import PASS_BATCH
from fedloom.engine.client import CPU, Worker
from fedloom.engine.client_phases import chosen_weights
from fedloom.engine.jobs import Client, Draws
from fedloom.engine.keys import Leaf, from_leaves, is_common, leaves_of, structure_of, to_device
from fedloom.engine.steps import add_statistics, pass_function
from fedloom.methods.contract.phases import Batch, Choose, Collect, Consts, Train, padded_labels
from fedloom.methods.contract.sample_statistics import Statistic
from fedloom.nets.masked_batch_norm import FunctionalCall, masked_copy
from fedloom.nets.net import Net


@dataclass(frozen=True, slots=True)
class Stacked:
    """Constants of K clients: `shared` leaves (None where clients differ), `stacked` ones [K, ...], and structure."""

    shape: Hashable
    shared: list[Leaf | None]
    stacked: list[Tensor]

    @staticmethod
    def of(clients: Sequence[Client], device: torch.device) -> "Stacked":
        """Stack the constants of clients, which must have the same `structure_of`, on a device."""
        shape = structure_of(clients[0].consts)
        shared: list[Leaf | None] = []
        stacked: list[Tensor] = []
        for leaves in zip(*(leaves_of(client.consts) for client in clients), strict=True):
            if all(_same(leaf, leaves[0]) for leaf in leaves):
                shared.append(leaves[0])
            else:
                shared.append(None)
                stacked.append(torch.stack([torch.as_tensor(leaf) for leaf in leaves]))
        return Stacked(shape, to_device(shared, device), to_device(stacked, device))

    def first(self, clients: int) -> list[Tensor]:
        """Return the stacked leaves of the first clients, without a copy."""
        return [leaf[:clients] for leaf in self.stacked]

    def of_one(self, private: Sequence[Tensor]) -> Consts:
        """Return one client's constants: the shared leaves, and its `private` ones where clients differ."""
        private_leaves = iter(private)
        leaves = iter([next(private_leaves) if leaf is None else leaf for leaf in self.shared])
        return cast(Consts, from_leaves(self.shape, leaves))


def _same(a: Leaf, b: Leaf) -> bool:
    if a is b:
        return True
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    # The same memory, as clients of one payload have it: no values need be compared.
    where = a.data_ptr() == b.data_ptr() and a.stride() == b.stride()
    return where or torch.equal(a, b)


class StackedNet:
    """A net that gets its weights with each call, and heeds the mask of a batch."""

    def __init__(self, net: Net) -> None:
        copied, self._rows = masked_copy(net)
        for module in copied.modules():
            if isinstance(module, Net):
                module.kernel_context = module.test_context = None  # chooses kernels by the tensors of a single client
        self.parameters = [name for name, _ in net.named_parameters()]
        self.module: nn.Module = copied
        self._net = FunctionalCall(copied)

    def call(self, function: Callable[..., Any], tree: Tree, batch: Batch, *arguments: Any) -> Any:
        """Call `function(net, batch, *arguments)` with the weights `tree` in the net."""
        self._rows.mask = batch.mask
        try:
            with sdpa_kernel(SDPBackend.MATH):  # the only attention kernel with a rule for torch.vmap
                return self._net.call(function, tree, batch, *arguments)
        finally:
            self._rows.mask = None


def batch_of(worker: Worker, parts: Sequence[Tensor], draws: Sequence[Draws] | None = None) -> Batch:
    """Stack one batch of each client, its samples [b] in `parts`, to [K, B, ...], padded to the longest with masked
    rows. Without `draws` there is neither augmentation nor a second view."""
    data, longest = worker.data, max(part.numel() for part in parts)
    short = any(part.numel() < longest for part in parts)
    padded = [_padded(part, longest) for part in parts] if short else list(parts)
    rows = torch.stack(padded)
    second = None
    if draws is None or draws[0].augment is None:
        x = data.gather(rows.flatten())
        x = x.view(*rows.shape, *x.shape[1:])
    else:
        pairs = list(zip(parts, draws, strict=True))
        views = [
            torch.stack([_padded(worker.sampler.gather(part, drawn), longest) for part, drawn in pairs])
            for _ in range(worker.method.spec.views)
        ]
        x, second = views[0], views[1] if len(views) > 1 else None
    mask = None
    if short:
        lengths = torch.tensor([part.numel() for part in parts])
        mask = (torch.arange(longest) < lengths.unsqueeze(1)).to(worker.device)
    return Batch(x, padded_labels(data.y[rows], mask), mask, second)


@torch.no_grad()
def collect_statistics(
    worker: Worker,
    net: StackedNet,
    statistics: Mapping[str, Statistic],
    phase: Train | Collect,
    clients: list[Client],
    tree: Tree,
    *,
    keep: bool = False,
) -> None:
    """Run a statistics pass over the phase's samples of K clients, the largest first, with weights [K, ...], and add
    the results to their constants; with `keep` also to their collected statistics."""
    classes = clients[0].job.ctx.task.num_classes
    consts = Stacked.of(clients, worker.device)
    jobs = [worker.sampler.job_of(phase, client.job) for client in clients]
    parts = [list(torch.split(job.indices, PASS_BATCH)) for job in jobs]
    sums: dict[str, Tree] = {name: {} for name in statistics}

    def added(sums: dict[str, Tree], private: list[Tensor], tree: Tree, batch: Batch) -> dict[str, Tree]:
        def values(name: str, statistic: Statistic) -> Tensor:
            result: Tensor = net.call(pass_function(name, statistic), tree, batch, consts.of_one(private))
            return result

        return add_statistics(statistics, sums, values, batch, classes)

    net.module.eval()
    for step in range(max(len(batches) for batches in parts)):
        active = sum(len(batches) > step for batches in parts)
        batch = batch_of(worker, [batches[step] for batches in parts[:active]])
        arguments = first_rows(sums, active), consts.first(active), {n: v[:active] for n, v in tree.items()}, batch
        put_rows(sums, torch.vmap(added, in_dims=(0, 0, 0, dims(batch)))(*arguments))
    for row, client in enumerate(clients):
        results = to_device({n: statistic.result(row_of(sums[n], row)) for n, statistic in statistics.items()}, CPU)
        client.learned(results)
        if keep:
            client.collected |= results


def choose_weights(phase: Choose, clients: Sequence[Client], tree: Tree, device: torch.device) -> Tree:
    """Return the `tree` [K, ...] after the phase's rule set each row, in turn: rules may branch."""
    rows = [
        chosen_weights(phase, {name: value[row] for name, value in tree.items()}, to_device(client.consts, device))
        for row, client in enumerate(clients)
    ]
    return {name: torch.stack([row[name] for row in rows]) for name in tree}


def stacked_trees(trees: Sequence[Tree], device: torch.device) -> Tree:
    """Stack trees to one of [K, ...]. Entries equal for all clients are expanded without a copy (`is_common`)."""
    first, count = trees[0], len(trees)
    stacked = {}
    for name, value in first.items():
        if all(tree[name].data_ptr() == value.data_ptr() for tree in trees):
            stacked[name] = value.to(device).expand(count, *value.shape)
        else:
            stacked[name] = torch.stack([tree[name] for tree in trees]).to(device)
    return stacked


def _padded(rows: Tensor, length: int) -> Tensor:
    """Extend rows [B, ...] to `length` by repeating the first row."""
    missing = length - len(rows)
    return torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])]) if missing else rows


def dims(batch: Batch) -> Any:
    """The dimensions of a batch that count clients, as `torch.vmap` takes them."""
    return Batch(*(None if part is None else 0 for part in batch))  # type: ignore[arg-type]


def first_rows(sums: dict[str, Tree], clients: int) -> dict[str, Tree]:
    """Return the rows of the first clients, without a copy."""
    return {name: {n: value[:clients] for n, value in tree.items()} for name, tree in sums.items()}


def row_of(tree: Tree, row: int) -> Tree:
    """Return the entries of the client `row`: of batches that smaller clients lack, it may have none."""
    return {name: value[row] for name, value in tree.items() if row < len(value)}


def put_rows(sums: dict[str, Tree], fresh: dict[str, Tree]) -> None:
    """Write `fresh` into the first rows of `sums`; the first call with an entry creates it."""
    for name, tree in fresh.items():
        for n, value in tree.items():
            if n not in sums[name]:
                # vmap returns what depends on no client as one expanded row, and later passes write to fewer clients
                sums[name][n] = value.clone(memory_format=torch.contiguous_format) if is_common(value) else value
            elif value.data_ptr() != sums[name][n].data_ptr():  # else it was only handed through
                sums[name][n][: len(value)] = value
