"""Inputs and members that an upload tells, by inverting layers, gradients or features, and by comparing losses.

An attack that fails proves nothing: a better one may succeed.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedloom.core.errors import ConfigError
from fedloom.core.trees import Tree
from fedloom.nets.net import Net


def inputs_of_linear_layer(weight_change: Tensor, bias_change: Tensor) -> Tensor:
    """Return a candidate input [d] for each unit of a linear layer, [h, d], from its gradient or change.

    The gradient by the weights of a unit is a sum of inputs, each times the gradient by the unit's output, and that by
    its bias is the sum of these factors. Their ratio is a weighted mean of the batch's inputs: exactly the input if one
    sample alone moves the unit (Phong et al. 2018, IEEE TIFS 13; Geiping et al. 2020, arXiv 2003.14053, Proposition
    3.1). Units that did not move are left out.

    weight_change: [h, d]. bias_change: [h].

    Example:
        >>> inputs_of_linear_layer(torch.tensor([[0.5, -1.0], [0.0, 0.0]]), torch.tensor([0.5, 0.0]))
        tensor([[ 1., -2.]], dtype=torch.float64)
    """
    moved = bias_change.double().abs() > 1e-12
    return weight_change.double()[moved] / bias_change.double()[moved].unsqueeze(1)


def invert_gradient(
    net: Net, tree: Tree, gradient: Tree, y: Tensor, shape: Sequence[int], *, rng: np.random.Generator, steps: int = 300
) -> Tensor:
    """Search for a batch [B, *shape] whose gradient points as the given one: Geiping et al. 2020, after DLG.

    Zhu et al. 2019 (DLG, arXiv 1906.08935) minimise the squared distance of the gradients with L-BFGS; the cosine
    distance and Adam need no restarts on nets with ReLU. The labels are known, which favours the attacker.

    net: the network. tree: the weights at which the gradient was taken. gradient: gradient of mean cross-entropy, or a
    multiple of it, by name; entries that were not sent are left out. y: the labels [B], int64. shape: shape of one
    input. rng: the source of the first guess. steps: steps of Adam.

    Raises `ConfigError` if the gradient has no parameter of the net.
    """
    names = [name for name, _ in net.named_parameters() if name in gradient]
    if not names:
        raise ConfigError(f"a gradient of {', '.join(sorted(gradient)) or 'nothing'}: no parameter of the net is in it")
    target = torch.cat([gradient[name].double().flatten() for name in names])

    def distance(x: Tensor) -> Tensor:
        leaves = {name: tree[name].detach().requires_grad_() for name in names}  # in the order of `target`
        loss = cross_entropy(net.functional.logits(tree | leaves, x), y)
        gradient = torch.cat(
            [part.flatten().double() for part in torch.autograd.grad(loss, list(leaves.values()), create_graph=True)]
        )
        cosine: Tensor = (gradient @ target) / (gradient.norm() * target.norm()).clamp(min=1e-12)
        return 1 - cosine

    return _minimised(distance, (len(y), *shape), rng, steps)


def invert_features(
    net: Net, tree: Tree, features: Tensor, shape: Sequence[int], *, rng: np.random.Generator, steps: int = 300
) -> Tensor:
    """Search for inputs [k, *shape] whose features are the given rows: an inversion of class prototypes.

    net: the network. tree: its weights, as far as the attacker knows them. features: rows [k, d], as clients send them.
    shape: shape of one input. rng: the source of the first guess. steps: steps of Adam.
    """
    target = features.detach()

    def distance(x: Tensor) -> Tensor:
        return (net.functional.features(tree, x) - target).square().mean(1).sum()

    return _minimised(distance, (len(features), *shape), rng, steps)


def psnr(guess: Tensor, truth: Tensor, peak: float) -> float:
    """Return the peak signal-to-noise ratio in decibels: inf if both are equal, -inf for a guess with inf or NaN.

    guess: an input, of any shape. truth: another of the same shape. peak: largest minus smallest value that an input
    may have.
    """
    error = float((guess.double() - truth.double()).square().mean())
    if not math.isfinite(error):  # a search that diverged has found nothing
        return -math.inf
    return 10 * math.log10(peak**2 / error) if error > 0 else math.inf


def best_psnr(candidates: Tensor, truth: Tensor, peak: float) -> float:
    """Return the mean over true inputs [B, ...] of the PSNR of the nearest candidate [k, ...], at most 99 dB each.

    candidates: [k, ...]. truth: [B, ...]. peak: largest minus smallest value that an input may have.
    """
    ratios = [max(psnr(guess.reshape(image.shape), image, peak) for guess in candidates) for image in truth]
    return float(np.mean(np.minimum(ratios, 99.0)))


def _minimised(
    distance: Callable[[Tensor], Tensor], shape: tuple[int, ...], rng: np.random.Generator, steps: int
) -> Tensor:
    """Return the x of this shape that Adam reaches from noise, by the distance's gradient."""
    x = torch.from_numpy(rng.standard_normal(shape)).float().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 - step / steps)
        optimizer.zero_grad()
        (x.grad,) = torch.autograd.grad(distance(x), [x])
        optimizer.step()
    return x.detach()


def losses_of(net: Net, tree: Tree, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each sample [n] under the weights `tree`, in evaluation mode.

    net: the network. tree: its weights. x: inputs [n, ...]. y: labels [n], int64.
    """
    with torch.no_grad():
        return cross_entropy(net.functional.logits(tree, x), y, reduction="none").double()


def membership_auc(members: Tensor, others: Tensor) -> float:
    """Return the area under the curve of "a low loss means a member": 0.5 tells nothing, 1 tells all.

    It is the probability that a member's loss is below another sample's, ties by half. No threshold is chosen.

    members: losses of training samples [n]. others: losses of samples that were not trained on [k].

    Raises `ConfigError` if there is none of either.

    Example:
        >>> membership_auc(torch.tensor([0.1, 0.4]), torch.tensor([0.3, 0.5]))
        0.75
    """
    if not len(members) or not len(others):
        raise ConfigError(f"{len(members)} members and {len(others)} others: an area under a curve needs both")
    ordered = torch.nan_to_num(others.double(), nan=torch.inf).sort().values
    losses = torch.nan_to_num(members.double(), nan=torch.inf)
    above = len(ordered) - torch.searchsorted(ordered, losses, right=True)
    equal = torch.searchsorted(ordered, losses, right=True) - torch.searchsorted(ordered, losses)
    return float((above + 0.5 * equal).mean() / len(ordered))
