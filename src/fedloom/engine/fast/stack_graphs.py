"""Steps of stacks of clients as CUDA graphs: one graph for each width of a ladder.

A stack narrows as its smaller clients finish. Its steps run on the next larger width of the ladder: the full one, its
half, and so on down to 1. Rows of finished clients are computed, then put back. Samples are gathered inside the graph,
by a table of indices that is copied to the device once a phase and a counter that selects its row. Active clients get
the numbers of `engine/stacked`: the same bits at the same width and batch size, else sums in another order."""

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedloom.core.trees import sent_to
from fedloom.data.dataset import Dataset
from fedloom.engine.fast.capture import Capture, CudaCapture
from fedloom.engine.fast.graphs import PLAIN_STEPS, UncapturableError, copies_of, restore, same_bits
from fedloom.engine.keys import is_common, phase_key
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.contract.phases import Batch, padded_labels

StackedTraining: TypeAlias = Any  # of `engine/stacked/`, which is above this folder

_MAX_KINDS = 32  # each holds the weights of a stack
_ROWS = 256  # steps whose samples are in the memory of the graphs at a time


class StackGraphs:
    """The graphs of all kinds of stacks, of up to `width` clients, that a run on `data` has met. What cannot be
    captured runs the plain way, and a note says why. `capture` None takes CUDA graphs."""

    def __init__(self, data: Dataset, width: int, capture: Capture | None = None) -> None:
        self.data, self.width, self.capture = data, width, capture or CudaCapture(data.y.device)
        self.plain_steps, self.replayed_steps = 0, 0
        self._programs: dict[Hashable, _Program] = {}
        self._notes: dict[str, bool] = {}  # whether each has been reported

    def steps_of(self, training: StackedTraining) -> "_Program | None":
        """Return the program of a phase's kind, which then shares its memory with the phase."""
        if reason := _obstacle(training):
            self.refuse(reason)
            return None
        key = _kind_of(training)
        program = self._programs.pop(key, None) or _Program(self, training)
        while len(self._programs) >= _MAX_KINDS:
            del self._programs[next(iter(self._programs))]  # that was met for the longest time
        self._programs[key] = program
        if program.refused:
            return None
        program.share(training)
        return program

    def clear(self, width: int) -> None:
        """Free all memory, and continue with stacks of at most `width` clients."""
        self._programs.clear()
        self.width = width

    def refuse(self, reason: str) -> None:
        """Note once why steps are not captured."""
        self._notes.setdefault(f"steps of stacks are taken one by one, slower: {reason}", False)

    def notes(self) -> Sequence[Diagnostic]:
        new = [message for message, reported in self._notes.items() if not reported]
        self._notes |= dict.fromkeys(new, True)
        return [Diagnostic("engine.plain_steps", message, 1.0) for message in new]


def _obstacle(training: StackedTraining) -> str | None:
    if training.clients[0].draws.augment is not None:
        return "samples are augmented for one client at a time"
    if training.optimizer.numbers_of_steps(1, 1):
        return "Adam's corrections depend on the number of the step"
    return None


def _kind_of(training: StackedTraining) -> Hashable:
    """Return a key of all that a graph depends on, apart from the values of tensors and the number of clients."""
    consts = training.consts
    shared = [(leaf.shape, leaf.dtype, leaf.stride()) if isinstance(leaf, Tensor) else leaf for leaf in consts.shared]
    stacked = [(leaf.shape[1:], leaf.dtype) for leaf in consts.stacked]
    common = [name for name, value in training.tree.items() if is_common(value)]
    leaves = tuple([(type(leaf), leaf) for leaf in shared]), tuple(stacked)
    names = tuple(training.trainable), tuple(common)
    return id(training.net), phase_key(training.phase), names, training.optimizer.key, consts.shape, leaves


def _tensors(leaves: Sequence[object]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _zeros(value: Tensor, width: int) -> Tensor:
    """Return zeros [width, ...] in the memory order of `value` [K, ...]."""
    strides, shape = value.stride(), (width, *value.shape[1:])
    order = sorted(range(value.dim()), key=lambda dim: -strides[dim])
    zeros = value.new_zeros([shape[dim] for dim in order])
    return zeros.permute([order.index(dim) for dim in range(value.dim())])


class _Program:
    """The memory of one kind of stack of up to `width` clients, and its graphs; `refused` once a capture has failed."""

    def __init__(self, graphs: StackGraphs, training: StackedTraining) -> None:
        # the same width throughout a run, because roundings may depend on it
        self.width = min(graphs.width, training.clients[0].job.ctx.task.clients)
        self.owner, self.refused, device = graphs, False, graphs.data.y.device
        self.batch_size = training.worker.local_training.batch_size
        objective, gradients = training.trial()
        self.written = [*training.trainable, *training.buffers]
        # updates are several times faster in the memory order of gradients
        laid_out = training.tree | dict(zip(training.trainable, gradients, strict=True))
        self.tree = {name: _zeros(value, self.width) for name, value in laid_out.items()}
        for name, value in training.tree.items():
            if is_common(value):  # and not written
                self.tree[name] = torch.zeros_like(value[:1]).expand(self.width, *value.shape[1:])
        self.optimizer = training.optimizer.separate([self.tree[name] for name in training.trainable])
        self.optimizer.steps = 1  # it has moments
        self.terms = {name: _zeros(term.detach(), self.width) for name, term in objective.terms.items()}
        shared = [torch.empty_like(leaf) if isinstance(leaf, Tensor) else leaf for leaf in training.consts.shared]
        stacked = [_zeros(leaf, self.width) for leaf in training.consts.stacked]
        self.consts = replace(training.consts, shared=shared, stacked=stacked)
        # all that a step reads of the phase; it also keeps the objects alive whose ids are in the key
        self.training = copy.copy(training)
        self.training.tree, self.training.terms, self.training.consts = self.tree, self.terms, self.consts
        self.training.clients, self.training.orders, self.training.sums = [], [], {}
        # a phase's samples [steps, K, B], the sizes of its batches [steps, K], and whether they count for loss terms
        shape = _ROWS, self.width
        self.tables = (
            torch.zeros(*shape, self.batch_size, dtype=torch.int64, device=device),
            torch.zeros(shape, dtype=torch.int64, device=device),
            torch.zeros(shape, dtype=torch.bool, device=device),
        )
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.steps: dict[tuple[int, bool], _Step] = {}
        self.ladder = [self.width]
        while self.ladder[-1] > 1:
            self.ladder.append(-(-self.ladder[-1] // 2))

    @property
    def changing(self) -> list[Tensor]:
        return [*(self.tree[name] for name in self.written), *self.optimizer.state, *self.terms.values(), self.position]

    @torch.no_grad()
    def share(self, training: StackedTraining) -> None:
        """Take over the state of a phase, which finds it in the program's memory from now on."""
        clients, optimizer, consts = len(training.clients), training.optimizer, self.consts
        rows = [1 if is_common(value) else clients for value in training.tree.values()]
        pairs = list(zip(consts.stacked, training.consts.stacked, strict=True))
        pairs += zip(self.optimizer.state, optimizer.state or self.optimizer.separate().state, strict=True)
        pairs += [(total, training.terms.get(name, torch.zeros_like(total))) for name, total in self.terms.items()]
        targets = [self.tree[name][:count] for name, count in zip(training.tree, rows, strict=True)]
        values = [value[:count] for value, count in zip(training.tree.values(), rows, strict=True)]
        targets += [target[:clients] for target, _ in pairs] + self.optimizer.rates + _tensors(consts.shared)
        values += [value[:clients] for _, value in pairs] + optimizer.rates + _tensors(training.consts.shared)
        restore(targets, values)
        training.tree = {name: value[:clients] for name, value in self.tree.items()}
        training.terms = {name: total[:clients] for name, total in self.terms.items()}
        training.optimizer = self.optimizer.sharing()
        self._tabulate(training)

    def _tabulate(self, training: StackedTraining) -> None:
        """Put the samples of all steps of a phase into tables on the device."""
        size, device = self.batch_size, self.position.device
        lengths = [sum(-(-len(order) // size) for order in orders) for orders in training.orders]
        # positions of first samples in the row of all orders
        starts = torch.zeros(lengths[0], len(lengths), dtype=torch.int64)
        sizes, last, offset = torch.zeros_like(starts), torch.zeros_like(starts, dtype=torch.bool), 0
        for row, orders in enumerate(training.orders):
            end = 0
            for order in orders:
                first, end = end, end - (-len(order) // size)
                starts[first:end, row] = torch.arange(offset, offset + len(order), size)
                sizes[first:end, row] = size
                sizes[end - 1, row] -= (end - first) * size - len(order)
                offset += len(order)
            last[first:end, row] = True
        self._active = (sizes > 0).sum(1).tolist()
        self._short = ((sizes > 0) & (sizes < size)).any(1).tolist()
        starts, sizes, last = (sent_to(table, device) for table in (starts, sizes, last))
        within = torch.arange(size, device=device)
        # masked samples repeat the first one of their batch, as everywhere in stacks
        positions = starts.unsqueeze(2) + torch.where(within < sizes.unsqueeze(2), within, 0)
        samples = torch.cat([order for orders in training.orders for order in orders])
        self._phase_tables = samples[positions], sizes, last
        self._block, self._next = -1, -1

    def _select(self, number: int) -> None:
        """Let the next step be the step `number` of the phase."""
        block, row = divmod(number, _ROWS)
        if block != self._block:
            for table, rows in zip(self.tables, self._phase_tables, strict=True):
                part = rows[block * _ROWS : (block + 1) * _ROWS]
                table.zero_()
                table[: len(part), : part.shape[1]].copy_(part)
            self._block = block
        if number != self._next or not row:
            self.position.fill_(row)
        self._next = number + 1

    def step(self, number: int) -> tuple[Mapping[str, Tensor], Batch] | None:
        """Take the step `number` of the phase, and add up its loss terms. Return the taps [K, B, ...] of the loss, and
        the batch with its labels in the place of samples; None once a capture has failed."""
        if self.refused:
            return None
        self._select(number)
        active, short = self._active[number], self._short[number]
        width = min(width for width in self.ladder if width >= active)
        step = self.steps.setdefault((width, short), _Step(self, width, short))
        step.take()
        batch = Batch(*(None if part is None else part[:active] for part in step.batch))  # type: ignore[arg-type]
        return {name: tap[:active] for name, tap in step.taps.items()}, batch


class _Step:
    """A step of one width, with a mask if some batches are `short`; `taps` and `batch` are those of the last step, with
    labels in the place of the batch's samples."""

    def __init__(self, program: _Program, width: int, short: bool) -> None:
        self.program, self.width, self.short = program, width, short
        self.plain_steps = 0
        self.replay: Callable[[], None] | None = None
        self.taps: dict[str, Tensor] = {}
        self.batch: Batch

    def take(self) -> None:
        """Take the step that the program has selected, and capture it if its kind has occurred often enough."""
        owner = self.program.owner
        if self.replay is not None:
            self.replay()
            owner.replayed_steps += 1
            return
        self.plain_steps += 1
        owner.plain_steps += 1
        if self.plain_steps <= PLAIN_STEPS:
            self.work()
        else:
            self._capture()

    def work(self) -> None:
        program, width, data = self.program, self.width, self.program.owner.data
        indices, sizes, last = (table.index_select(0, program.position)[0, :width] for table in program.tables)
        x, y, active = data.gather(indices.flatten()), data.y[indices], sizes > 0
        mask = torch.arange(program.batch_size, device=y.device) < sizes.unsqueeze(1) if self.short else None
        y, training = padded_labels(y, mask), copy.copy(program.training)
        training.optimizer = program.optimizer.sharing()
        parameters = training.narrowed(width)
        changing = [*(program.tree[name][:width] for name in program.written), *training.optimizer.state]
        before = copies_of(changing)
        out = training.step(Batch(x.view(*indices.shape, *x.shape[1:]), y, mask), parameters, [])
        with torch.no_grad():
            for tensor, value in zip(changing, before, strict=True):  # finished clients stay as they are
                rows = active.view(-1, *(1,) * (tensor.dim() - 1))
                torch.where(rows, tensor, value, out=tensor)
        training.add_terms(out, active & last)
        program.position.add_(1).remainder_(_ROWS)  # within the tables also while a capture repeats the step
        self.taps, self.batch = {name: tap.detach() for name, tap in out.taps.items()}, Batch(y, y, mask)

    def _capture(self) -> None:
        """Take the step and capture it. Keep the graph if a replay gives the bits of the step."""
        program = self.program
        before = copies_of(program.changing)
        self.work()
        after, taps, batch = copies_of(program.changing), self.taps, self.batch
        try:
            restore(program.changing, before)
            replay = program.owner.capture(self.work)
            restore(program.changing, before)
            replay()
            if not same_bits([*program.changing, *self.taps.values()], [*after, *taps.values()]):
                raise UncapturableError("a replay has other bits than the step")
            self.replay = replay
        except Exception as error:  # the plain steps still run
            program.refused = True
            program.owner.refuse(str(error).partition("\n")[0] or type(error).__name__)
            restore(program.changing, after)
            self.taps, self.batch = taps, batch
