"""Steps as CUDA graphs: captured once for each kind of step, then replayed, with the bits of the steps.

On a GPU a small net's step takes as long as Python needs to launch its kernels, one after another. A graph launches
them at once. Its tensors lie in fixed memory: the weights of the loaded net, and copies of a phase's constants, rates
and moments, or sums of a statistics pass, which are filled before a client's first replay. Samples are gathered inside
the graph, and objectives go to a log on the device that is read once an epoch, so the host never waits.

Random numbers of the device's global generator, as dropout draws them, may be captured: torch registers that generator
with each graph, and a replay reads its seed and offset and moves it on as the step would. Other generators do not move
in a replay, so the comparison of all generators after the first replay refuses steps that draw from them."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedloom.core.streams import generator_states, remember_draws
from fedloom.data.dataset import Dataset
from fedloom.engine.batch_sampler import EpochBatches
from fedloom.engine.client_phases import NetMemory, PhaseResults, Replay, Stepper, StepTable
from fedloom.engine.fast.capture import Capture, CudaCapture, says_memory_is_full
from fedloom.engine.keys import from_leaves, layout_of, leaves_of, phase_key, structure_of
from fedloom.engine.optimizer import Optimizer
from fedloom.engine.steps import EpochSteps, Steps, Sums
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.contract.phases import Batch, Consts, Objective, Train

PLAIN_STEPS = 2  # of a kind, before it is captured
MAX_KINDS = 256  # whose graphs are kept
_LOGGED = 1024  # steps whose objectives fit the log of a graph


def dry_capture(work: Callable[[], None]) -> Callable[[], None]:
    """Return the work itself, which then runs on the same fixed memory without a graph: for tests without a GPU."""
    return work


class UncapturableError(Exception):
    """Why steps of a kind are not captured."""


class _GraphKind:
    """Steps that differ in values of tensors and in the sizes of batches alone, and what their graphs share."""

    steps: Steps  # those on the fixed memory
    numbers: Tensor  # `numbers_of_steps` of the steps in a log, on the device

    def __init__(self, steps: Steps) -> None:
        # the first phase's objects are kept, because their ids are in the key
        self.phase, self.original_consts = steps.phase, steps.consts
        self.plain_steps: dict[Hashable, int] = {}
        self.graphs: dict[Hashable, _Graph] = {}
        self.refused = False
        self.tensors: list[Tensor] = []

    def prepare(self, steps: Steps, device: torch.device) -> None:
        """Make the fixed memory for the first graph, after a step whose sums or moments show its layout."""
        consts, carried = self._fixed_consts(steps.consts), steps.carried
        if isinstance(steps, EpochSteps):
            # no more of a client's steps is kept, because they refer to its worker
            optimizer = steps.carried.separate()
            self.steps = replace(steps, consts=consts, carried=optimizer, draws=False, set_modes=lambda: None)
        else:
            self.steps = replace(steps, consts=consts)
            self.steps.carried = steps.carried.separate()
        shape = _LOGGED, len(carried.numbers_of_steps(1, 1))
        self.numbers = torch.ones(shape, dtype=torch.float64, device=device)

    def _fixed_consts(self, consts: Consts) -> Consts:
        """Copies of the constants at fixed addresses; places that hold one tensor hold one copy."""
        copies: dict[int, Tensor] = {}
        for tensor in layout_of(consts)[0]:
            if id(tensor) not in copies:
                copies[id(tensor)] = torch.empty_like(tensor).copy_(tensor)
            self.tensors.append(copies[id(tensor)])
        leaves = (copies[id(leaf)] if isinstance(leaf, Tensor) else leaf for leaf in leaves_of(consts))
        fixed: Consts = from_leaves(structure_of(consts), leaves)
        return fixed

    def fill(self, steps: Steps, state: Sequence[Tensor]) -> None:
        """Take over a client's constants, learning rates, and moments or sums; none are those before a first step."""
        carried, consts = self.steps.carried, layout_of(steps.consts)[0]
        values = consts, steps.carried.rates, state or carried.separate().state
        with torch.no_grad():
            for targets, sources in zip((self.tensors, carried.rates, carried.state), values, strict=True):
                if targets:
                    torch._foreach_copy_(targets, list(sources))


@dataclass(slots=True)
class _Buffers:
    """Fixed memory that all graphs share."""

    order: Tensor  # indices of an epoch's samples
    position: Tensor  # of the next batch in it [1]
    step: Tensor  # number of the step in the log [1]

    @staticmethod
    def of(data: Dataset) -> "_Buffers":
        return _Buffers(*(torch.zeros(size, dtype=torch.int64, device=data.y.device) for size in (len(data), 1, 1)))


@dataclass(slots=True)
class _Graph:
    """A step of one kind on batches of one size."""

    kind: _GraphKind
    data: Dataset
    buffers: _Buffers
    rows: int
    batch: Batch | None  # memory of samples that are augmented outside the graph; None if the graph gathers them
    replay: Callable[[], None] = lambda: None
    terms: list[str] = field(default_factory=list)
    taps: dict[str, Tensor] = field(default_factory=dict)
    log: Tensor | None = None

    def work(self) -> None:
        batch, steps = self.batch or self._gathered(), self.kind.steps
        carried = steps.carried
        if isinstance(carried, Optimizer) and self.kind.numbers.numel():
            carried.read_numbers(self.kind.numbers.index_select(0, self.buffers.step)[0])
        state, layout = carried.state, carried.layout
        objective = steps.run(batch).objective
        steps.loaded_net.restore_buffers()  # a net may assign new tensors to its buffers
        if objective is not None:
            self.terms, self.taps = list(objective.terms), dict(objective.taps)
            numbers = [objective.total, *objective.terms.values()]
            row = torch.stack([number.reshape(()).double() for number in numbers]).unsqueeze(0)
            if self.log is None:
                self.log = row.new_zeros(_LOGGED, row.shape[1])
            self.log.index_copy_(0, self.buffers.step, row)
        elif isinstance(carried, Sums):  # the pass has made new sums
            torch._foreach_copy_(state, carried.state)
            carried.advance(0, state, layout)
        self.buffers.step.add_(1)
        self.buffers.position.add_(self.rows)

    def _gathered(self) -> Batch:
        order = self.buffers.order
        indices = order.index_select(0, self.buffers.position + torch.arange(self.rows, device=order.device))
        return Batch(self.data.gather(indices), self.data.y[indices])

    def begin(self, epoch: EpochBatches, numbers: Sequence[float]) -> None:
        """Continue from the next batch of an epoch. numbers: those of all its steps that depend on their number."""
        self.buffers.step.zero_()
        if numbers:
            rows = torch.tensor(numbers, dtype=torch.float64).view(-1, self.kind.numbers.shape[1])
            self.kind.numbers[: len(rows)].copy_(rows, non_blocking=True)
        self.buffers.position.fill_(epoch.position * epoch.batch_size)
        if self.batch is None:
            self.buffers.order[: len(epoch.order)].copy_(epoch.order)

    def feed(self, batch: Batch) -> None:
        """Copy an augmented batch into the memory of the samples."""
        for target, value in zip(self.batch or (), batch, strict=True):
            if target is not None and value is not None:
                target.copy_(value)

    def table(self, steps: int, taps: Sequence[dict[str, Tensor]]) -> StepTable:
        """Return the objectives of the last replays, on the device."""
        assert self.log is not None
        columns = self.log[:steps].t().clone()
        return StepTable(columns[0], dict(zip(self.terms, columns[1:], strict=True)), taps)


class GraphStepper(Stepper):
    """A stepper that replays graphs of steps on `data`, which `capture` makes (None: CUDA graphs). Steps that cannot be
    captured run the plain way, and a note says why."""

    def __init__(self, data: Dataset, capture: Capture | None = None) -> None:
        self._data, self._capture = data, capture or CudaCapture(data.y.device)
        self._kinds: dict[Hashable, _GraphKind] = {}
        self._buffers, self._memory_is_full = _Buffers.of(data), False
        self._notes: dict[str, Diagnostic] = {}
        self._reported: set[str] = set()
        self.plain_steps, self.replayed_steps = 0, 0

    def notes(self) -> Sequence[Diagnostic]:
        new = [note for message, note in self._notes.items() if message not in self._reported]
        self._reported |= self._notes.keys()
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._data,)  # graphs cannot be sent to other processes

    def __call__(
        self, steps: Steps, memory: NetMemory, epochs: Sequence[EpochBatches], results: PhaseResults | None
    ) -> Iterator[Replay]:
        if self._memory_is_full:
            return super().__call__(steps, memory, epochs, results)
        with memory.in_net(reads=steps.reads):
            steps.set_modes()
            kind, carried, filled = self._kind_of(steps), steps.carried, False
            for epoch in epochs:
                while len(epoch):
                    rows, batches = epoch.next_rows()
                    graph = kind.graphs.get(self._key(epoch, rows))
                    if graph is None:
                        self._plain_step(kind, steps, epoch, results)
                        filled = False
                        continue
                    if not filled:
                        state, fixed = carried.state, kind.steps.carried
                        if not state or state[0] is not fixed.state[0]:
                            kind.fill(steps, state)
                        carried.advance(0, fixed.state, fixed.layout)
                        filled = True
                    self._replay(graph, steps, epoch, min(batches, _LOGGED), results)
            if filled and isinstance(carried, Sums):  # statistics may share them, and the next client changes them
                carried.advance(0, copies_of(carried.state), carried.layout)
        return iter(())

    @staticmethod
    def _key(epoch: EpochBatches, rows: int) -> Hashable:
        return rows, epoch.augmented

    def _kind_of(self, steps: Steps) -> _GraphKind:
        layout = layout_of(steps.consts)[1] if steps.consts else ()
        key = id(steps.loaded_net), phase_key(steps.phase), layout, tuple(steps.trainable), steps.carried.key
        kind = self._kinds.pop(key, None)
        if kind is None:
            kind = _GraphKind(steps)
            if isinstance(steps.carried, Sums) and steps.carried.grows:
                self._refuse(kind, UncapturableError("its sums may grow with each batch"))
            while len(self._kinds) >= MAX_KINDS:
                del self._kinds[next(iter(self._kinds))]  # that was met for the longest time
        self._kinds[key] = kind
        return kind

    def _plain_step(self, kind: _GraphKind, steps: Steps, epoch: EpochBatches, results: PhaseResults | None) -> None:
        """Take a step as always, and capture it if its kind has occurred often enough."""
        rows, _ = epoch.next_rows()
        key = self._key(epoch, rows)
        kind.plain_steps[key] = kind.plain_steps.get(key, 0) + 1
        self.plain_steps += 1
        capture = not kind.refused and kind.plain_steps[key] > PLAIN_STEPS
        batch, objective = (self._captured if capture else _taken)(kind, steps, epoch)
        if results is not None:
            results.add(epoch, objective, batch)

    def _captured(self, kind: _GraphKind, steps: Steps, epoch: EpochBatches) -> tuple[Batch, Objective | None]:
        """Take a step, capture it, and keep the graph if a replay gives the bits of the step."""
        (rows, _), position, device = epoch.next_rows(), epoch.position, self._data.y.device
        tree, carried = list(steps.loaded_net.tree.values()), steps.carried
        try:
            before, state = copies_of(tree), copies_of(carried.state)
        except torch.OutOfMemoryError as error:
            self._refuse(kind, error)
            return _taken(kind, steps, epoch)
        draws, draw_again = generator_states(device), remember_draws(device)
        batch, objective = _taken(kind, steps, epoch)
        steps.loaded_net.restore_buffers()
        live, after = [*tree, *carried.state], list[Tensor]()
        draws_after, go_on_drawing = generator_states(device), remember_draws(device)
        try:
            after = copies_of(live)
            if isinstance(kind.phase, Train) and kind.phase.ascent is not None and draws_after != draws:
                # the second pass resets the generators, which the host cannot do within a graph
                raise UncapturableError("the two passes of a step share their random numbers, as those of dropout")
            if not kind.graphs:
                kind.prepare(steps, device)
            fed, numbers = _copy_of(batch) if epoch.augmented else None, carried.numbers_of_steps(carried.steps, 1)
            graph = _Graph(kind, self._data, self._buffers, rows, fed)
            epoch.position = position
            graph.begin(epoch, numbers)
            kind.fill(steps, state)
            graph.replay = self._capture(graph.work)
            restore(tree, before)
            draw_again()
            kind.fill(steps, state)
            graph.begin(epoch, numbers)
            graph.replay()
            if generator_states(device) != draws_after:
                raise UncapturableError("a replay draws other random numbers than the step")
            if not same_bits([*tree, *kind.steps.carried.state], after) or not _equal_objectives(graph, objective):
                raise UncapturableError("a replay has other bits than the step")
            kind.graphs[self._key(epoch, rows)] = graph
        except Exception as error:  # the plain steps still run
            self._refuse(kind, error)
        epoch.position = position + 1
        if after:  # else there was no memory for them, and nothing has been changed
            restore(live, after)
        go_on_drawing()
        return batch, objective

    def _refuse(self, kind: _GraphKind, error: Exception) -> None:
        """Take steps of a kind the plain way from now on, and all steps if memory is full."""
        reason = str(error).partition("\n")[0] or type(error).__name__
        what = "steps are taken" if isinstance(kind.phase, Train) else "batches of a statistics pass are taken"
        kind.refused = True
        if says_memory_is_full(error):
            self._memory_is_full = True
            what, reason = "steps are taken", f"the device has too little memory for graphs of them ({reason})"
            for refused_kind in (kind, *self._kinds.values()):
                refused_kind.refused = True
                refused_kind.graphs.clear()
            self._kinds.clear()
        message = f"{what} one by one, slower and with the same numbers: {reason}"
        self._notes.setdefault(message, Diagnostic("engine.plain_steps", message, 1.0))

    def _replay(
        self, graph: _Graph, steps: Steps, epoch: EpochBatches, batches: int, results: PhaseResults | None
    ) -> None:
        wanted, first, carried = results is not None and results.wants(epoch), epoch.position, steps.carried
        tapped: list[dict[str, Tensor]] = []
        graph.begin(epoch, carried.numbers_of_steps(carried.steps + 1, batches))
        for number in range(batches):
            if epoch.augmented:
                graph.feed(epoch.take())
            try:
                graph.replay()
            except RuntimeError as error:
                if not says_memory_is_full(error):
                    raise
                self._refuse(graph.kind, error)
                batches = number  # a replay that cannot be launched changes nothing
                break
            tapped.append({name: tap.clone() for name, tap in graph.taps.items()} if wanted else {})
        epoch.position = first + batches
        fixed = graph.kind.steps.carried
        carried.advance(batches, fixed.state, fixed.layout)
        self.replayed_steps += batches
        if results is not None and batches:
            results.add_replayed(epoch, first, batches, graph.table(batches, tapped) if wanted else None)


def _taken(kind: _GraphKind, steps: Steps, epoch: EpochBatches) -> tuple[Batch, Objective | None]:
    batch = epoch.take()
    return batch, steps.run(batch).objective


def _copy_of(batch: Batch) -> Batch:
    second = None if batch.second is None else batch.second.clone()
    return batch._replace(x=batch.x.clone(), y=batch.y.clone(), second=second)


def copies_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors, without their graph."""
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def restore(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Set tensors to `values`, in place."""
    torch._foreach_copy_(list(tensors), list(values))


def same_bits(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> bool:
    """Whether tensors are equal, NaN to NaN."""
    pairs = zip(tensors, values, strict=True)
    # by default infinities would become, and equal, the largest number
    finite = {"nan": 0.0, "posinf": math.inf, "neginf": -math.inf}
    return all(
        torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(**finite), b.nan_to_num(**finite))
        for a, b in pairs
    )


def _equal_objectives(graph: _Graph, objective: Objective | None) -> bool:
    if objective is None:
        return True
    table = graph.table(1, [])
    numbers = [number.double().reshape(()) for number in (objective.total, *objective.terms.values())]
    logged = [torch.as_tensor(number).reshape(()) for number in (table.totals, *table.terms.values())]
    return same_bits(logged, numbers)
