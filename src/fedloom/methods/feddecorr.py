"""FedDecorr, and its term as a wrapper of other methods: `fedprox+decorr`."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.fedavg import FedAvg

_WORD = "decorr"


class Decorr(fm.Method):
    """The term of FedDecorr over a base whose loss computes the features of a batch with one net."""

    class Options(fm.Options):
        beta: float = fm.option(0.1, "Weight of the term. With 0 it is the method without it.", ge=0)
        form: Literal["code", "paper"] = fm.option(
            "code",
            "code: mean of the squared correlations off the diagonal, times the batch size. paper: squared Frobenius "
            "norm of the correlations over d^2, with the diagonal.",
        )

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        self.decorr = fm.names_of(self, _WORD).options(Decorr.Options, self.options)
        if self.spec.nets:
            raise fm.ConfigError(f"{self.name()}: {_WORD} acts on the features of one net, and clients train several")
        if self.spec.unstackable is not None:
            raise fm.ConfigError(
                f"{self.name()}: {_WORD} needs one forward pass of a batch, and {self.spec.unstackable}"
            )
        if self.spec.views > 1:
            raise fm.ConfigError(f"{self.name()}: {_WORD} acts on one view of each sample, and the loss has two")
        self.spec = replace(self.spec, features=True)

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        with features_of(net) as features:
            base = super().loss(net, batch, consts)
        if not isinstance(base, fm.Objective):
            base = fm.Objective.sum({"ce": base})
        z = features[0] if features else net.features(batch.x)
        term = self.decorr.beta * correlation(z, batch, self.decorr.form)
        return fm.Objective(base.total + term, {**base.terms, "decorr": term}, base.taps)


@fm.register
class FedDecorr(Decorr, FedAvg):
    """FedDecorr: features without correlation do not collapse. Shi et al., ICLR 2023, arXiv 2210.00226.

    Local: CE + beta T(z). X = (z - mean) / sqrt(var + 1e-8) over the batch, var unbiased; M = X' X; T is the mean of
    the squared entries of M off its diagonal, over B. `form="paper"`: |M / B|_F^2 / d^2. A batch of one sample has no
    term. T grows with the batch, the paper's form does not."""


@contextlib.contextmanager
def features_of(net: fm.Net) -> Iterator[list[Tensor]]:
    """Record the features [B, d] that the net computes in this block, so that they are not computed twice."""
    found, features = list[Tensor](), net.features

    def noting(x: Tensor) -> Tensor:
        found.append(features(x))
        return found[-1]

    net.features = noting  # type: ignore[method-assign]
    try:
        yield found
    finally:
        del net.features


def correlation(z: Tensor, batch: fm.Batch, form: Literal["code", "paper"] = "code") -> Tensor:
    """Return how much the dimensions of features z [B, d] correlate over a `batch`, a scalar; 0 for one sample."""
    counted = torch.ones(len(z), dtype=torch.bool, device=z.device) if batch.mask is None else batch.mask
    samples, width = counted.sum(), z.shape[1]
    # padding rows of stacked batches are no samples
    centred = torch.where(counted.unsqueeze(1), z - batch.mean(z), 0.0)
    variances = centred.square().sum(0) / (samples - 1).clamp(min=1)
    standardised = centred / (variances + 1e-8).sqrt()
    products = standardised.T @ standardised
    if form == "paper":
        term = (products / samples.clamp(min=1)).square().sum() / width**2
    else:
        others = 1 - torch.eye(width, dtype=z.dtype, device=z.device)
        term = (products * others).square().sum() / max(1, width * (width - 1)) / samples.clamp(min=1)
    return torch.where(samples > 1, term, 0.0)


@fm.WRAPPERS.register(_WORD)
def with_decorr(base: type[fm.Method]) -> type[fm.Method]:
    """`base` with the term of FedDecorr; its options have `decorr_` in front."""
    if issubclass(base, Decorr):
        raise fm.ConfigError(f"{base.name()} has the term of FedDecorr already: {_WORD} would add it again")
    return fm.wrapped(Decorr, base, _WORD, Decorr.Options, FedDecorr.presets)
