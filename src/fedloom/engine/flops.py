"""Floating-point operations of the clients' work, estimated from a count on one batch."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedloom.engine.client import Worker
from fedloom.engine.client_phases import Stepper
from fedloom.engine.jobs import Job, kept_since
from fedloom.engine.loop import Federation


def flops_of(
    federation: Federation,
    worker: Worker,
    samples_by_group: Mapping[int, float],
    closing_samples_by_group: Mapping[int, float] | None = None,
    opening_samples_by_group: Mapping[int, float] | None = None,
    adapted_samples: float = 0.0,
) -> float:
    """Return the FLOPs (two for each multiply-add) of the clients' work in all finished rounds: that of each group's
    first participant in the last round, scaled to the samples of all rounds (samples_by_group); the same for closing
    and opening rounds, and the adapted_samples of tests. The worker's nets change, and hooks may raise."""
    last_round, total = max(1, federation.round), 0.0
    further = {last_round + 1: closing_samples_by_group or {}, 0: opening_samples_by_group or {}}
    for round_, by_group in {last_round: samples_by_group, **further}.items():
        for group, samples in by_group.items():
            total += samples * flops_per_sample(worker, _job_of_group(federation, worker, group, round_))
    if adapted_samples:
        job = _job_of_group(federation, worker, 0, last_round)
        total += adapted_samples * _adaptation_flops_per_sample(worker, federation, job)
    return total


def _job_of_group(federation: Federation, worker: Worker, group: int, round_: int) -> Job:
    """A job of the group's first participant in a round, with a stand-in for a state that the client keeps itself.
    Where the round had no participant of the group, or ran before a resume, another client with data gets a job."""
    job = federation.sample_jobs.get(federation.stage_of(round_), {}).get(group)
    if job is None:
        clients = [*federation.context(round_).drawn, *range(len(federation.train))]
        usable = (k for k in clients if k % len(federation.tasks) == group and len(federation.train[k]))
        job = federation.job(next(usable), round_)
    # the state after the round: this may have been the client's first, in which some methods do less
    job = replace(job, state=federation.states.get(job.ctx.client, job.state))
    if kept_since(job.state) is None:
        return job
    # two rounds, because some methods do more in the second one than ever after
    for run in (functools.partial(federation.run_first_round, worker), worker.run):
        job = replace(job, state=run(job).state or federation.method.client_init(job.ctx))
    return job


def _adaptation_flops_per_sample(worker: Worker, federation: Federation, job: Job) -> float:
    """FLOPs of adapting a personal model, divided by the samples that this processes."""
    size = min(worker.local_training.batch_size, job.ctx.samples)
    predictors = worker.method.predictors(federation.server, job.state, federation.server_context(job.ctx.client))
    loaded_net = worker.net_of_client(job.ctx.client)
    with _plain_steps(worker), FlopCounter() as counter:
        _, samples = worker.adapt(loaded_net, predictors["personal"], job.ctx, job.indices[:size])
    return float(counter.total) / max(1, samples)


def flops_per_sample(worker: Worker, job: Job) -> float:
    """Return the FLOPs of a job divided by its number of samples, counted by a worker on one batch: of one local epoch
    and, if the job has more, of two, which separates work that is done once."""
    size, epochs = min(worker.local_training.batch_size, job.ctx.samples), job.ctx.task.local_epochs
    one_epoch = _count(worker, job, size, 1)
    per_epoch = _count(worker, job, size, 2) - one_epoch if epochs > 1 else 0
    return (one_epoch + per_epoch * (epochs - 1)) / size


def _count(worker: Worker, job: Job, size: int, epochs: int) -> int:
    ctx = replace(job.ctx, task=replace(job.ctx.task, local_epochs=epochs))
    counter = FlopCounter()
    with _plain_steps(worker), counter:
        worker.run(replace(job, ctx=ctx, indices=job.indices[:size], measured=False))
    return counter.total


@contextlib.contextmanager
def _plain_steps(worker: Worker) -> Iterator[None]:
    stepper, worker.stepper = worker.stepper, Stepper()
    try:
        yield
    finally:
        worker.stepper = stepper


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums torch's own formulas over the operators that run. Torch's `FlopCounterMode` also makes tables by module, for
    which it imports the compiler: over a second a process."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and True would import the compiler."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=output)
        return output
