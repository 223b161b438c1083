"""Take the steps of clients by programs in C++, made from steps that occur often."""

import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedloom.core.streams import generator_states
from fedloom.data.dataset import Dataset
from fedloom.engine.batch_sampler import EpochBatches
from fedloom.engine.client_phases import NetMemory, PhaseResults, Stepper, StepTable
from fedloom.engine.fast.program_check import ClientPhase, PhaseKind, ProgramCheck, StepKind, StepProgram, copies_of
from fedloom.engine.fast.recording import Recording, UnrecordableError
from fedloom.engine.fast.torch_library import replay_library
from fedloom.engine.keys import layout_of, phase_key
from fedloom.engine.optimizer import Optimizer
from fedloom.engine.steps import Steps, Sums
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.contract.phases import Batch, Objective

SAVED_SECONDS = 0.00025  # per step, about, whatever its size
FIRST_SECONDS = 0.008  # expected time of a recording; the latest one corrects it
MAX_PROGRAMS = 2048
MAX_COUNTED = 4096  # kinds of steps
_GATHERED = (torch.uint8, torch.float32, torch.int64)  # dtypes of samples that C++ reads
_RECENT = 4  # kinds of phases that are found without their key
_FEW_LAYOUTS = 8  # of constants; a phase with more is expected to bring another one in every round
_CONSTS_IN_KEY = 2  # index of the constants in a phase's key
_AUGMENTED_AT_ONCE = 16  # batches, because all of them are in memory


class ReplayedSteps:
    """Consecutive steps of one client, to be taken by C++. job: the object in C++."""

    def __init__(self, carried: Optimizer | Sums, memory: NetMemory, job: Any) -> None:
        self._carried, self._memory, self.job, self.segments = carried, memory, job, list[_Segment]()
        self._draws, self.batches = False, 0
        self._gathered: tuple[list[Any], list[int], list[float]] = [], [], []  # programs, plan and numbers of an epoch

    def add(
        self, step: StepProgram, epoch: EpochBatches, rows: int, batches: int, numbers: list[float], *, wanted: bool
    ) -> None:
        """Add the next batches of an epoch, `rows` samples each, and move on in it; `end_epoch` follows the last ones.
        `numbers` are those of the program that depend on the step; objectives are reported if `wanted`."""
        self.batches += batches
        first, last = epoch.position, self.segments[-1] if self.segments else None
        if last is not None and last.continues(step, epoch, wanted=wanted):
            last.batches += batches
        else:
            self.segments.append(_Segment(step, epoch, first, batches, wanted))
        if step.draws and not self._draws:
            self._draws = True
            self.job.draw_from(self._memory.generator)
        if epoch.augmented:
            self.job.feed(step.program, [tensor for tensor in epoch.take() if tensor is not None], wanted, numbers)
        else:
            programs, plan, all_numbers = self._gathered
            programs.append(step.program)
            plan += (first * epoch.batch_size, rows, batches, epoch.slot, wanted)
            all_numbers += numbers
            epoch.position += batches  # C++ gathers them

    def end_epoch(self, epoch: EpochBatches) -> None:
        programs, plan, numbers = self._gathered
        if programs:
            self.job.gather(programs, epoch.order, plan, numbers)
            self._gathered = [], [], []

    def run(self) -> None:
        self.job.run()

    def finish(self, results: PhaseResults | None) -> None:
        """Add the objectives to the results of a training phase. Raises `RuntimeError` if a call failed."""
        error, numbers, all_taps, state, weights = self.job.results()
        if error:
            raise RuntimeError(error)
        if weights:
            self._memory.own(weights)
        self._carried.advance(self.batches, state, self.segments[-1].step.carried)
        if results is None:
            return
        taps, start = iter(all_taps), 0
        for segment in self.segments:
            table = None
            if segment.wanted:
                names, width = segment.step.terms, 1 + len(segment.step.terms)
                end = start + segment.batches * width
                terms = {name: numbers[start + index : end : width] for index, name in enumerate(names, 1)}
                step_taps = [{name: next(taps) for name in segment.step.taps} for _ in range(segment.batches)]
                table = StepTable(numbers[start:end:width], terms, step_taps)
                start = end
            results.add_replayed(segment.epoch, segment.first, segment.batches, table)


@dataclass(slots=True)
class _Segment:
    """Batches of an epoch whose objectives have the same terms, from the batch `first` on."""

    step: StepProgram
    epoch: EpochBatches
    first: int
    batches: int
    wanted: bool

    def continues(self, step: StepProgram, epoch: EpochBatches, *, wanted: bool) -> bool:
        """Whether the next batches of an epoch, taken by `step`, can be added to these."""
        equal = (step.terms, step.taps, step.carried) == (self.step.terms, self.step.taps, self.step.carried)
        return epoch is self.epoch and wanted == self.wanted and equal


class Replayer(Stepper):
    """A stepper that replays steps, in C++ and without Python, once a step of their kind was recorded: when it first
    occurs if `eager`, else when that pays."""

    def __init__(self, data: Dataset, *, eager: bool = False) -> None:
        self._data, self.eager = data, eager
        self.programs, self.plain_steps, self.replayed_steps, self.setup_seconds = 0, 0, 0, 0.0
        self._expected_seconds, self._recorded_before = FIRST_SECONDS, False
        self._kinds: dict[Hashable, PhaseKind] = {}
        self._recent: list[PhaseKind] = []
        self._layouts: dict[Hashable, int] = {}  # kinds of phases that differ in the layout of constants alone
        self._notes: list[Diagnostic] = []
        self._samples: Any = None
        self._counted, self._new_kinds, self._phases = (0, 0), 0, 0
        replay_library().start()

    def notes(self) -> Sequence[Diagnostic]:
        notes, self._notes = self._notes, []
        return notes

    def replayed_share(self) -> float:
        plain, replayed = self.plain_steps - self._counted[0], self.replayed_steps - self._counted[1]
        self._counted = self.plain_steps, self.replayed_steps
        return replayed / max(1, plain + replayed)

    def __reduce__(self) -> "tuple[type[Replayer], tuple[Dataset]]":
        return Replayer, (self._data,)  # programs cannot be sent to other processes

    def __call__(
        self, steps: Steps, memory: NetMemory, epochs: Sequence[EpochBatches], results: PhaseResults | None
    ) -> Iterator[ReplayedSteps]:
        phase = self._phase_of(steps)
        usable = replay_library().wait() if self.eager else replay_library().ready()
        # C++ goes on up to a batch without a program, Python up to the next batch with one
        while any(map(len, epochs)):
            if usable and not phase.kind.refused:
                replay = self._replay(phase, memory, epochs, results)
                if replay.segments:
                    yield replay
                    replay.finish(results)
                    self.replayed_steps += replay.batches
                    continue
            # Writes are not seen while a step is recorded.
            with memory.in_net(reads=steps.reads and (phase.kind.refused or not usable)):
                steps.set_modes()
                self._plain_steps(phase, epochs, results, usable)

    def _phase_of(self, steps: Steps) -> ClientPhase:
        tensors, layout = layout_of(steps.consts) if steps.consts else ([], ())
        self._phases += 1
        for kind in self._recent:
            if kind.is_at_a_glance(steps, layout):
                kind.used = self._phases
                return ClientPhase(steps, kind, tensors)
        trainable, carried = list(steps.trainable), steps.carried.key
        key = id(steps.loaded_net), phase_key(steps.phase), layout, tuple(trainable), carried
        if key in self._kinds:
            kind = self._kinds[key]
        else:
            kind = PhaseKind(steps.loaded_net, steps.phase, steps.consts, layout, trainable, carried)
            # if a phase comes with many layouts of constants, few of them will come again
            family = key[:_CONSTS_IN_KEY] + key[_CONSTS_IN_KEY + 1 :]
            self._layouts[family] = self._layouts.get(family, 0) + 1
            kind.recurs = self._layouts[family] <= _FEW_LAYOUTS
            self._kinds[key] = kind
        kind.used = self._phases
        if kind.glance is not None:
            self._recent = [kind, *self._recent[: _RECENT - 1]]
        return ClientPhase(steps, kind, tensors)

    def _replay(
        self, phase: ClientPhase, memory: NetMemory, epochs: Sequence[EpochBatches], results: PhaseResults | None
    ) -> ReplayedSteps:
        """Take the batches up to the first one for which there is no program."""
        carried = phase.steps.carried
        replay = ReplayedSteps(carried, memory, self._job_of(phase, memory, epochs[0]))
        number = carried.steps + 1
        for epoch in epochs:
            while len(epoch):
                if epoch.augmented and replay.batches >= _AUGMENTED_AT_ONCE:
                    return replay
                rows, batches = epoch.next_rows()
                kind_of_step = carried.kind_of_step(number)
                kind = phase.kind.steps.get(self._key(epoch, kind_of_step, rows))
                if kind is None or kind.program is None:
                    replay.end_epoch(epoch)
                    return replay
                # the first step of an optimiser with moments differs from the others; augmented batches come one by one
                if epoch.augmented or carried.kind_of_step(number + 1) != kind_of_step:
                    batches = 1
                numbers, wanted = carried.numbers_of_steps(number, batches), bool(results and results.wants(epoch))
                replay.add(kind.program, epoch, rows, batches, numbers, wanted=wanted)
                number += batches
            replay.end_epoch(epoch)
        return replay

    def _job_of(self, phase: ClientPhase, memory: NetMemory, epoch: EpochBatches) -> Any:
        carried, borrowed = phase.steps.carried, memory.borrowed()
        weights = memory.tensors if borrowed is None else borrowed
        tensors = carried.rates, carried.state, phase.consts
        make = self._samples_in_cpp().replay
        return make(weights, borrowed is not None, *tensors, epoch.batch_size, epoch.batches_per_block)

    def _samples_in_cpp(self) -> Any:
        if self._samples is None:
            data = self._data
            moments = ([], []) if data.mean is None or data.std is None else (data.mean.tolist(), data.std.tolist())
            x = data.x if data.x.dtype in _GATHERED else data.x.float()
            # C++ reads samples one after another, whatever their strides are
            self._samples = torch.classes.fedloom_replay.Samples(x.contiguous(), data.y.long().contiguous(), *moments)
        return self._samples

    @staticmethod
    def _key(epoch: EpochBatches, kind_of_step: Hashable, rows: int) -> Hashable:
        if not epoch.augmented:
            return kind_of_step, rows
        batch = epoch.peek()
        return kind_of_step, rows, tuple(view.stride() for view in (batch.x, batch.second) if view is not None)

    def _plain_steps(
        self, phase: ClientPhase, epochs: Sequence[EpochBatches], results: PhaseResults | None, usable: bool
    ) -> None:
        """Take steps in Python up to the next one that can be replayed. Record the first if that pays off."""
        steps, kinds = phase.steps, phase.kind.steps
        for epoch in epochs:
            while len(epoch):
                key = self._key(epoch, steps.carried.kind_of_step(steps.carried.steps + 1), epoch.next_rows()[0])
                kind, refused = kinds.get(key), phase.kind.refused
                if kind is not None and kind.program is not None and usable and not refused:
                    return
                if kind is None:
                    self._forget_rare_kinds(phase.kind)
                    kind = kinds[key] = StepKind()
                kind.count += 1
                batch = epoch.take()
                self.plain_steps += 1
                if usable and not refused and self._pays_off(phase.kind, kind, steps.remaining_ratio):
                    objective = self._record(phase, kind, batch)
                else:
                    objective = steps.run(batch).objective
                if results is not None:
                    results.add(epoch, objective, batch)

    def _forget_rare_kinds(self, present: PhaseKind) -> None:
        """Drop kinds without a program if there are many: numbers that change every round make new ones."""
        self._new_kinds += 1
        if self._new_kinds < MAX_COUNTED:
            return
        self._new_kinds, self._recent = 0, []
        for kind in self._kinds.values():
            for key in [key for key, steps in kind.steps.items() if steps.program is None]:
                del kind.steps[key]
        self._layouts = {}
        self._kinds = {key: kind for key, kind in self._kinds.items() if kind.steps or kind.refused or kind is present}

    def _pays_off(self, phase: PhaseKind, kind: StepKind, remaining_ratio: float) -> bool:
        ratio = remaining_ratio if phase.recurs else 0.0
        pays = self.eager or kind.count * (1 + ratio) * SAVED_SECONDS >= self._expected_seconds
        if pays and self.programs >= MAX_PROGRAMS:
            self._make_room(phase)
        return pays and self.programs < MAX_PROGRAMS

    def _make_room(self, present: PhaseKind) -> None:
        """Drop half of the programs: first of kinds that are not expected again, then of those not met for longest."""
        self._recent = []
        for key in sorted(self._kinds, key=lambda key: (self._kinds[key].recurs, self._kinds[key].used)):
            if 2 * self.programs > MAX_PROGRAMS and self._kinds[key] is not present:
                kind = self._kinds.pop(key)
                self.programs -= sum(step.program is not None for step in kind.steps.values())

    def _record(self, phase: ClientPhase, kind: StepKind, batch: Batch) -> Objective | None:
        """Take a step, and keep it as a program if that gives the same bits."""
        started, steps = time.thread_time(), phase.steps  # other work on the machine does not count
        live = phase.inputs(batch)
        check = ProgramCheck(phase, live, copies_of(live), generator_states(), len(steps.carried.state))
        with Recording() as recording:
            results = steps.run(batch)
            steps.loaded_net.restore_buffers()  # the values of buffers that the net has replaced
        try:
            kind.program = check.program(recording, results, self._samples_in_cpp())
            self.programs += 1
        except Exception as error:  # the plain steps still run
            phase.kind.refused = True
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            if not isinstance(error, UnrecordableError):
                reason = f"{type(error).__name__}: {reason}"
            what = "steps are taken" if phase.steps.trainable else "batches of a statistics pass are taken"
            message = f"{what} one by one, slower and with the same numbers: {reason}"
            self._notes.append(Diagnostic("engine.plain_steps", message, 1.0))
        seconds = time.thread_time() - started
        self.setup_seconds += seconds
        if self._recorded_before:  # the first one imports what all need
            self._expected_seconds = seconds
        self._recorded_before = True
        return results.objective
