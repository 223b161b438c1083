"""Feature skew by angles: every client's images are turned by an angle of its own."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedloom.data.augment import rotate
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.skews.pixels import change_samples, require_images
from fedloom.data.skews.skew import Skew, skew
from fedloom.data.views import Indices

_AT_ONCE = 4096
_QUARTER = 90.0

Angle = Annotated[float, Field(ge=-360, le=360, allow_inf_nan=False)]


@skew("rotations")
class Rotations(Skew):
    """Client k sees all its images, training and test, turned counter-clockwise by angle number k mod their count.

    The default is rotated MNIST, six domains from 0 to 75 degrees (Ghifary et al., ICCV 2015, arXiv 1508.07680); IFCA
    takes 0, 90, 180 and 270 (Ghosh et al. 2020). Quarter turns of square images move pixels; other angles are bilinear,
    with zeros outside the image. Bytes stay bytes, rounded. Nothing is drawn.

        skews: [{name: rotations, angles: [0, 15, 30, 45, 60, 75]}]
    """

    angles: tuple[Angle, ...] = Field(
        (0.0, 15.0, 30.0, 45.0, 60.0, 75.0),
        min_length=1,
        description="List of angles in degrees, counter-clockwise; client k has number k mod the length of the list.",
        examples=[[0, 90, 180, 270]],
    )

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        require_images(self.kind, scenario.train_set)
        return change_samples(self.kind, scenario, self._seen)

    def _seen(self, data: Dataset, owner: Indices) -> Tensor:
        result = data.x.clone()
        for number, angle in enumerate(self.angles):
            rows = torch.from_numpy(np.flatnonzero((owner >= 0) & (owner % len(self.angles) == number)))
            for chunk in torch.split(rows, _AT_ONCE) if angle % 360 else ():
                images = _turned(data.x[chunk].to(torch.float32), angle)
                result[chunk] = (images if result.is_floating_point() else images.round_()).to(result.dtype)
        return result


def _turned(x: Tensor, angle: float) -> Tensor:
    """Return images [n, c, h, w] turned counter-clockwise; quarter turns of square ones without interpolation."""
    if angle % _QUARTER == 0 and (x.shape[2] == x.shape[3] or angle % 180 == 0):
        return torch.rot90(x, int(angle // _QUARTER), (2, 3))
    return rotate(x, np.full(len(x), angle))
