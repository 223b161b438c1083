"""Local optimisers over lists of tensors, in place. Same arithmetic as `torch.optim`, without its per-step overhead."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

import torch
from torch import Tensor

from fedloom.methods.contract.phases import OptimizerSpec


@dataclass(slots=True)
class _Group:
    """Parameters at `places` that share a spec; their momenta, or their first and second moments.

    rate: the learning rate as a tensor [], where it changes from round to round: what is made once must hold in all.
    """

    spec: OptimizerSpec
    places: list[int]
    rate: Tensor | None
    first: list[Tensor] = field(default_factory=list)
    second: list[Tensor] = field(default_factory=list)


class Optimizer:
    """Updates `parameters` in place from gradients given to `step`. State lives as long as the object.

    specs: one for all parameters, or one for each. round_: the round, by which learning rates decay.
    """

    def __init__(
        self, specs: OptimizerSpec | Sequence[OptimizerSpec], parameters: Sequence[Tensor], round_: int = 1
    ) -> None:
        self.parameters, self.steps = list(parameters), 0
        each = [specs] * len(self.parameters) if isinstance(specs, OptimizerSpec) else specs
        self._groups: list[_Group] = []
        for spec in dict.fromkeys(each):
            device = self.parameters[0].device
            rate = torch.tensor(spec.lr_in(round_), dtype=torch.float64, device=device) if spec.decay != 1 else None
            self._groups.append(_Group(spec, [place for place, own in enumerate(each) if own == spec], rate))

        self._specs = tuple((group.spec, tuple(group.places)) for group in self._groups)
        self._plain = all(spec.name == "sgd" and not spec.momentum for spec, _ in self._specs)

    @property
    def rates(self) -> list[Tensor]:
        """Learning rates that are tensors."""
        return [group.rate for group in self._groups if group.rate is not None]

    @property
    def state(self) -> list[Tensor]:
        """Momenta and the like, in place; none before the first step, and with plain SGD."""
        return [moment for group in self._groups for moment in (*group.first, *group.second)]

    @property
    def key(self) -> Hashable:
        """What the arithmetic of the next step depends on, beside tensors."""
        if self._plain:  # the same in every step
            return self._specs
        adam = any(group.spec.name == "adam" for group in self._groups)
        return self._specs, bool(self.state), self.steps if adam else 0

    def remaking(self) -> Remaking:
        """Makes optimisers for other parameters at today's step; rates, then state, are the next tensors given."""
        steps = self.steps
        kinds = [(g.spec, g.places, g.rate is None, len(g.first), len(g.second)) for g in self._groups]

        def made(parameters: Sequence[Tensor], given: Iterator[Tensor]) -> Optimizer:
            other = Optimizer([], parameters)
            other.steps = steps
            other._groups = [
                _Group(spec, places, None if constant else next(given)) for spec, places, constant, _, _ in kinds
            ]
            for group, (*_, first, second) in zip(other._groups, kinds, strict=True):
                group.first, group.second = list(islice(given, first)), list(islice(given, second))
            return other

        return made

    def advance(self, steps: int, began: Sequence[Tensor]) -> None:
        """Steps that were taken elsewhere, on the same tensors; `began`: the state, if they made it."""
        self.steps += steps
        given = iter(began)
        for group in self._groups if began else ():
            if group.spec.name == "adam" or group.spec.momentum:
                group.first = list(islice(given, len(group.places)))
            if group.spec.name == "adam":
                group.second = list(islice(given, len(group.places)))

    def narrow(self, parameters: Sequence[Tensor]) -> None:
        """Go on with `parameters`, which are first rows of those so far (clients in a stack)."""
        self.parameters = list(parameters)
        for group in self._groups:
            own = [self.parameters[place] for place in group.places]
            group.first = [m[: len(p)] for m, p in zip(group.first, own, strict=False)]
            group.second = [m[: len(p)] for m, p in zip(group.second, own, strict=False)]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """One update. `gradients` are in the order of the parameters and may be consumed."""
        self.steps += 1
        alone = len(self._groups) == 1
        for group in self._groups:
            parameters = self.parameters if alone else [self.parameters[place] for place in group.places]
            grads = list(gradients) if alone else [gradients[place] for place in group.places]
            if group.spec.weight_decay:
                grads = list(torch._foreach_add(grads, parameters, alpha=group.spec.weight_decay))
            (_sgd if group.spec.name == "sgd" else self._adam)(group, parameters, grads)

    def _adam(self, group: _Group, parameters: list[Tensor], grads: list[Tensor]) -> None:
        beta1, beta2 = group.spec.betas
        if not group.first:
            group.first = [torch.zeros_like(g) for g in grads]
            group.second = [torch.zeros_like(g) for g in grads]
        torch._foreach_lerp_(group.first, grads, 1 - beta1)
        torch._foreach_mul_(group.second, beta2)
        torch._foreach_addcmul_(group.second, grads, grads, 1 - beta2)
        scale = torch._foreach_sqrt(group.second)
        torch._foreach_div_(scale, (1 - beta2**self.steps) ** 0.5)
        torch._foreach_add_(scale, group.spec.eps)
        corrected = 1 - beta1**self.steps
        if group.rate is None:
            torch._foreach_addcdiv_(parameters, group.first, scale, -group.spec.lr / corrected)
        else:
            _move(parameters, torch._foreach_div(group.first, scale), group.rate / corrected)


def _sgd(group: _Group, parameters: list[Tensor], grads: list[Tensor]) -> None:
    if group.spec.momentum:
        if not group.first:
            group.first = [g.clone() for g in grads]
        else:
            torch._foreach_mul_(group.first, group.spec.momentum)
            torch._foreach_add_(group.first, grads)
        grads = group.first
    if group.rate is None:
        torch._foreach_add_(parameters, grads, alpha=-group.spec.lr)
    else:
        _move(parameters, grads, group.rate)


def _move(parameters: list[Tensor], directions: list[Tensor] | tuple[Tensor, ...], rate: Tensor) -> None:
    """parameters -= rate * directions, for a rate that is a tensor []."""
    torch._foreach_sub_(parameters, torch._foreach_mul(directions, rate))


Remaking: TypeAlias = Callable[[Sequence[Tensor], Iterator[Tensor]], Optimizer]
