"""Several clients' rounds at once: their weights stacked, their steps taken together under `torch.vmap`.

The same draws and the same losses as one after another (`engine/client.py`); only the order of sums inside a
product may differ. Short batches are padded, and padded rows do not count (`Batch.mask`, `nets/masked.py`).
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from fedloom.core.errors import ClientError
from fedloom.core.trees import Tree
from fedloom.engine.client import CPU, Done, Job, Worker
from fedloom.engine.constants import shape_of
from fedloom.engine.keys import phase_key
from fedloom.engine.members import Member, StackedNet, passed, stacked_trees
from fedloom.engine.recorded import SAVED_STACKED_SECONDS, Recorder
from fedloom.engine.stack_blocks import LEAST, LEAST_NATIVE, Blocks
from fedloom.engine.stack_training import Training
from fedloom.methods.method import Finding, Work
from fedloom.methods.phases import Collect, Train


def obstacle(worker: Worker) -> str | None:
    """Why clients of this worker cannot be stacked; None if nothing is known against it."""
    if worker.method.spec.alone is not None:
        return f"{worker.method.name()}: {worker.method.spec.alone}"
    modules = [module for live in worker.lives for module in live.net.modules()]
    if any(isinstance(module, torch.nn.RNNBase) for module in modules):
        return "torch.vmap has no rule for recurrent layers"
    return "dropout draws for one client at a time" if worker.drops_out else None


class Stacks:
    """Runs clients on a worker's nets, up to `width` at once; those that fit nobody else run alone."""

    def __init__(self, worker: Worker, width: int) -> None:
        self.worker, self.width = worker, width
        after, longest = worker.recorder.after_seconds, worker.longest_recorded
        self.recorder = Recorder(after, longest, saved_seconds=SAVED_STACKED_SECONDS)
        self.blocks = Blocks(LEAST_NATIVE if worker.native else LEAST)
        self.notes: list[Finding] = []
        self._branched = 0
        self._nets = [StackedNet(live.net) for live in worker.lives]

    def run(self, jobs: Sequence[Job]) -> list[Done]:
        """One `Done` per job, in any order. Raises `ClientError`."""
        done: list[Done] = []
        alike: dict[Hashable, list[Member]] = {}
        for job in jobs:
            member = self._begun(job)
            key = self._key(member)
            alike.setdefault(key, []).append(member)
        for key, members in alike.items():
            members.sort(key=lambda member: -member.job.indices.numel())
            while members:
                chunk, members = members[: self.width], members[self.width :]
                if key is None or len(chunk) == 1:
                    done += [self.worker.run(member.job) for member in chunk]
                    continue
                try:
                    done += self._run(chunk)
                except ClientError as error:
                    if not isinstance(error.__cause__, torch.OutOfMemoryError):
                        raise
                    self._narrow(len(chunk))
                    members = [self._begun(member.job) for member in chunk] + members
        self._tell_branches()
        return done

    def _tell_branches(self) -> None:
        """Say which way of writing steps was found faster."""
        others, programs = self.recorder.others, self.recorder.programs
        if others > self._branched:
            self._branched = others
            message = (
                f"{others} of {programs} recorded steps run clients as branches of a graph, faster here than stacked"
            )
            self.notes.append(Finding("engine.branches", message, float(others)))

    def _narrow(self, clients: int) -> None:
        """Memory does not suffice for a stack of so many: half as wide from now on."""
        self.width = clients // 2
        message = f"out of memory with {clients} clients in a stack; it goes on with {self.width}"
        self.notes.append(Finding("engine.smaller_stacks", message, float(self.width)))
        torch.cuda.empty_cache()

    def _begun(self, job: Job) -> Member:
        method, ctx = self.worker.method, job.ctx
        try:
            start = method.begin(job.payload, job.state, ctx)
            return Member(job, start, method.phases(start, ctx), self.worker.draws(job), dict(start.consts))
        except Exception as error:
            raise ClientError(ctx.client, ctx.round, "begin", error) from error

    def _key(self, member: Member) -> Hashable | None:
        """What clients must have in common to share a stack; None for one that must run alone."""
        job = member.job
        batches = self.worker.batches(job)
        if not batches and any(isinstance(phase, Train) for phase in member.phases):
            return None
        refreshed = any(isinstance(phase, Train) and phase.refresh for phase in member.phases)
        phases = tuple(phase_key(phase) for phase in member.phases)
        return job.ctx.task.group, job.probe, phases, shape_of(member.consts), batches if refreshed else None

    def _run(self, members: list[Member]) -> list[Done]:
        started, ctx = time.perf_counter(), members[0].job.ctx
        net = self._nets[ctx.task.group]
        stage = "begin"
        try:
            tree = stacked_trees([member.start.tree for member in members], self.worker.device)
            for number, phase in enumerate(members[0].phases):
                stage = f"phase {number}"
                if isinstance(phase, Collect):
                    passed(self.worker, net, phase.statistics, members, tree, keep=True)
                else:
                    tree = Training(self.worker, self.recorder, self.blocks, net, phase, members, tree).run()
            tree = {name: self._at_hand(value) for name, value in tree.items()}
        except Exception as error:
            others = ", ".join(str(member.job.ctx.client) for member in members)
            error.add_note(f"clients {others} were trained together")
            raise ClientError(ctx.client, ctx.round, stage, error) from error
        taken = (time.perf_counter() - started) / max(1, sum(member.samples for member in members))
        rows = {name: value.unbind() for name, value in tree.items()}
        return [
            self._ended(member, {name: own[row] for name, own in rows.items()}, taken * member.samples)
            for row, member in enumerate(members)
        ]

    def _at_hand(self, stacked: Tensor) -> Tensor:
        """An entry on the CPU, and where others can read it if there is such a place: once for all clients."""
        room = self.worker.room
        return stacked.to(CPU) if room is None or room.holds(stacked) else room.empty_like(stacked).copy_(stacked)

    def _ended(self, member: Member, tree: Tree, seconds: float) -> Done:
        job, ctx = member.job, member.job.ctx
        try:
            work = Work(tree, member.collected, member.steps)
            payload, state = self.worker.method.end(work, job.state, ctx)
        except Exception as error:
            raise ClientError(ctx.client, ctx.round, "end", error) from error
        return Done(ctx.client, payload, state, member.terms, member.steps, member.samples, seconds, member.norms)
