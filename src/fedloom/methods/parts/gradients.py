"""Gradients that are changed before a step, or computed beside autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from fedloom.core.trees import Tree
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.phases import Consts
from fedloom.nets.net import Net


def clipped(norm: float) -> Callable[[Tree, Tree, Consts], Tree]:
    """Scale all gradients down together so that their joint 2-norm is at most `norm`; smaller ones stay.

    Example:
        >>> clipped(1.0)({"w": torch.tensor([3.0, 4.0])}, {}, {})
        {'w': tensor([0.6000, 0.8000])}
    """

    def clip(gradients: Tree, parameters: Tree, consts: Consts) -> Tree:
        total = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
        scale = (norm / total.clamp(min=1e-12)).clamp(max=1.0)
        return {name: gradient * scale for name, gradient in gradients.items()}

    return clip


def gradients_at(net: Net, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tree:
    """Return the gradients by name of the mean cross-entropy at `weights`, detached.

    Args:
        net: the net, evaluated as a function of its weights.
        weights: parameters by name.
        x: inputs [B, ...].
        y: labels [B], int64.
    """
    leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    ce = cross_entropy(functional_call(net, leaves, (x,)), y).mean()
    return dict(zip(leaves, torch.autograd.grad(ce, list(leaves.values())), strict=True))


def zero_with_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return 0 [], a term of a loss whose gradients by `parameters` are `gradients`.

    Example:
        >>> weight = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> torch.autograd.grad(zero_with_gradients([weight], [torch.tensor([0.5, 3.0])]), weight)
        (tensor([0.5000, 3.0000]),)
    """
    zero: Tensor = _ZeroWithGradients.apply(*parameters, *gradients)  # type: ignore[no-untyped-call]
    return zero


class _ZeroWithGradients(torch.autograd.Function):
    """The first half of the inputs are parameters, the second half their gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Tensor) -> Tensor:
        return inputs[0].new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[len(inputs) // 2 :])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        return *(gradient * upstream for gradient in gradients), *(None,) * len(gradients)
