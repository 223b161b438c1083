"""Clients that use part of their data, classes with a long tail, and noise on pixels and labels."""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.partition import shuffled_classes
from fedloom.data.scenario import Scenario
from fedloom.data.skews.skew import Skew, change_samples, full_range, require_images, skew
from fedloom.data.views import Indices, hold_out


@skew("ratio")
class Ratio(Skew):
    """Data ratio: each client trains on a random part of its training samples; validation and test stay.

    Fed-CO2's Fig. 6 is base 743.8 and ratio 0.2, 0.4, 0.6, 1 or 2, over clients that hold 1,487 images or more. At one
    seed, smaller ratios keep a subset of larger ones.

        skews: [{name: ratio, ratio: 0.4, base: 743.8}]"""

    ratio: float | tuple[float, ...] = Field(examples=[0.4])
    base: float | None = Field(None, gt=0, allow_inf_nan=False, examples=[743.8])

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        ratios, sizes = per_client("ratio", self.ratio, scenario.clients), scenario.train.sizes
        if not (ratios > 0).all() or (self.base is None and (ratios > 1).any()):
            raise ConfigError(f"skew ratio: ratio = {self.ratio}; need above 0, and up to 1 unless base is given")
        kept_counts = np.floor(ratios * (sizes if self.base is None else self.base))
        too_small = np.flatnonzero(kept_counts > sizes)
        if len(too_small):
            raise ConfigError(
                f"skew ratio: client {too_small[0]} is to keep {kept_counts[too_small[0]]:.0f} training samples and "
                f"has {sizes[too_small[0]]}; lower ratio or base"
            )
        # half a sample more, so that the floor of the product cannot fall short of the whole number
        shares = np.divide(kept_counts + 0.5, sizes, out=np.zeros(len(sizes)), where=sizes > 0)
        return replace(scenario, train=hold_out(scenario.train, shares, rng)[1])


def per_client(key: str, value: float | tuple[float, ...], clients: int) -> np.ndarray:
    """Return one number per client [clients] from a value for all or a list of values. Raises `ConfigError`, with the
    key, for a list of another length."""
    values = np.full(clients, value) if isinstance(value, float) else np.array(value)
    if len(values) != clients:
        raise ConfigError(f"skew: {key} lists {len(values)} numbers for {clients} clients; need one, or one per client")
    return values


@skew("long-tail")
class LongTail(Skew, allow_inf_nan=False):
    """Exponential long tail over all clients, before the partition; the test set stays as it is.

    Class j of 0 .. C-1 keeps n_j = floor(n_max (1 / rho)^(j / (C - 1))) random training samples, n_max = n / C, or all
    it has if it has fewer. Cao et al. 2019 (arXiv 1906.07413), as in the released code of FedSKC and FedSC, where the
    config key is 1 / rho.

    Example:
        >>> tail_counts(50_000 / 10, 10, rho=100)
        array([5000, 2997, 1796, 1077,  645,  387,  232,  139,   83,   50])
    """

    rho: float = Field(ge=1, examples=[100])

    def thin(self, train: Dataset, rows: Indices, rng: np.random.Generator) -> Indices:
        train.require_one_class(f"skew {self.kind}")
        classes = train.num_classes
        if classes < 2:
            raise ConfigError("skew long-tail: needs 2 classes or more, the source has 1")
        counts = tail_counts(len(rows) / classes, classes, self.rho)
        if counts.min() < 1:
            raise ConfigError(
                f"skew long-tail: rho = {self.rho:g} leaves class {counts.argmin()} without a sample: n / C = "
                f"{len(rows) / classes:g}; lower rho"
            )
        members = zip(shuffled_classes(train.y.numpy()[rows], classes, rng), counts, strict=True)
        return np.sort(rows[np.concatenate([class_rows[:count] for class_rows, count in members])])


def tail_counts(largest: float, classes: int, rho: float) -> Indices:
    """Samples per class [C]: floor(largest (1 / rho)^(j / (C - 1)))."""
    # In the form of Cao et al.'s code, because another order of the products rounds to other counts.
    return np.array([int(largest * (1 / rho) ** (j / (classes - 1))) for j in range(classes)], np.int64)


_AT_ONCE = 1024


@skew("noise")
class Noise(Skew, allow_inf_nan=False):
    """Gaussian noise on all images of client i, of standard deviation sigma_i = sigma i / (N - 1): client 0 has none.

    Fed-CO2, Fig. 5 (10 clients, sigma 0, 5, 10, 15, 20). Drawn once per image, from a stream that does not depend on
    who holds it; the same for all methods, in training, validation and test views.

        skews: [{name: noise, sigma: 15}]"""

    sigma: float = Field(ge=0, examples=[15])
    noise_space: Literal["pixel", "normalised-clamped"] = "pixel"
    rounded: bool = False

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        require_images(self.kind, scenario.train_set)
        if scenario.clients < 2:
            raise ConfigError("skew noise: sigma rises from client to client; need 2 clients or more")
        if self.rounded and (self.noise_space != "pixel" or scenario.train_set.x.dtype != torch.uint8):
            raise ConfigError("skew noise: rounded=true keeps bytes; need noise_space=pixel and images stored as bytes")
        sigmas = client_sigmas(self.sigma, scenario.clients)
        white = full_range(self.kind, scenario.train_set) if self.noise_space == "pixel" else 0.0
        return change_samples(self.kind, scenario, lambda data, owner: self._noisy(data, owner, sigmas, white, rng))

    def _noisy(
        self, data: Dataset, owner: Indices, sigmas: np.ndarray, white: float, rng: np.random.Generator
    ) -> Tensor:
        sample_sigmas = torch.from_numpy(np.where(owner >= 0, sigmas[owner], 0.0).astype(np.float32)).view(-1, 1, 1, 1)
        is_held = torch.from_numpy(owner >= 0)
        result = torch.empty(data.x.shape, dtype=torch.uint8 if self.rounded else torch.float32)
        shape = (1, -1, 1, 1)
        for start in range(0, len(data), _AT_ONCE):
            chunk = slice(start, start + _AT_ONCE)
            clean = data.x[chunk].to(torch.float32)
            # every image draws, held or not: its noise depends on its place and the seed alone
            noise = torch.from_numpy(rng.standard_normal(tuple(clean.shape), dtype=np.float32)) * sample_sigmas[chunk]
            if self.noise_space == "pixel":
                noisy = (clean + noise * (white / 255)).clamp_(0, white)
            elif data.mean is not None and data.std is not None:
                mean, std = data.mean.view(shape), data.std.view(shape)
                noisy = ((clean - mean) / std + noise).clamp_(0, 255) * std + mean
            else:
                noisy = (clean + noise).clamp_(0, 255)
            noisy = torch.where(is_held[chunk].view(-1, 1, 1, 1), noisy, clean)
            result[chunk] = noisy.round_().to(torch.uint8) if self.rounded else noisy
        return result


def client_sigmas(largest: float, clients: int) -> np.ndarray:
    """sigma_i [N] = largest * i / (N - 1)."""
    return largest * np.arange(clients) / (clients - 1)


@skew("label-noise")
class LabelNoise(Skew):
    """Symmetric label noise: floor(share n_k) random training samples of each client get a uniformly drawn
    wrong class.

    Validation and test labels stay true. Noise is added after the partition: label skew follows the true labels, and
    class counts show the noisy ones that clients see.

        skews: [{name: label-noise, share: 0.2}]"""

    share: float | tuple[float, ...] = Field(examples=[0.2])

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        scenario.train_set.require_one_class(f"skew {self.kind}")
        shares, classes = per_client("share", self.share, scenario.clients), scenario.num_classes
        if not ((shares >= 0) & (shares <= 1)).all():
            raise ConfigError(f"skew label-noise: share = {self.share}; need numbers in [0, 1]")
        if classes < 2:
            raise ConfigError("skew label-noise: needs 2 classes or more, the source has 1")
        wrong = hold_out(scenario.train, shares, rng)[1].order
        labels = scenario.train_set.y.numpy().copy()
        # One to C - 1 steps around the classes reach each wrong class with equal chance, and never the true one.
        labels[wrong] = (labels[wrong] + rng.integers(1, classes, len(wrong))) % classes
        return replace(scenario, train_set=replace(scenario.train_set, y=torch.from_numpy(labels)))
