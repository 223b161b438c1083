"""Feature skew by a fixed change of every client's images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.skews.pixels import change_samples, full_range, require_images
from fedloom.data.skews.skew import Skew, skew
from fedloom.data.views import Indices

Name = Literal["none", "rotate90", "rotate180", "rotate270", "invert", "contrast", "blur"]
_AT_ONCE = 4096


@skew("transforms")
class Transforms(Skew):
    """Feature skew without other data: client k sees all its images, training and test, through one fixed transform.

    rotate90, rotate180, rotate270: by quarter turns, counter-clockwise (images must be square); invert: black for
    white; contrast: half the distance to mid-grey; blur: mean of 3 x 3 pixels, edges repeated. White is the largest
    training value. Bytes stay bytes, rounded. Nothing is drawn.

        skews: [{name: transforms, of: [none, rotate90, invert]}]
    """

    of: tuple[Name, ...] = Field(
        ("none", "rotate90", "rotate180", "rotate270"),
        min_length=1,
        description="List of transforms; client k has number k mod the length of the list.",
        examples=[["none", "rotate90", "invert"]],
    )

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        require_images(self.kind, scenario.train_set)
        height, width = scenario.train_set.input_shape[1:]
        if height != width and {"rotate90", "rotate270"} & {*self.of}:
            raise ConfigError(f"skew transforms: a quarter turn needs square images, these are {height} x {width}")
        white = full_range(self.kind, scenario.train_set)
        return change_samples(self.kind, scenario, lambda data, owner: self._seen(data, owner, white))

    def _seen(self, data: Dataset, owner: Indices, white: float) -> Tensor:
        result = data.x.clone()
        for number, name in enumerate(self.of):
            rows = torch.from_numpy(np.flatnonzero((owner >= 0) & (owner % len(self.of) == number)))
            for chunk in torch.split(rows, _AT_ONCE) if name != "none" else ():
                images = _CHANGES[name](data.x[chunk].to(torch.float32), white)
                result[chunk] = (images if result.is_floating_point() else images.round_()).to(result.dtype)
        return result


def _blur(x: Tensor, white: float) -> Tensor:
    return avg_pool2d(pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)


_CHANGES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "rotate90": lambda x, white: torch.rot90(x, 1, (2, 3)),
    "rotate180": lambda x, white: torch.rot90(x, 2, (2, 3)),
    "rotate270": lambda x, white: torch.rot90(x, 3, (2, 3)),
    "invert": lambda x, white: white - x,
    "contrast": lambda x, white: (x + white / 2) / 2,
    "blur": _blur,
}
