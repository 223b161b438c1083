"""One client's round: begin, phases, end. The reference semantics that every engine must reproduce."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.trees import Tree
from fedloom.data.dataset import Dataset
from fedloom.engine.jobs import Client, Draws, EvalJob, EvalResult, Job, JobResult, LocalTraining, staged
from fedloom.engine.leaves import placed
from fedloom.engine.optimizer import Optimizer
from fedloom.engine.speedups import Speedups
from fedloom.engine.steps import Block, Steps, Tally, objective, trainable_names
from fedloom.evaluation.protocols import Evaluator
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Start, Work
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Batch, Collect, Consts, Phase, Predictor, Statistic, Train
from fedloom.nets.deep_copy import deep_copy
from fedloom.nets.loaded_net import LoadedNet, net_of_client
from fedloom.nets.net import Net
from fedloom.nets.roles import EXTRA, Role, has_batch_norm

# Statistics passes and evaluation take batches of this size: large enough to be fast, fixed so that bits do not depend
# on the engine.
PASS_BATCH = 256

CPU = torch.device("cpu")

# Numbers that are gathered at once: few calls for small batches, and what is gathered is still in the cache when used.
_BLOCK = 1 << 16


class Worker:
    """Runs clients one after another on live nets, one for each architecture. Holds no state between clients.

    Nets and data lie on `device`; what jobs bring, and what clients leave, on the CPU. bfloat16: as `Net.in_bfloat16`.
    speedups: other ways to do the same sooner (`engine/speedups.py`).

    Raises `ConfigError` for an augmentation that does not fit the data.
    """

    def __init__(
        self,
        method: Method,
        nets: Sequence[Net],
        data: Dataset,
        local: LocalTraining,
        device: torch.device = CPU,
        *,
        bfloat16: bool = False,
        speedups: Speedups | None = None,
    ) -> None:
        local.augment.check(data)
        if method.spec.views == 2 and not local.augment.active:
            raise ConfigError(
                f"{method.name()} compares two augmented views of each sample, and augment is off: both would be the "
                "same; set augment, e.g. augment.crop=2"
            )
        self.method, self.data, self.local, self.device = method, data.to(device), local, device
        self._closing = method.closing()
        self.speedups = speedups or Speedups()
        self.bfloat16 = bfloat16
        for part in (module for net in nets for module in net.modules() if isinstance(module, Net)):
            part.in_bfloat16 = bfloat16
            self.speedups.prepare(part)
        self.loaded_nets = [LoadedNet(net.to(device)) for net in nets]
        self.stepping = self.speedups.stepping()
        self.evaluator: Evaluator | None = None
        self.memory_for: Callable[[Tensor], Tensor] | None = None  # for the weights that clients leave
        self._mixed: set[int] = set()  # ids of nets of which parts are in evaluation mode while they train
        self._skip_single = [method.spec.batch_statistics or has_batch_norm(net) for net in nets]

    def twin(self, speedups: Speedups | None = None) -> Worker:
        """A worker with nets of its own, on the same data; `speedups` None: the same."""
        nets = [deep_copy(live.net) for live in self.loaded_nets]
        speedups = speedups or self.speedups
        made = Worker(self.method, nets, self.data, self.local, self.device, bfloat16=self.bfloat16, speedups=speedups)
        made.evaluator = self.evaluator
        return made

    def net_of_client(self, client: int) -> LoadedNet:
        """The live net that fits a client's trees; of -1, the server's."""
        return net_of_client(self.loaded_nets, client)

    # -- one round -------------------------------------------------------------------------------------------
    def run(self, job: Job) -> JobResult:
        """The whole round of one client. Raises `ClientError` that says where an exception came from."""
        started, ctx = time.perf_counter(), job.ctx
        client = self.begun(job)
        live = self.loaded_nets[ctx.task.group]
        with staged(ctx, "begin"):
            live.load(client.start.tree)
        with self._random(ctx):
            for number, phase in enumerate(client.phases):
                with staged(ctx, f"phase {number}"):
                    self._phase(live, phase, client)
        tree = live.weights(self.memory_for)
        return self.ended(client, tree, lambda: time.perf_counter() - started)

    def begun(self, job: Job) -> Client:
        """A client whose phases are known."""
        ctx = job.ctx
        method = self._closing if job.closing and self._closing is not None else self.method
        with staged(ctx, "begin"):
            start = method.begin(job.payload, job.state, ctx)
            phases = method.phases(start, ctx)
        return Client(job, method, start, phases, self.draws(job), placed(dict(start.consts), self.device))

    def ended(self, client: Client, tree: Tree, seconds: Callable[[], float]) -> JobResult:
        """What a client leaves, once its phases have left the weights `tree`."""
        job, ctx = client.job, client.job.ctx
        with staged(ctx, "end"):
            collected = placed(client.collected, CPU)
            work = Work(tree, collected, client.steps, client.start, client.terms)
            payload, state = client.method.end(work, job.state, ctx)
            payload, state = client.method.pack(payload, state, job.payload, job.state, ctx)
        notes = self.stepping.notes()
        counts = client.terms, client.steps, client.samples, seconds(), client.norms
        return JobResult(ctx.client, payload, state, *counts, notes)

    def adapted(self, live: LoadedNet, predictor: Predictor, ctx: ClientContext, indices: Tensor) -> int:
        """Load a personal model into `live`, adapted to the client's training data where the method does so.

        Returns the number of samples that were processed. Raises `ClientError`.
        """
        with staged(ctx, "adapt"):
            start = Start(predictor.tree, predictor.consts)
            phases = self.method.adapt(start, ctx)
            live.load(predictor.tree)
        if not phases or not len(indices):
            return 0
        job = Job(ctx, {}, {}, indices)
        draws = self.draws(job, "adapt")
        client = Client(job, self.method, start, phases, draws, placed(dict(start.consts), self.device))
        with self._random(ctx, "adapt"), staged(ctx, "adapt"):
            for phase in phases:
                self._phase(live, phase, client)
        return client.samples

    def test(self, test: EvalJob) -> EvalResult:
        """One client's personal predictors, each as the method adapts it; or the server's, on the client's samples.

        Raises `ClientError` if adapting fails.
        """
        with test.ctx.task.streams.isolated("test", test.ctx.round, test.ctx.client, self.device):
            return self._tested(test)

    def _tested(self, test: EvalJob) -> EvalResult:
        assert self.evaluator is not None, "a worker that tests needs an evaluator"
        ctx, live = test.ctx, self.net_of_client(test.ctx.client)
        facts = ServerContext(ctx.task, ctx.round)
        if self.evaluator.kind == "global":
            offered = self.method.predictors(test.server, None, facts)
            return EvalResult(ctx.client, self.evaluator.of_server(offered, test.split))
        offered = self.method.predictors(test.server, test.state, facts)
        found, samples = {}, 0
        for name in self.evaluator.names:
            predictor = self.evaluator.pick(offered, name)
            samples += self.adapted(live, predictor, ctx, test.indices)
            found[name] = self.evaluator.of_client(live, predictor, ctx.client, test.split)
        return EvalResult(ctx.client, found, samples)

    def _random(self, ctx: ClientContext, prefix: str = "") -> contextlib.AbstractContextManager[None]:
        """Torch's own random numbers come from the client's stream: dropout, and what losses draw.

        Around all phases: two of them must not drop the same units.
        """
        return ctx.task.streams.isolated(f"{prefix}dropout", ctx.round, ctx.client, self.device)

    # -- one phase -------------------------------------------------------------------------------------------
    def _phase(self, live: LoadedNet, phase: Phase, client: Client) -> None:
        if isinstance(phase, Collect):
            results = self._statistics(live.net, phase.statistics, client)
            client.learned(results)
            client.collected |= results
        else:
            self._train(live, phase, client)

    def _train(self, live: LoadedNet, phase: Train, client: Client) -> None:
        job, ctx, net = client.job, client.job.ctx, live.net
        names = trainable_names(live.parameters, phase, ctx)
        trained: Tree = {name: live.parameters[name] for name in names}
        specs = [phase.spec_of(name, self.local.optimizer) for name in names]
        optimizer = Optimizer(specs, list(trained.values()), ctx.round)
        plan, means, samples = Plan.of(self, phase, job), list[float](), 0
        tally = Tally(phase.collect, ctx.task.num_classes)
        for epoch in range(plan.epochs):
            if phase.refresh:
                client.learned(self._statistics(net, phase.refresh, client))
            self.set_modes(net, phase, ctx.task.roles)
            ahead = max(0, ctx.task.rounds - ctx.round) / ctx.round if ctx.round else 0.0
            steps = Steps(live, phase, client.consts, trained, optimizer, ahead)
            last_epoch, left = epoch == plan.epochs - 1, plan.batches(epoch)
            if last_epoch or phase.until:
                tally = tally.next_epoch(keeps=phase.throughout)
            measuring = job.measured and last_epoch
            for block in self.epoch(job, client.draws, phase.share, left):
                for part in block.pieces([1] * len(block)) if measuring else [block]:
                    samples, left = samples + part.y.shape[0], left - len(part)
                    if measuring and not left and optimizer.steps:  # a first step may have no pull yet
                        out, norms = steps.measured(part.whole())
                        client.norms |= {name: float(norm) for name, norm in norms.items()}
                        outs = [out]
                    else:
                        outs = self.stepping(steps, part)
                    if last_epoch or phase.until or phase.throughout:
                        tally.add(outs, part.batches() if phase.collect else ())
            if phase.until and tally.steps:
                means.append(tally.mean_total())
                if phase.until(means):
                    break
        if phase.collect and not tally.steps:  # a single sample under batch norm: no step, but a statistic
            net.eval()
            block = Block(self.data.gather(job.indices), self.data.y[job.indices], len(job.indices))
            tally.add([objective(net, block.whole(), client.consts, phase)], [block.whole()])
        client.trained(tally.means() if tally.steps else {}, tally.collected(), optimizer.steps, samples)

    @torch.no_grad()
    def _statistics(self, net: Net, statistics: Mapping[str, Statistic], client: Client) -> dict[str, Any]:
        """Statistics of the client's training data, in evaluation mode."""
        net.eval()
        classes = client.job.ctx.task.num_classes
        sums: dict[str, Tree] = {name: {} for name in statistics}
        for part in torch.split(client.job.indices, PASS_BATCH):
            batch = Batch(self.data.gather(part), self.data.y[part])
            for name, statistic in statistics.items():
                values = measure_of(name, statistic)(net, batch, client.consts)
                sums[name] = statistic.add(sums[name], values, batch, classes)
        return {name: statistics[name].result(sums[name]) for name in sums}

    def set_modes(self, net: torch.nn.Module, phase: Train, roles: Mapping[str, Role]) -> None:
        """Training mode, but for modules of the roles that a phase only evaluates."""
        if not net.training or id(net) in self._mixed:  # as a phase before, maybe another client's, has left it
            net.train()
            self._mixed.discard(id(net))
        if phase.evaluates:
            self._mixed.add(id(net))
        for path, module in net.named_modules() if phase.evaluates else ():
            own = [f"{path}.{name}".lstrip(".") for name, _ in _own_entries(module)]
            place = Role.EXTRA if path.split(".")[0] == EXTRA else Role.BODY  # of what has no entries: dropout
            wanted = {roles[name] for name in own} if own else {place}
            if wanted <= phase.evaluates and (own or not list(module.children())):
                module.training = False

    # -- batches ---------------------------------------------------------------------------------------------
    def draws(self, job: Job, prefix: str = "") -> Draws:
        """The client's generators of this round."""
        streams, ctx = job.ctx.task.streams, job.ctx
        augmented = self.local.augment.active
        return Draws(
            streams.numpy(f"{prefix}shuffle", ctx.round, ctx.client),
            streams.numpy(f"{prefix}augment", ctx.round, ctx.client) if augmented else None,
        )

    def batches(self, job: Job, share: float = 1.0) -> int:
        """Number of batches in one epoch: the last, smaller one stays, unless it has one sample and that is too few."""
        whole, rest = divmod(math.ceil(share * job.indices.numel()), self.local.batch_size)
        if rest == 1 and self._skip_single[job.ctx.task.group]:
            rest = 0
        return whole + bool(rest)

    def order(self, job: Job, draws: Draws, share: float = 1.0, batches: int | None = None) -> Tensor:
        """One epoch's samples, batch after batch; the first `batches` of them if given."""
        count = job.indices.numel()
        order = torch.from_numpy(draws.order.permutation(count))[: math.ceil(share * count)]
        batches = self.batches(job, share) if batches is None else batches
        return job.indices.index_select(0, order[: batches * self.local.batch_size]).to(self.device)

    def epoch(self, job: Job, draws: Draws, share: float, batches: int) -> Iterator[Block]:
        """One epoch's batches, gathered several at a time if they are small."""
        size, order = self.local.batch_size, self.order(job, draws, share, batches)
        together = 1 if draws.augment else max(1, _BLOCK // (size * self.data.x[0].numel()))
        for first in range(0, len(order), size * together):
            rows = order[first : first + size * together]
            x = self.gathered(rows, draws)
            second = self.gathered(rows, draws) if self.method.spec.views == 2 else None
            yield Block(x, self.data.y[rows], size, second)

    def gathered(self, part: Tensor, draws: Draws) -> Tensor:
        """The inputs of one training batch, augmented where that is asked for."""
        if draws.augment is None:
            return self.data.gather(part)
        return self.local.augment.gather(self.data, part, draws.augment)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a training phase is for one client: `epochs` of `each` batches, the last of `last`."""

    epochs: int
    each: int
    last: int

    @staticmethod
    def of(worker: Worker, phase: Train, job: Job) -> Plan:
        """By epochs, or by a number of steps. A client without a full batch takes no step."""
        each = worker.batches(job, phase.share)
        if phase.steps is None or not each:
            return Plan(phase.epochs, each, each)
        epochs = -(-phase.steps // each)
        return Plan(epochs, each, phase.steps - (epochs - 1) * each)

    def batches(self, epoch: int) -> int:
        """Batches of an epoch."""
        return self.last if epoch == self.epochs - 1 else self.each


def measure_of(name: str, statistic: Statistic) -> Callable[[Net, Batch, Consts], Tensor]:
    """The function of a statistic that is taken in a pass. Raises `TypeError` for the name of a tap."""
    if not callable(statistic.of):
        raise TypeError(f"statistic '{name}' of a pass names a tap, '{statistic.of}': it needs a function of the net")
    return statistic.of


def _own_entries(module: torch.nn.Module) -> list[tuple[str, Tensor]]:
    kept = module._non_persistent_buffers_set
    buffers = [pair for pair in module.named_buffers(recurse=False) if pair[0] not in kept]
    return [*module.named_parameters(recurse=False), *buffers]
