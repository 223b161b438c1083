"""Parts of a client's phases: their results, weights that a rule sets, the memory of weights, and steppers."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.streams import GlobalGenerators
from fedloom.core.trees import Tree
from fedloom.engine.batch_sampler import EpochBatches
from fedloom.engine.jobs import Client
from fedloom.engine.steps import EpochSteps, Steps, add_statistics, tap_of
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.contract.phases import Batch, Choose, Consts, Objective, Train
from fedloom.nets.loaded_net import LoadedNet


class StepTable(NamedTuple):
    """The objectives of replayed steps: the total of each, loss terms by name, and the taps of each by name."""

    totals: list[float] | Tensor
    terms: Mapping[str, list[float] | Tensor]
    taps: Sequence[Mapping[str, Tensor]]


class PhaseResults:
    """The objectives of a training phase: sums over its last epoch (its number from 0), or over every epoch if the
    phase needs them, with the `steps` that they have and the `samples` of all epochs. It never waits for a device."""

    def __init__(self, phase: Train, num_classes: int, last_epoch: int) -> None:
        self._phase, self._classes, self.last_epoch = phase, num_classes, last_epoch
        self.samples, self.steps, self._epoch = 0, 0, -1
        self._sums: dict[str, Tree] = {name: {} for name in phase.collect}
        self._terms: dict[str, list[Tensor | list[float]]] = {}
        self._totals: list[Tensor | list[float]] = []
        self._mean_losses: list[float] = []

    def wants(self, epoch: EpochBatches) -> bool:
        return epoch.epoch == self.last_epoch or bool(self._phase.until) or self._phase.throughout

    def add(self, epoch: EpochBatches, objective: Objective | None, batch: Batch) -> None:
        """Add a step's objective on a batch of an epoch."""
        self._begin(epoch)
        self.samples += len(batch.y)
        if objective is not None and self.wants(epoch):
            self.add_objective(objective, batch)

    def add_objective(self, objective: Objective, batch: Batch) -> None:
        """Add the objective of a batch to the sums, whatever the epoch."""
        self.steps += 1
        self._totals.append(objective.total.detach().reshape(1))
        for name, term in objective.terms.items():
            self._terms.setdefault(name, []).append(term.detach().reshape(1))
        if self._sums:
            self._add_taps(objective.taps, batch)

    def add_replayed(self, epoch: EpochBatches, first: int, batches: int, table: StepTable | None) -> None:
        """Add consecutive steps of an epoch, from the batch `first` on; `table` is None if they are not wanted."""
        self._begin(epoch)
        self.samples += epoch.samples_in(first, batches)
        if table is None:
            return
        self.steps += batches
        self._totals.append(table.totals)
        for name, values in table.terms.items():
            self._terms.setdefault(name, []).append(values)
        for taps, labels in zip(table.taps, epoch.labels(first, batches), strict=True) if self._sums else ():
            self._add_taps(taps, Batch(labels, labels))

    def add_measured(self, epoch: EpochBatches, steps: EpochSteps, client: Client) -> None:
        """Take the one step that is left in an epoch, and give the client the norm of each term's gradient."""
        batch = epoch.take()
        if not steps.carried.steps:  # not measured: weights that have not moved may have no pull yet
            self.add(epoch, steps.run(batch).objective, batch)
            return
        objective, norms = steps.run_measured(batch)
        client.norms |= {name: float(norm) for name, norm in norms.items()}
        self.add(epoch, objective, batch)

    def ends(self, until: Callable[[Sequence[float]], bool]) -> bool:
        if not self.steps:
            return False
        self._mean_losses.append(sum(_numbers(self._totals)) / self.steps)
        return until(self._mean_losses)

    def statistics(self) -> dict[str, Any]:
        return {name: self._phase.collect[name].result(sums) for name, sums in self._sums.items()}

    def mean_terms(self) -> dict[str, float]:
        return {name: sum(_numbers(pieces)) / self.steps for name, pieces in self._terms.items()}

    def _begin(self, epoch: EpochBatches) -> None:
        """Forget the sums of an earlier epoch, except statistics that are collected throughout the phase."""
        if epoch.epoch != self._epoch:
            self._epoch = epoch.epoch
            if epoch.epoch == self.last_epoch or self._phase.until:
                self.steps, self._terms, self._totals = 0, {}, []
                if not self._phase.throughout:
                    self._sums = {name: {} for name in self._sums}

    def _add_taps(self, taps: Mapping[str, Tensor], batch: Batch) -> None:
        detached = {name: tap.detach() for name, tap in taps.items()}
        self._sums = add_statistics(self._phase.collect, self._sums, tap_of(detached), batch, self._classes)


def _numbers(pieces: Sequence[Tensor | list[float]]) -> list[float]:
    """Vectors and lists as one list. Vectors are read from their device at once."""
    if len(pieces) == 1 and isinstance(pieces[0], list):
        return pieces[0]
    vectors = [torch.tensor(p, dtype=torch.float64) if isinstance(p, list) else p for p in pieces]
    numbers: list[float] = torch.cat(vectors).tolist()
    return numbers


@torch.no_grad()
def chosen_weights(phase: Choose, tree: Tree, consts: Consts) -> Tree:
    """Return a client's weights with the entries that the rule of a phase sets; `tree` is not written. Raises
    `ConfigError` for an entry that the net lacks, or that has another shape or kind of numbers."""
    entries = phase.rule(tree, consts)
    for name, value in entries.items():
        if name not in tree:
            raise ConfigError(f"Choose: the rule sets {name!r}, which the net lacks; it has {', '.join(tree)}")
        expected = tree[name]
        if value.shape != expected.shape or value.is_floating_point() != expected.is_floating_point():
            problem = f"the rule sets {name} to {_described(value)}; the net needs {_described(expected)}"
            raise ConfigError(f"Choose: {problem}")
    return {name: entries[name].to(tree[name]) if name in entries else tree[name] for name in tree}


def _described(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


class NetMemory:
    """The random numbers of one client, and its weights, which are in the net itself: one client at a time."""

    def __init__(self, loaded_net: LoadedNet, start: Tree, generators: GlobalGenerators) -> None:
        self._loaded_net, self._generators = loaded_net, generators
        self.load(start)

    def load(self, start: Tree) -> None:
        self._loaded_net.load(start)

    @property
    def generator(self) -> torch.Generator:
        """The generator from which the client draws on the CPU."""
        return torch.default_generator

    @property
    def tensors(self) -> list[Tensor]:
        """The weights in the order of the net's tree, and in its memory layout."""
        self._loaded_net.restore_buffers()  # a net may have replaced tensors of its tree
        return list(self._loaded_net.tree.values())

    def borrowed(self) -> list[Tensor] | None:
        """Return the first weights in the order of the net's tree, if C++ may copy them; None if that has been done."""
        return None

    def own(self, tensors: list[Tensor]) -> None:
        """Keep the weights that were trained on a copy of those that `borrowed` returned."""
        raise RuntimeError("the weights are in the net, and were not borrowed")

    def in_net(self, *, reads: bool = False) -> contextlib.AbstractContextManager[None]:
        """Let code in the block find the weights in the net, and the random numbers in the global generators. A block
        that `reads` should not write weights; torch's counts of writes show if it does, outside dispatch modes."""
        return contextlib.nullcontext()

    def active(self) -> contextlib.AbstractContextManager[None]:
        return self._generators.active(once=True)

    def weights(self, allocate: Callable[[Tensor], Tensor] | None) -> Tree:
        """Return the trained weights on the CPU, in the plain memory order, in memory from `allocate` if given."""
        return self._loaded_net.weights(allocate)


class SeparateMemory(NetMemory):
    """Weights in separate tensors, so that clients can train side by side on one net."""

    def load(self, start: Tree) -> None:
        self._start = start
        self._tensors: list[Tensor] | None = None

    def active(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # each block `in_net` has the client's generators

    @property
    def tensors(self) -> list[Tensor]:
        if self._tensors is None:
            self._tensors = self._copied()
        return self._tensors

    def borrowed(self) -> list[Tensor] | None:
        if self._tensors is not None or not self._loaded_net.is_laid_out_as(self._start):
            return None
        return [self._start[name] for name in self._loaded_net.tree]

    def own(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    @torch.no_grad()
    def _copied(self) -> list[Tensor]:
        if self._loaded_net.is_laid_out_as(self._start):
            return [self._start[name].clone() for name in self._loaded_net.tree]
        separate: dict[tuple[int, torch.Size], Tensor] = {}  # entries that share memory in the net share it here
        for tensor in self._loaded_net.tree.values():
            separate.setdefault((tensor.data_ptr(), tensor.shape), torch.empty_like(tensor))
        tensors = [separate[tensor.data_ptr(), tensor.shape] for tensor in self._loaded_net.tree.values()]
        torch._foreach_copy_(tensors, [self._start[name] for name in self._loaded_net.tree])
        return tensors

    @property
    def generator(self) -> torch.Generator:
        return self._generators.separate

    @contextlib.contextmanager
    def in_net(self, *, reads: bool = False) -> Iterator[None]:
        self._loaded_net.load(dict(zip(self._loaded_net.tree, self.tensors, strict=True)))
        versions = self._versions()
        with self._generators.active():
            yield
        self._loaded_net.restore_buffers()
        if reads and self._versions() == versions:  # nothing was written
            return
        with torch.no_grad():
            torch._foreach_copy_(self.tensors, [tensor.detach() for tensor in self._loaded_net.tree.values()])

    def _versions(self) -> list[int]:
        """How often the net's tensors were written."""
        return [tensor._version for tensor in self._loaded_net.tree.values()]

    def weights(self, allocate: Callable[[Tensor], Tensor] | None) -> Tree:
        plain = torch.contiguous_format
        names = self._loaded_net.tree
        return {name: tensor.contiguous(memory_format=plain) for name, tensor in zip(names, self.tensors, strict=True)}


class Replay(Protocol):
    """Steps of one client that need no Python. Whoever gets one runs it before the client continues, in this thread by
    `run`, or hands its `job` to threads in C++."""

    job: Any

    def run(self) -> None: ...


class Stepper:
    """Takes the steps of epochs or of a statistics pass, one after another. A faster one has the same bits."""

    setup_seconds = 0.0  # CPU time so far that served to make later steps faster

    def __call__(
        self, steps: Steps, memory: NetMemory, epochs: Sequence[EpochBatches], results: PhaseResults | None
    ) -> Iterator[Replay]:
        """Take a step for each batch that is left in the epochs, on the weights of the client's memory, and add it to
        the results, which a statistics pass lacks. Yield work for others to run."""
        with memory.in_net(reads=steps.reads):
            steps.set_modes()
            for epoch in epochs:
                while len(epoch):
                    batch = epoch.take()
                    objective = steps.run(batch).objective
                    if results is not None:
                        results.add(epoch, objective, batch)
        return iter(())

    def notes(self) -> Sequence[Diagnostic]:
        """Return, each once, the reasons why steps could not be sped up."""
        return ()

    def replayed_share(self) -> float:
        """Return the share of the steps since the last call that needed no Python."""
        return 0.0
