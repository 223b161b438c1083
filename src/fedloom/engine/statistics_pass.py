"""Statistics passes in the form of steps, which engines can speed up as they do steps of training.

A batch changes sums instead of weights: the sums are what an optimiser's state is to a training phase.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from fedloom.core.trees import Tree
from fedloom.engine.steps import EpochSteps, StepResults, add_statistics, pass_function
from fedloom.methods.contract.phases import Batch, Collect, Consts
from fedloom.methods.contract.sample_statistics import ClassCovariances, ClassMeans, Moments, SampleMean, Statistic
from fedloom.nets.loaded_net import LoadedNet

_OF_ONE_LAYOUT = (ClassMeans, SampleMean, ClassCovariances, Moments)  # their sums have the same names after every batch


class Sums:
    """The sums of a pass's statistics over samples of `classes` classes, which its batches carry on.

    trees: the sums by name of the statistic; empty before the first batch. steps: number of batches so far.
    """

    def __init__(self, statistics: Mapping[str, Statistic], classes: int) -> None:
        self.trees: dict[str, Tree] = {name: {} for name in statistics}
        self.steps, self.rates = 0, list[Tensor]()
        self.key: Hashable = "sums", classes  # all that the arithmetic depends on, apart from statistics and tensors
        # a subclass may add up in another way, so the type itself counts
        self._grows = not all(type(statistic) in _OF_ONE_LAYOUT for statistic in statistics.values())

    @property
    def state(self) -> list[Tensor]:
        """All sums, in order."""
        return [tensor for tree in self.trees.values() for tensor in tree.values()]

    @property
    def layout(self) -> Hashable:
        """The names of `state`."""
        return tuple([(name, entry) for name, tree in self.trees.items() for entry in tree])

    def kind_of_step(self, number: int) -> Hashable:
        """Return a key that batches share whose sums so far have the same layout. `number` counts from 1."""
        return number if self._grows else number > 1

    def numbers_of_steps(self, first: int, steps: int) -> list[float]:
        """Return no numbers: none depends on how many batches came before."""
        return []

    def advance(self, steps: int, state: Sequence[Tensor], layout: Any) -> None:
        """Take over `state`, the sums after some steps that were taken elsewhere, and their names in `layout`."""
        self.steps += steps
        self.trees = {name: {} for name in self.trees}
        for (name, entry), tensor in zip(layout, state, strict=True):
            self.trees[name][entry] = tensor


@dataclass(slots=True)
class PassSteps:
    """All that a statistics pass needs, apart from the batches.

    remaining_ratio: remaining rounds divided by finished rounds; decides whether a speed-up pays off. set_modes: sets
    evaluation mode; called before batches pass the net in Python.
    """

    reads: ClassVar[bool] = True  # a pass leaves the weights as they are
    trainable: ClassVar[Tree] = {}
    loaded_net: LoadedNet
    phase: Collect
    consts: Consts
    classes: int
    remaining_ratio: float
    set_modes: Callable[[], object]
    carried: Sums = field(init=False)

    def __post_init__(self) -> None:
        self.carried = Sums(self.phase.statistics, self.classes)

    @torch.no_grad()
    def run(self, batch: Batch) -> StepResults:
        """Add a batch to the sums."""
        net = self.loaded_net.net

        def values(name: str, statistic: Statistic) -> Tensor:
            return pass_function(name, statistic)(net, batch, self.consts)

        self.carried.trees = add_statistics(self.phase.statistics, self.carried.trees, values, batch, self.classes)
        self.carried.steps += 1
        return StepResults(None, self.carried.state)

    def results(self) -> dict[str, Any]:
        """Return the statistics by name."""
        return {name: self.phase.statistics[name].result(sums) for name, sums in self.carried.trees.items()}


Steps: TypeAlias = EpochSteps | PassSteps
