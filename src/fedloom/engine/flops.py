"""Floating-point operations of all clients' work, counted by torch on a small part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedloom.engine.client import Worker
from fedloom.engine.jobs import Job, kept_since
from fedloom.engine.loop import Federation


def flops_of(
    federation: Federation,
    worker: Worker,
    held: Mapping[int, float],
    closing: Mapping[int, float] | None = None,
    adapted: float = 0.0,
) -> float:
    """FLOPs (two per multiply-add) of the clients' work in all finished rounds.

    held: training samples of all clients that took part, each as often as it did, by group of architectures; closing:
    the same of the closing round. One client of each group is counted, in the last round, and scaled to them: round 1,
    in which some methods do less, counts like the others. adapted: samples that adapting to tests processed. The
    worker's nets are left changed.
    """
    last = max(1, federation.round)
    total = sum(
        samples * flops_per_sample(worker, _job(federation, worker, group, last)) for group, samples in held.items()
    )
    for group, samples in (closing or {}).items():
        total += samples * flops_per_sample(worker, _job(federation, worker, group, last + 1))
    return total + (adapted * _adapting(worker, federation, _job(federation, worker, 0, last)) if adapted else 0.0)


def _job(federation: Federation, worker: Worker, group: int, round_: int) -> Job:
    """The work of the first client of a group that has data; another state stands in for one that it keeps itself."""
    clients = range(group, federation.scenario.clients, len(federation.tasks))
    job = next(federation.job(client, round_) for client in clients if len(federation.scenario.train[client]))
    if not kept_since(job.state):
        return job
    first = federation.first_round(worker, job)
    return replace(job, state=first.state or federation.method.client_init(job.ctx))


def _adapting(worker: Worker, federation: Federation, job: Job) -> float:
    """FLOPs of adapting a personal model, over the samples that this processes."""
    size = min(worker.local.batch_size, job.ctx.samples)
    offered = worker.method.predictors(federation.server, job.state, federation.server_context(job.ctx.client))
    with _Counter() as counter:
        samples = worker.adapted(worker.net_of_client(job.ctx.client), offered["personal"], job.ctx, job.indices[:size])
    return float(counter.total) / max(1, samples)


def flops_per_sample(worker: Worker, job: Job) -> float:
    """FLOPs of this client's round over its number of samples.

    Counted on one batch with one and with two local epochs, auxiliary nets and statistics passes included: what grows
    with the epochs is scaled to theirs, the rest counts once. Matrix products and convolutions count, forward and
    backward; element-wise work does not.
    """
    size = min(worker.local.batch_size, job.ctx.samples)
    one, two = (_counted(worker, job, size, epochs) for epochs in (1, 2))
    per_epoch, once = two - one, 2 * one - two
    return (per_epoch * job.ctx.task.local_epochs + once) / size


def _counted(worker: Worker, job: Job, size: int, epochs: int) -> int:
    ctx = replace(job.ctx, task=replace(job.ctx.task, local_epochs=epochs))
    counter = _Counter()
    with counter:
        worker.run(replace(job, ctx=ctx, indices=job.indices[:size], measured=False))
    return counter.total


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums torch's own formulas over the operators that run. (Its `FlopCounterMode` also draws up tables by module, for
    which it imports the compiler: over a second in every process.)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; True would import the compiler to say so."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out
