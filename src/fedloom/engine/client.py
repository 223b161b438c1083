"""One client's round: begin, phases, end. The reference semantics that every engine must reproduce."""

import functools
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.streams import GlobalGenerators
from fedloom.core.trees import Tree
from fedloom.data.dataset import Dataset
from fedloom.engine.batch_sampler import BatchSampler, EpochBatches, PhasePlan
from fedloom.engine.client_phases import NetMemory, PhaseResults, Replay, Stepper, chosen_weights
from fedloom.engine.jobs import Client, EvalJob, EvalResult, Job, JobResult, LocalTraining, methods_by_stage, staged
from fedloom.engine.keys import to_device
from fedloom.engine.optimizer import Optimizer
from fedloom.engine.speedups import Speedups
from fedloom.engine.steps import EpochSteps, PassSteps, objective, trainable_names
from fedloom.evaluation.protocols import Evaluator
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Start, Work
from fedloom.methods.contract.means import with_label_counts
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Batch, Choose, Collect, Consts, Phase, Predictor, Train
from fedloom.methods.contract.sample_statistics import Statistic
from fedloom.nets.loaded_net import LoadedNet, group_of
from fedloom.nets.net import EXTRA, Net, Role, deep_copy, has_batch_norm

CPU = torch.device("cpu")
ClientRound: TypeAlias = Generator[Replay, None, JobResult]


class Worker:
    """Runs clients one after another on its nets, one net for each architecture. It holds no state between clients.

    Nets and data are on `device`; jobs and results are on the CPU.

    Raises `ConfigError` for an augmentation that does not fit the data.

    Args:
        data: the shared training set; jobs have indices into it.
        local_training: batch size, optimizer and augmentation of training phases that set none.
        bfloat16: whether the nets train in bfloat16 (`Net.in_bfloat16`).
        speedups: faster ways to do the same; None takes the default ones."""

    def __init__(
        self,
        method: Method,
        nets: Sequence[Net],
        data: Dataset,
        local_training: LocalTraining,
        device: torch.device = CPU,
        *,
        bfloat16: bool = False,
        speedups: Speedups | None = None,
    ) -> None:
        local_training.augment.check(data)
        if method.spec.views == 2 and not local_training.augment.active:
            raise ConfigError(
                f"{method.name()} compares two augmented views of each sample, and augment is off: both would be the "
                "same; set augment, e.g. augment.crop=2"
            )
        self.method, self.data, self.device = method, data.to(device), device
        self._methods = methods_by_stage(method)
        self.speedups = speedups or Speedups()
        self.bfloat16 = bfloat16
        for submodule in (module for net in nets for module in net.modules() if isinstance(module, Net)):
            submodule.in_bfloat16 = bfloat16
            self.speedups.prepare(submodule)
        self.loaded_nets = [LoadedNet(net.to(device).eval()) for net in nets]  # copies may have parts in either mode
        self.stepper = self.speedups.stepper(self.data)
        self.evaluators: dict[str, Evaluator] = {}  # by protocol, the main one first
        self.allocate: Callable[[Tensor], Tensor] | None = None  # memory for the weights of results
        self.training: tuple[int, Sequence[EpochBatches]] | None = None  # epochs of the last phase, and those begun
        self._trainable_of: dict[tuple[Hashable, ...], Tree] = {}
        self._mixed_modes: set[int] = set()  # ids of nets with modules in evaluation mode while they train
        skip_single = [method.spec.batch_statistics or has_batch_norm(net) for net in nets]
        self.sampler = BatchSampler(self.data, local_training, method.spec.views, skip_single)

    @property
    def local_training(self) -> LocalTraining:
        return self.sampler.local_training

    def copy(self, speedups: Speedups | None = None) -> "Worker":
        """Return a worker with copies of the nets, the same data, and other speedups if given."""
        nets, speedups = [deep_copy(loaded_net.net) for loaded_net in self.loaded_nets], speedups or self.speedups
        facts = self.method, nets, self.data, self.local_training, self.device
        worker = Worker(*facts, bfloat16=self.bfloat16, speedups=speedups)
        worker.evaluators = self.evaluators
        return worker

    def evaluator_for(self, protocol: str | None) -> Evaluator:
        """Return the evaluator of a protocol; of the main one for None. Raises `ConfigError` for one not tested."""
        name = next(iter(self.evaluators), None) if protocol is None else protocol
        if name not in self.evaluators:
            raise ConfigError(f"evaluation.protocols has no {name}: it tests {', '.join(self.evaluators) or 'nothing'}")
        return self.evaluators[name]

    def net_of_client(self, client: int) -> LoadedNet:
        return self.loaded_nets[0 if client < 0 else group_of(client, self.loaded_nets)]

    # -- one round -------------------------------------------------------------------------------------------
    def run(self, job: Job) -> JobResult:
        """Run the whole round of one client. Raises `ClientError` with the stage at which an exception occurred."""
        client_round = self.client_round(job, NetMemory)
        while True:
            try:
                replay = next(client_round)
            except StopIteration as stop:
                result: JobResult = stop.value
                return result
            replay.run()

    def client_round(self, job: Job, memory_type: type[NetMemory]) -> ClientRound:
        """Run a client's round, and yield work that others may run before it continues. With `NetMemory` no other
        client may use the net meanwhile; with `SeparateMemory`, others can be between their steps."""
        started, client = time.perf_counter(), self.begin(job)
        loaded_net = self.loaded_nets[job.ctx.task.group]
        with staged(job.ctx, "begin", self._methods[job.stage]):
            memory = memory_type(loaded_net, client.start.tree, self._random_numbers(job.ctx))
        with memory.active():
            yield from self._run_phases(loaded_net, memory, client)
        return self.end(client, memory.weights(self.allocate), lambda: time.perf_counter() - started)

    def begin(self, job: Job) -> Client:
        """Call the method's `begin` and `phases`, and return the client at the start of its round."""
        ctx, method = job.ctx, self._methods[job.stage]
        with staged(ctx, "begin", method):
            start = method.begin(job.payload, job.state, ctx)
        with staged(ctx, "phases", method):
            phases = method.phases(start, ctx)
        return Client(job, method, start, phases, self.sampler.generators(job), self._on_device(start.consts))

    def end(self, client: Client, tree: Tree, seconds: Callable[[], float]) -> JobResult:
        """Call the method's `end` and `pack` on the trained weights `tree`, and return the client's result."""
        job, ctx = client.job, client.job.ctx
        with staged(ctx, "end", client.method):
            upload, state = client.method.end(self._work(client, tree), job.state, ctx)
            upload = with_label_counts(upload, self.data.y[job.indices.to(self.device)], ctx.samples)
        with staged(ctx, "pack", client.method):
            upload, state = client.method.pack(upload, state, job.payload, job.state, ctx)
        notes = [*self.stepper.notes(), *client.notes()]
        counts = client.terms, client.steps, client.samples, seconds(), client.norms
        return JobResult(ctx.client, upload, state, *counts, notes)

    def _work(self, client: Client, tree: Tree) -> Work:
        collected = client.collected if self.device == CPU else to_device(client.collected, CPU)
        return Work(tree, collected, client.steps, client.start, client.terms)

    def adapt(
        self, loaded_net: LoadedNet, predictor: Predictor, ctx: ClientContext, indices: Tensor
    ) -> tuple[Predictor, int]:
        """Load a client's personal model, and adapt it to its training samples, `indices` [n], if the method does so.
        Return the model to test, whose weights are in loaded_net, and the number of samples processed."""
        with staged(ctx, "adapt", self.method):
            phases = self.method.adapt(Start(predictor.tree, predictor.consts), ctx)
        client = self.tune(loaded_net, predictor, ctx, indices, phases)
        if client.phases:
            with staged(ctx, "adapt", self.method):
                work = self._work(client, loaded_net.weights())
                predictor = self.method.adapted(work, predictor, ctx)
                loaded_net.load(predictor.tree)
        return predictor, client.samples

    def tune(
        self, loaded_net: LoadedNet, predictor: Predictor, ctx: ClientContext, indices: Tensor, phases: Sequence[Phase]
    ) -> Client:
        """Load a model into loaded_net, run phases on training samples `indices` [n], if any, and return the client."""
        with staged(ctx, "adapt", self.method):
            start = Start(predictor.tree, predictor.consts)
            loaded_net.load(predictor.tree)
        job = Job(ctx, {}, {}, indices)
        generators, phases = self.sampler.generators(job, "adapt"), phases if len(indices) else []
        client = Client(job, self.method, start, phases, generators, self._on_device(start.consts))
        if not phases:
            return client
        memory = NetMemory(loaded_net, predictor.tree, self._random_numbers(ctx, "adapt"))
        with memory.active():
            for replay in self._run_phases(loaded_net, memory, client, "adapt"):
                replay.run()
        return client

    def test(self, test: EvalJob) -> EvalResult:
        """Test a client's adapted personal models, or the server's model on the samples of a client or slice."""
        with test.ctx.task.streams.isolated("test", test.ctx.round, test.ctx.client, self.device):
            return self._test(test)

    def _test(self, test: EvalJob) -> EvalResult:
        evaluator, ctx, split = self.evaluator_for(test.protocol), test.ctx, test.split
        of_server = evaluator.model_kind == "global"
        loaded_net = self.net_of_client(-1 if of_server else ctx.client)
        facts = ctx.task, ctx.round, loaded_net.net.functional, evaluator.scenario.public
        server_context = ServerContext(*facts, client=-1 if of_server else ctx.client)
        with staged(ctx, "predictors", self.method):
            predictors = self.method.predictors(test.server, None if of_server else test.state, server_context)
        tested, samples = {}, 0
        for name in evaluator.names_in(predictors):
            predictor = evaluator.pick(predictors, name)
            if of_server:
                loaded_net.load(predictor.tree)
            else:
                predictor, processed = self.adapt(loaded_net, predictor, ctx, test.indices)
                samples += processed
            with staged(ctx, "test", self.method):
                tested[name] = evaluator.states(loaded_net, predictor, ctx.client, split, test.bins.get(name))
        return EvalResult(ctx.client, tested, samples)

    def _random_numbers(self, ctx: ClientContext, prefix: str = "") -> GlobalGenerators:
        """The client's stream of torch's random numbers, which its phases share, so that no two drop the same units."""
        return ctx.task.streams.resumable(f"{prefix}dropout", ctx.round, ctx.client, self.device)

    def _on_device(self, consts: Consts) -> Consts:
        return dict(consts) if self.device == CPU else to_device(dict(consts), self.device)

    # -- one phase -------------------------------------------------------------------------------------------
    def _run_phases(
        self, loaded_net: LoadedNet, memory: NetMemory, client: Client, stage: str = "phase {}"
    ) -> Iterator[Replay]:
        for index, phase in enumerate(client.phases):
            with staged(client.job.ctx, stage.format(index), client.method):
                if isinstance(phase, Train):
                    yield from self._train(loaded_net, memory, phase, client)
                elif isinstance(phase, Choose):
                    with memory.in_net():
                        loaded_net.load(chosen_weights(phase, loaded_net.copies(), client.consts))
                else:
                    results = yield from self._statistics(loaded_net, memory, phase.statistics, phase, client)
                    client.learned(results)
                    client.collected |= results

    def _train(self, loaded_net: LoadedNet, memory: NetMemory, phase: Train, client: Client) -> Iterator[Replay]:
        ctx, net = client.job.ctx, loaded_net.net
        sampler, job, draws = self.sampler.for_phase(phase, client)
        stepper = self.stepper if sampler is self.sampler else Stepper()
        trainable, default = self._trainable(loaded_net, phase, ctx), self.local_training.optimizer
        several = isinstance(phase.optimizer, Mapping)
        specs = [phase.spec_of(name, default) for name in trainable] if several else phase.spec_of("", default)
        optimizer = Optimizer(specs, list(trainable.values()), ctx.round)
        plan = PhasePlan.of(sampler, phase, job)
        results = PhaseResults(phase, ctx.task.num_classes, plan.epochs - 1)
        # epochs between which Python has nothing to do are given to the stepper together
        alone = bool(phase.refresh or phase.until or job.measured or draws.augment)
        for number in range(0, plan.epochs, 1 if alone else max(1, plan.epochs)):
            if phase.refresh:
                client.learned((yield from self._statistics(loaded_net, memory, phase.refresh, phase, client)))
            set_modes = functools.partial(self.set_modes, net, phase, ctx.task.roles)
            ratio = client.remaining_ratio
            steps = EpochSteps(loaded_net, phase, client.consts, trainable, optimizer, ratio, set_modes)
            numbers = [number] if alone else range(plan.epochs)
            epochs = [sampler.batches(job, draws, phase.share, epoch, plan.batches(epoch)) for epoch in numbers]
            self.training = plan.epochs, epochs
            measured_epoch = epochs[0] if job.measured and number == plan.epochs - 1 and len(epochs[0]) else None
            if measured_epoch is not None:
                measured_epoch.keep_back()
            yield from stepper(steps, memory, epochs, results)
            if measured_epoch is not None:
                measured_epoch.restore()
                with memory.in_net():
                    set_modes()
                    results.add_measured(measured_epoch, steps, client)
            if phase.until and results.ends(phase.until):
                break
        if phase.collect and not results.steps:  # a single sample under batch norm takes no step, but has statistics
            with memory.in_net():
                net.eval()
                batch = Batch(sampler.data.gather(job.indices), sampler.data.y[job.indices])
                results.add_objective(objective(net, batch, client.consts, phase), batch)
        client.trained(results.mean_terms(), results.statistics(), optimizer.steps, results.samples)

    def _trainable(self, loaded_net: LoadedNet, phase: Train, ctx: ClientContext) -> Tree:
        """The parameters that a phase trains, by name; many clients have the same phase."""
        key = ctx.task.group, phase.trains, phase.nets
        if key not in self._trainable_of:
            names = trainable_names(loaded_net.parameters, phase, ctx)
            self._trainable_of[key] = {name: loaded_net.parameters[name] for name in names}
        return self._trainable_of[key]

    def _statistics(
        self,
        loaded_net: LoadedNet,
        memory: NetMemory,
        statistics: Mapping[str, Statistic],
        phase: Train | Collect,
        client: Client,
    ) -> Generator[Replay, None, dict[str, Any]]:
        """Compute statistics of all samples of a phase, in evaluation mode."""
        sampler, job, draws = self.sampler.for_phase(phase, client)
        facts = client.consts, job.ctx.task.num_classes, client.remaining_ratio
        steps = PassSteps(loaded_net, Collect(statistics), *facts, set_modes=loaded_net.net.eval)
        stepper = self.stepper if sampler is self.sampler else Stepper()
        yield from stepper(steps, memory, [sampler.pass_batches(job.indices, draws)], None)
        return steps.results()

    def set_modes(self, net: torch.nn.Module, phase: Train, roles: Mapping[str, Role]) -> None:
        """Set training mode, but evaluation mode for modules of the roles that a phase only evaluates."""
        if not net.training or id(net) in self._mixed_modes:  # an earlier phase, perhaps of another client, set modes
            net.train()
            self._mixed_modes.discard(id(net))
        if phase.evaluates:
            self._mixed_modes.add(id(net))
        for path, module in net.named_modules() if phase.evaluates else ():
            entries = [f"{path}.{name}".lstrip(".") for name in _entry_names(module)]
            default_role = Role.EXTRA if path.split(".")[0] == EXTRA else Role.BODY  # of modules without parameters
            module_roles = {roles[name] for name in entries} - {Role.BUFFER} or {default_role}
            if module_roles <= phase.evaluates and (entries or not list(module.children())):
                module.training = False


def _entry_names(module: torch.nn.Module) -> list[str]:
    buffers = [name for name, _ in module.named_buffers(recurse=False)]
    persistent = [name for name in buffers if name not in module._non_persistent_buffers_set]
    return [*(name for name, _ in module.named_parameters(recurse=False)), *persistent]
