"""Noise on pixels and on labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.skews.ratio import per_client
from fedloom.data.skews.skew import Skew, change_samples, full_range, require_images, skew
from fedloom.data.views import Indices, hold_out

_AT_ONCE = 1024


@skew("noise")
class Noise(Skew):
    """Gaussian noise on all images of client i, of standard deviation sigma_i = sigma i / (N - 1): client 0 has none.

    Fed-CO2, Fig. 5 (10 clients, sigma 0, 5, 10, 15, 20). Drawn once per image, from a stream that does not depend on
    who holds it; the same for all methods, in training, validation and test views.

        skews: [{name: noise, sigma: 15}]
    """

    sigma: float = Field(
        ge=0,
        allow_inf_nan=False,
        description="Standard deviation of the noise of the last client, in grey levels of 255.",
        examples=[15],
    )
    noise_space: Literal["pixel", "normalised-clamped"] = Field(
        "pixel",
        description="Scale of the noise. `pixel` adds sigma_i / 255 of the full range (0 to the largest training "
        "value) and clips to it, before normalisation. `normalised-clamped` adds sigma_i after normalisation and "
        "then clamps to [0, 255], which cuts every value below the mean: Fed-CO2's released code, but for its new "
        "draw at every access.",
    )
    rounded: bool = Field(
        False,
        description="Whether changed images are rounded to whole grey levels and stored as bytes; otherwise they "
        "are float32, which takes four times the memory.",
    )

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
    """Symmetric label noise: floor(share n_k) random training samples of each client get another class, all alike.

    Validation and test labels stay true. After the partition, so that label skew is that of the true labels; class
    counts show the labels that clients see.

        skews: [{name: label-noise, share: 0.2}]
    """

    share: float | tuple[float, ...] = Field(
        description="Share of a client's training samples that get a wrong label, from 0 to 1: one number, or one "
        "per client.",
        examples=[0.2],
    )

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        shares, classes = per_client("share", self.share, scenario.clients), scenario.num_classes
        if not ((shares >= 0) & (shares <= 1)).all():
            raise ConfigError(f"skew label-noise: share = {self.share}; need numbers in [0, 1]")
        if classes < 2:
            raise ConfigError("skew label-noise: needs 2 classes or more, the source has 1")
        wrong = hold_out(scenario.train, shares, rng)[1].order
        labels = scenario.train_set.y.numpy().copy()
        labels[wrong] = (labels[wrong] + rng.integers(1, classes, len(wrong))) % classes
        return replace(scenario, train_set=replace(scenario.train_set, y=torch.from_numpy(labels)))
