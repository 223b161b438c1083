"""Local optimisers over lists of tensors, in place. Same arithmetic as `torch.optim`, without its per-step overhead."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

import torch
from torch import Tensor

from fedloom.methods.phases import OptimizerSpec


class Optimizer:
    """Updates `parameters` in place from gradients given to `step`. State lives as long as the object."""

    def __init__(self, spec: OptimizerSpec, parameters: Sequence[Tensor]) -> None:
        self.spec, self.parameters, self.steps = spec, list(parameters), 0
        self._first: list[Tensor] = []
        self._second: list[Tensor] = []

    @property
    def state(self) -> list[Tensor]:
        """Momenta and the like, in place; none before the first step, and with plain SGD."""
        return [*self._first, *self._second]

    @property
    def key(self) -> Hashable:
        """What the arithmetic of the next step depends on, beside tensors."""
        return self.spec, self.steps if self.spec.name == "adam" else bool(self._first)

    def remaking(self) -> Remaking:
        """Makes optimisers for other parameters at today's step, their state the next tensors given."""
        steps, first, second = self.steps, len(self._first), len(self._second)

        def made(parameters: Sequence[Tensor], given: Iterator[Tensor]) -> Optimizer:
            other = Optimizer(self.spec, parameters)
            other.steps = steps
            other._first, other._second = list(islice(given, first)), list(islice(given, second))
            return other

        return made

    def advance(self, steps: int, began: Sequence[Tensor]) -> None:
        """Steps that were taken elsewhere, on the same tensors; `began`: the state, if they made it."""
        self.steps += steps
        if began:
            count = len(self.parameters)
            self._first, self._second = list(began[:count]), list(began[count:])

    def narrow(self, parameters: Sequence[Tensor]) -> None:
        """Go on with `parameters`, which are first rows of those so far (clients in a stack)."""
        self.parameters = list(parameters)
        self._first = [m[: len(p)] for m, p in zip(self._first, parameters, strict=False)]
        self._second = [m[: len(p)] for m, p in zip(self._second, parameters, strict=False)]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """One update. `gradients` are in the order of the parameters and may be consumed."""
        spec, grads = self.spec, list(gradients)
        self.steps += 1
        if spec.weight_decay:
            grads = list(torch._foreach_add(grads, self.parameters, alpha=spec.weight_decay))
        if spec.name == "sgd":
            self._sgd(grads)
        else:
            self._adam(grads)

    def _sgd(self, grads: list[Tensor]) -> None:
        if self.spec.momentum:
            if not self._first:
                self._first = [g.clone() for g in grads]
            else:
                torch._foreach_mul_(self._first, self.spec.momentum)
                torch._foreach_add_(self._first, grads)
            grads = self._first
        torch._foreach_add_(self.parameters, grads, alpha=-self.spec.lr)

    def _adam(self, grads: list[Tensor]) -> None:
        (beta1, beta2), lr = self.spec.betas, self.spec.lr
        if not self._first:
            self._first = [torch.zeros_like(g) for g in grads]
            self._second = [torch.zeros_like(g) for g in grads]
        torch._foreach_lerp_(self._first, grads, 1 - beta1)
        torch._foreach_mul_(self._second, beta2)
        torch._foreach_addcmul_(self._second, grads, grads, 1 - beta2)
        scale = torch._foreach_sqrt(self._second)
        torch._foreach_div_(scale, (1 - beta2**self.steps) ** 0.5)
        torch._foreach_add_(scale, self.spec.eps)
        torch._foreach_addcdiv_(self.parameters, self._first, scale, -lr / (1 - beta1**self.steps))


Remaking: TypeAlias = Callable[[Sequence[Tensor], Iterator[Tensor]], Optimizer]
