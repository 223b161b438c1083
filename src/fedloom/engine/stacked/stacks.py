"""Run the rounds of several clients together, with stacked weights under `torch.vmap`.

Draws and losses equal those of single clients (`engine/client.py`); only sums inside a product may be in another order.
Short batches are padded, and the mask excludes padded rows (`Batch.mask`, `nets/masked_batch_norm.py`).
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence

import torch

from fedloom.core.errors import ClientError, ConfigError
from fedloom.engine.client import CPU, Worker
from fedloom.engine.jobs import Client, Job, JobResult, staged
from fedloom.engine.keys import phase_key
from fedloom.engine.leaves import structure_of
from fedloom.engine.stacked.members import StackedNet, choose_weights, collect_statistics, stacked_trees
from fedloom.engine.stacked.training import StackedTraining
from fedloom.engine.stacked.trial import is_of_vmap, obstacle_of, reason_of
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.contract.phases import Choose, Collect, Phase, Train
from fedloom.methods.contract.sample_statistics import Rows, Statistic
from fedloom.nets.net import BATCH_NORM


def obstacle(worker: Worker) -> str | None:
    """Return the reason why clients of this worker cannot be stacked; None if none is known."""
    if worker.method.spec.unstackable is not None:
        return f"{worker.method.name()}: {worker.method.spec.unstackable}"
    modules = [module for live in worker.loaded_nets for module in live.net.modules()]
    if any(isinstance(module, torch.nn.RNNBase) for module in modules):
        return "torch.vmap has no rule for recurrent layers"
    named = [live.net.named_parameters(remove_duplicate=False) for live in worker.loaded_nets]
    if any(
        len(list(all_names)) > len(live.parameters) for all_names, live in zip(named, worker.loaded_nets, strict=True)
    ):
        return "a parameter has two names"
    if any("Dropout" in type(module).__name__ for module in modules):
        return "dropout draws for one client at a time"
    if any(isinstance(module, BATCH_NORM) and module.momentum is None for module in modules):
        return "batch norm with momentum=None counts its batches in Python"
    return next(filter(None, (obstacle_of(worker, live) for live in worker.loaded_nets)), None)


class Stacks:
    """Run clients on a worker's nets, up to `stack` together; a client that fits no stack runs alone, as do those with
    phases on samples that the server sent."""

    def __init__(self, worker: Worker, stack: int) -> None:
        self.worker, self.stack = worker, stack
        self.notes: list[Diagnostic] = []
        self._nets = [StackedNet(live.net) for live in worker.loaded_nets]

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Return one `JobResult` per job, in any order. Raises `ClientError`."""
        done: list[JobResult] = []
        alike: dict[Hashable, list[Client]] = {}
        for job in jobs:
            client = self.worker.begin(job)
            alike.setdefault(self._key(client), []).append(client)
        for key, clients in alike.items():
            clients.sort(key=lambda client: -client.job.indices.numel())
            while clients:
                chunk, clients = clients[: self.stack], clients[self.stack :]
                if key is None or len(chunk) == 1:
                    done += [self.worker.run(client.job) for client in chunk]
                    continue
                try:
                    done += self._run(chunk)
                except ClientError as error:
                    if not isinstance(error.__cause__, torch.OutOfMemoryError):
                        raise
                    self._narrow(len(chunk))
                    clients = [self.worker.begin(client.job) for client in chunk] + clients
        return done

    def _narrow(self, clients: int) -> None:
        """Halve the width of stacks from now on, because memory did not suffice for this many clients."""
        self.stack = clients // 2
        message = f"out of memory with {clients} clients in a stack; it goes on with {self.stack}"
        self.notes.append(Diagnostic("engine.smaller_stacks", message, float(self.stack)))
        torch.cuda.empty_cache()

    def _key(self, client: Client) -> Hashable | None:
        """Return a key that clients in one stack must share; None for a client that must run alone."""
        job, training = client.job, [phase for phase in client.phases if isinstance(phase, Train)]
        sampler = self.worker.sampler
        batches = [sampler.batches_per_epoch(sampler.job_of(phase, job)) for phase in training]
        if not all(batches) or not all(map(by_epochs, training)):
            return None
        if any(not isinstance(phase, Choose) and phase.on == "received" for phase in client.phases):
            return None
        if any(map(_gives_rows, client.phases[:-1])) or any(_has_rows(phase.refresh) for phase in training):
            return None
        refreshed = [count for count, phase in zip(batches, training, strict=True) if phase.refresh]
        phases = tuple(phase_key(phase) for phase in client.phases)
        consts = structure_of(client.consts)
        return job.ctx.task.group, job.measured, job.stage, phases, consts, tuple(refreshed)

    def _run(self, clients: list[Client]) -> list[JobResult]:
        started, ctx = time.perf_counter(), clients[0].job.ctx
        net = self._nets[ctx.task.group]
        stage = "begin"
        try:
            tree = stacked_trees([client.start.tree for client in clients], self.worker.device)
            for number, phase in enumerate(clients[0].phases):
                stage = f"phase {number}"
                if isinstance(phase, Collect):
                    collect_statistics(self.worker, net, phase.statistics, phase, clients, tree, keep=True)
                elif isinstance(phase, Choose):
                    tree = choose_weights(phase, clients, tree, self.worker.device)
                else:
                    tree = StackedTraining(self.worker, net, phase, clients, tree).run()
            tree = {name: value.to(CPU) for name, value in tree.items()}
        except Exception as error:
            others = ", ".join(str(client.job.ctx.client) for client in clients)
            cause: Exception = error
            if is_of_vmap(error):
                why = f"engine: batched cannot run this: {reason_of(error)}; take processes, serial or auto"
                cause = ConfigError(why).with_traceback(error.__traceback__)
            cause.add_note(f"clients {others} were trained together")
            with staged(ctx, stage):
                raise cause from error.__cause__
        per_sample = (time.perf_counter() - started) / max(1, sum(client.samples for client in clients))
        rows = {name: value.unbind() for name, value in tree.items()}
        return [
            self.worker.end(client, {n: v[row] for n, v in rows.items()}, lambda c=client: per_sample * c.samples)  # type: ignore[misc]
            for row, client in enumerate(clients)
        ]


def by_epochs(phase: Train) -> bool:
    """Whether a phase consists of whole epochs of all data, which stacks need; other clients run alone."""
    whole = phase.steps is None and phase.share == 1 and phase.until is None
    return whole and phase.epochs > 0


def _gives_rows(phase: Phase) -> bool:
    """Whether later phases find rows among their constants, which differ in number between clients."""
    if isinstance(phase, Choose):
        return False
    return _has_rows(phase.statistics if isinstance(phase, Collect) else phase.collect)


def _has_rows(statistics: Mapping[str, Statistic]) -> bool:
    return any(isinstance(statistic, Rows) for statistic in statistics.values())
