"""Local optimisers that update lists of tensors in place, with less overhead a step than `torch.optim`, and moves to
the weights at which a second pass takes its gradients (`Train.ascent`)."""

import contextlib
import copy
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from fedloom.core.text import lists_by_key
from fedloom.core.trees import Tree
from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.nets.loaded_net import LoadedNet


@dataclass(slots=True)
class _Group:
    """The parameters at `indices`, which share `spec`."""

    spec: OptimizerSpec
    indices: list[int]
    rate: Tensor | None  # the learning rate [] if it decays, so that a compiled step holds in every round
    first_moments: list[Tensor] = field(default_factory=list)  # or momenta of SGD
    second_moments: list[Tensor] = field(default_factory=list)  # of Adam
    numbers: Tensor | None = None  # Adam's corrections [2] in float64, instead of those of the counted step

    def corrections(self, step: int) -> tuple[float, float]:
        """Return by what Adam divides the root of the second moments, and its factor or divisor of the step."""
        beta1, beta2 = self.spec.betas
        corrected = 1 - beta1**step
        return (1 - beta2**step) ** 0.5, -self.spec.lr / corrected if self.rate is None else corrected

    def operands(self, step: int, device: torch.device) -> tuple[Any, Any]:
        """Return the corrections of a step as numbers, or as tensors [] where a graph may read them."""
        numbers = self.numbers
        if numbers is None and device.type != "cuda":
            return self.corrections(step)
        if numbers is None:  # plain steps, too: addcdiv with a number rounds less often on a GPU than with a tensor
            numbers = torch.tensor(self.corrections(step), dtype=torch.float64).to(device, non_blocking=True)
        # lists of float32 share one kernel with a tensor of float32, which is rounded as a number would be
        narrow = numbers.float() if {moment.dtype for moment in self.first_moments} == {torch.float32} else numbers
        return narrow[0], (narrow if self.rate is None else numbers)[1]


class Optimizer:
    """Updates `parameters` in place from the gradients that `step` gets, by one spec for all or one for each, in a
    round from 1 on. Momenta start at zero in a new object."""

    layout: Hashable = None  # the order of `state` says what each tensor is

    def __init__(
        self, specs: OptimizerSpec | Sequence[OptimizerSpec], parameters: Sequence[Tensor], round_: int = 1
    ) -> None:
        self.parameters, self.steps = list(parameters), 0
        self._groups = [_Group(spec, indices, self._decayed_rate(spec, round_)) for spec, indices in self._split(specs)]
        # all that the arithmetic depends on, apart from tensors, `kind_of_step` and `numbers_of_steps`
        self.key: Hashable = tuple([(group.spec, tuple(group.indices)) for group in self._groups])
        self._has_numbers, self._is_plain_sgd = False, True
        for group in self._groups:
            adam = group.spec.name == "adam"
            self._has_numbers |= adam
            self._is_plain_sgd &= not adam and not group.spec.momentum

    def _split(self, specs: OptimizerSpec | Sequence[OptimizerSpec]) -> Iterable[tuple[OptimizerSpec, list[int]]]:
        if isinstance(specs, OptimizerSpec):
            return [(specs, list(range(len(self.parameters))))]
        return lists_by_key((spec, index) for index, spec in enumerate(specs)).items()

    def _decayed_rate(self, spec: OptimizerSpec, round_: int) -> Tensor | None:
        if spec.decay == 1:
            return None
        return torch.tensor(spec.lr_in(round_), dtype=torch.float64, device=self.parameters[0].device)

    @property
    def rates(self) -> list[Tensor]:
        return [group.rate for group in self._groups if group.rate is not None]

    @property
    def state(self) -> list[Tensor]:
        """The moments, which steps update in place; empty before the first step, and for SGD without momentum."""
        return [moment for group in self._groups for moment in (*group.first_moments, *group.second_moments)]

    def kind_of_step(self, number: int) -> Hashable:
        """Return a key that steps share which all find moments, or need none. `number` counts from 1."""
        return self._is_plain_sgd or number > 1

    def numbers_of_steps(self, first: int, steps: int) -> list[float]:
        """Return the numbers in some steps, from the step `first` on, that depend on how many came before."""
        if not self._has_numbers:
            return []
        return [
            number
            for step in range(first, first + steps)
            for group in self._groups
            if group.spec.name == "adam"
            for number in group.corrections(step)
        ]

    def read_numbers(self, numbers: Tensor) -> None:
        """Let steps read `numbers_of_steps` from the device, because a captured step would repeat the host's."""
        pairs = iter(numbers.view(-1, 2))
        for group in self._groups:
            group.numbers = next(pairs) if group.spec.name == "adam" else None

    def advance(self, steps: int, state: Sequence[Tensor], layout: object = None) -> None:
        """Count steps that were taken elsewhere on the same tensors, and take over the state after them."""
        self.steps += steps
        tensors = iter(state)
        for group in self._groups if state else ():
            if group.spec.name == "adam" or group.spec.momentum:
                group.first_moments = list(islice(tensors, len(group.indices)))
            if group.spec.name == "adam":
                group.second_moments = list(islice(tensors, len(group.indices)))

    def separate(self, parameters: Sequence[Tensor] | None = None) -> "Optimizer":
        """Return an optimiser of `parameters` with the rates and new moments: -0.0 for SGD, which changes no bit."""
        separate = copy.copy(self)
        separate.parameters = self.parameters if parameters is None else list(parameters)
        separate._groups = []
        for group in self._groups:
            rate, adam = None if group.rate is None else group.rate.clone(), group.spec.name == "adam"
            own = [separate.parameters[i] for i in group.indices if adam or group.spec.momentum]
            first = [torch.full_like(parameter, 0.0 if adam else -0.0) for parameter in own]
            second = [torch.zeros_like(parameter) for parameter in own if adam]
            separate._groups.append(replace(group, rate=rate, first_moments=first, second_moments=second))
        return separate

    def sharing(self) -> "Optimizer":
        """Return an optimiser that shares parameters, rates and moments with this one, until it is narrowed."""
        sharing = copy.copy(self)
        sharing._groups = [replace(group) for group in self._groups]
        return sharing

    def narrow(self, parameters: Sequence[Tensor]) -> None:
        """Continue with `parameters`, the first rows of the present ones: the clients that still train in a stack."""
        self.parameters = list(parameters)
        for group in self._groups:
            remaining = [self.parameters[index] for index in group.indices]
            # Before the first step there are no moments, so the lists may differ in length.
            group.first_moments = [m[: len(p)] for m, p in zip(group.first_moments, remaining, strict=False)]
            group.second_moments = [m[: len(p)] for m, p in zip(group.second_moments, remaining, strict=False)]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update the parameters. `gradients`, in their order, may be overwritten."""
        self.steps += 1
        single = len(self._groups) == 1
        for group in self._groups:
            parameters = self.parameters if single else [self.parameters[index] for index in group.indices]
            grads = list(gradients) if single else [gradients[index] for index in group.indices]
            if group.spec.weight_decay:
                grads = list(torch._foreach_add(grads, parameters, alpha=group.spec.weight_decay))
            (_sgd if group.spec.name == "sgd" else self._adam)(group, parameters, grads)

    def _adam(self, group: _Group, parameters: list[Tensor], grads: list[Tensor]) -> None:
        beta1, beta2 = group.spec.betas
        if not group.first_moments:
            group.first_moments = [torch.zeros_like(g) for g in grads]
            group.second_moments = [torch.zeros_like(g) for g in grads]
        torch._foreach_lerp_(group.first_moments, grads, 1 - beta1)
        torch._foreach_mul_(group.second_moments, beta2)
        torch._foreach_addcmul_(group.second_moments, grads, grads, 1 - beta2)
        scale = torch._foreach_sqrt(group.second_moments)
        # in the order of torch.optim, because another order rounds differently
        divisor, step_size = group.operands(self.steps, parameters[0].device)
        torch._foreach_div_(scale, divisor)
        torch._foreach_add_(scale, group.spec.eps)
        if group.rate is not None:
            _move(parameters, torch._foreach_div(group.first_moments, scale), group.rate / step_size)
        elif isinstance(step_size, Tensor):
            directions = torch._foreach_mul(group.first_moments, step_size)  # the roundings of addcdiv on a CPU
            torch._foreach_add_(parameters, torch._foreach_div(directions, scale))
        else:
            # The step size is negative here, because addcdiv adds.
            torch._foreach_addcdiv_(parameters, group.first_moments, scale, step_size)


def _sgd(group: _Group, parameters: list[Tensor], grads: list[Tensor]) -> None:
    if group.spec.momentum:
        if not group.first_moments:
            # A copy, because later steps add to it in place.
            group.first_moments = [g.clone() for g in grads]
        else:
            torch._foreach_mul_(group.first_moments, group.spec.momentum)
            torch._foreach_add_(group.first_moments, grads)
        grads = group.first_moments
    if group.rate is None:
        torch._foreach_add_(parameters, grads, alpha=-group.spec.lr)
    else:
        _move(parameters, grads, group.rate)


def _move(parameters: list[Tensor], directions: list[Tensor] | tuple[Tensor, ...], rate: Tensor) -> None:
    """Subtract rate * directions from the parameters, for a rate that is a tensor []."""
    torch._foreach_sub_(parameters, torch._foreach_mul(directions, rate))


@contextlib.contextmanager
def moved(loaded_net: LoadedNet, trainable: Tree, moves: Tree) -> Iterator[None]:
    """Move a net's parameters by `moves` in the block; then `trainable` and all buffers are as before, bit for bit."""
    tensors = [*loaded_net.buffers(), *(trainable[name] for name in moves)]
    with torch.no_grad():
        values = [tensor.clone() for tensor in tensors]
        for name, move in moves.items():
            trainable[name].add_(move)
    yield
    loaded_net.restore_buffers()
    with torch.no_grad():
        if tensors:
            torch._foreach_copy_(tensors, values)
