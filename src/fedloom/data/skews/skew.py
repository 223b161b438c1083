"""Skews: their base, and a fixed change of every client's samples by transforms, rotations or permutations."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from fedloom.core.errors import ConfigError
from fedloom.core.key_models import Keys
from fedloom.core.registry import Registry
from fedloom.core.streams import Streams
from fedloom.data.augment import rotate
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Indices

SKEWS: Registry[type["Skew"]] = Registry("skew", home="fedloom.data.skews")


class Skew(Keys, extra="forbid", frozen=True):
    """Base of all skews: its fields are its config keys. A skew works at one of two moments, or at both; each default
    changes nothing. Both are pure in their arguments, and no sample is ever copied per client: where pixels change, one
    changed copy of the whole array takes its place."""

    kind: ClassVar[str] = ""  # the name under which it is registered

    def thin(self, train: Dataset, rows: Indices, rng: np.random.Generator) -> Indices:
        """Return which of the training samples remain, ascending; called before the partition. rows: row numbers of
        samples of the training set [m], int64. rng: the skew's random stream."""
        return rows

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        """Return the scenario with other views or samples; called after partition and splits."""
        return scenario


skew = SKEWS.register  # `skew(name)` registers the decorated skew class under `name`


def derive_streams(skews: Sequence[Skew], streams: Streams) -> list[Streams]:
    """Return a root of randomness for each of the skews, from its name and how many of that name came before: a skew
    draws the same numbers whatever other skews are added or removed."""
    occurrences: Counter[str] = Counter()
    roots = []
    for skew in skews:
        roots.append(Streams(streams.key(f"skew/{skew.kind}", occurrences[skew.kind])))
        occurrences[skew.kind] += 1
    return roots


Change = Callable[[Dataset, Indices], Tensor]  # (data, owner [n], -1 for none) -> changed x [n, ...], or labels y [n]


def change_samples(name: str, scenario: Scenario, change: Change, part: Literal["x", "y"] = "x") -> Scenario:
    """Return the scenario with samples changed by their client; `change` returns the new samples x, or labels y if
    `part` says so. Raises `ConfigError`, with the skew's name, if a test sample has two clients."""
    # A training sample has one client at most (`Partition.deal`); test samples may have several.
    owner = np.full(len(scenario.train_set), -1, np.int64)
    for views in (scenario.train, scenario.val):
        owner[views.order] = views.holders()
    test_owner = scenario.test.owner_of(len(scenario.test_set))
    # `owner_of` names one client for each sample: fewer owners than entries mean that a sample is shared.
    if (test_owner >= 0).sum() < len(scenario.test.order):
        raise ConfigError(f"skew {name}: some test samples belong to several clients; they cannot look like each's")
    sets = ((scenario.train_set, owner), (scenario.test_set, test_owner))
    train, test = (replace(data, **{part: change(data, owners)}) for data, owners in sets)  # type: ignore[arg-type]
    return replace(scenario, train_set=train, test_set=test)


def require_images(name: str, data: Dataset) -> None:
    """Raise `ConfigError`, with the skew's name, unless data are images [c, h, w] of uint8 or float32."""
    if data.x.dim() != 4 or data.x.dtype not in (torch.uint8, torch.float32):
        kind = str(data.x.dtype).removeprefix("torch.")
        detail = f"samples here are {data.input_shape} of {kind}"
        raise ConfigError(f"skew {name}: needs images [channels, height, width] of uint8 or float32; {detail}")


def full_range(name: str, data: Dataset) -> float:
    """Return data's largest stored value, taken for white. Raises `ConfigError`, with name, for negative values."""
    if float(data.x.min()) < 0:
        raise ConfigError(f"skew {name}: needs pixels from 0 up; the smallest here is {float(data.x.min()):g}")
    return float(data.x.max()) or 1.0


Name = Literal["none", "rotate90", "rotate180", "rotate270", "invert", "contrast", "blur"]
_AT_ONCE = 4096


@skew("transforms")
class Transforms(Skew):
    """Feature skew without other data: client k sees all its images, training and test, through one fixed transform.

    rotate90, rotate180, rotate270: by quarter turns, counter-clockwise (images must be square); invert: black for
    white; contrast: half the distance to mid-grey; blur: mean of 3 x 3 pixels, edges repeated. White is the largest
    training value. Bytes stay bytes, rounded. Nothing is drawn.

        skews: [{name: transforms, of: [none, rotate90, invert]}]"""

    of: tuple[Name, ...] = Field(
        ("none", "rotate90", "rotate180", "rotate270"), min_length=1, examples=[["none", "rotate90", "invert"]]
    )

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        require_images(self.kind, scenario.train_set)
        height, width = scenario.train_set.input_shape[1:]
        if height != width and {"rotate90", "rotate270"} & {*self.of}:
            raise ConfigError(f"skew transforms: a quarter turn needs square images, these are {height} x {width}")
        white = full_range(self.kind, scenario.train_set)
        changes = [_CHANGES.get(name) for name in self.of]
        changes_of_white = [None if change is None else partial(change, white=white) for change in changes]
        return change_samples(self.kind, scenario, lambda data, owner: _seen(data, owner, changes_of_white))


def _seen(data: Dataset, owner: Indices, changes: Sequence[Callable[[Tensor], Tensor] | None]) -> Tensor:
    """Return the samples x as client k sees them, through change k mod their number; None leaves them as they are."""
    result = data.x.clone()
    for number, change in enumerate(changes):
        if change is None:
            continue
        for chunk in _rows(owner, number, len(changes)):
            images = change(data.x[chunk].to(torch.float32))
            result[chunk] = (images if result.is_floating_point() else images.round_()).to(result.dtype)
    return result


def _rows(owner: Indices, number: int, groups: int) -> list[Tensor]:
    """Return the samples of the clients k with k mod groups = number, in pieces: only one piece is held as floats."""
    rows = torch.from_numpy(np.flatnonzero((owner >= 0) & (owner % groups == number)))
    return [chunk for chunk in torch.split(rows, _AT_ONCE) if len(chunk)]  # clients may hold no samples at all


_CHANGES: dict[str, Callable[..., Tensor]] = {
    "rotate90": lambda x, white: torch.rot90(x, 1, (2, 3)),
    "rotate180": lambda x, white: torch.rot90(x, 2, (2, 3)),
    "rotate270": lambda x, white: torch.rot90(x, 3, (2, 3)),
    "invert": lambda x, white: white - x,
    "contrast": lambda x, white: (x + white / 2) / 2,
    "blur": lambda x, white: avg_pool2d(pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1),
}


Angle = Annotated[float, Field(ge=-360, le=360, allow_inf_nan=False)]


@skew("rotations")
class Rotations(Skew):
    """Client k sees all its images, training and test, turned counter-clockwise by angle number k mod their count.

    The default is rotated MNIST, six domains from 0 to 75 degrees (Ghifary et al., ICCV 2015, arXiv 1508.07680); IFCA
    takes 0, 90, 180 and 270 (Ghosh et al. 2020). Quarter turns of square images move pixels; other angles are bilinear,
    with zeros outside the image. Bytes stay bytes, rounded. Nothing is drawn.

        skews: [{name: rotations, angles: [0, 15, 30, 45, 60, 75]}]"""

    angles: tuple[Angle, ...] = Field((0.0, 15.0, 30.0, 45.0, 60.0, 75.0), min_length=1, examples=[[0, 90, 180, 270]])

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        require_images(self.kind, scenario.train_set)
        changes = [partial(_turned, angle=angle) if angle % 360 else None for angle in self.angles]
        return change_samples(self.kind, scenario, lambda data, owner: _seen(data, owner, changes))


def _turned(x: Tensor, angle: float) -> Tensor:
    """Return images [n, c, h, w] turned counter-clockwise; quarter turns of square ones without interpolation."""
    if angle % 90 == 0 and (x.shape[2] == x.shape[3] or angle % 180 == 0):
        return torch.rot90(x, int(angle // 90), (2, 3))
    return rotate(x, np.full(len(x), angle))


@skew("permutations")
class Permutations(Skew):
    """Client k gets permutation k mod `groups` of its labels or pixels, in training and test.

    Labels: a concept shift as in CFL's clusters (Sattler et al. 2020, arXiv 1910.01991): no model serves two groups.
    Pixels: permuted MNIST (Goodfellow et al. 2013, arXiv 1312.6211), the same order in all channels. The permutations
    are uniform draws from the scenario's seed. Samples without an owner stay unchanged, so a global test set mixes
    groups.

        skews: [{name: permutations, of: labels, groups: 4}]"""

    of: Literal["labels", "pixels"] = "labels"
    groups: int = Field(4, ge=2, description="Number of groups, each with a different permutation.")

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        data = scenario.train_set
        if self.groups > scenario.clients:
            problem = f"groups = {self.groups}, but there are {scenario.clients} clients; need a client for each group"
            raise ConfigError(f"skew permutations: {problem}")
        if self.of == "labels":
            data.require_one_class(f"skew {self.kind}")
            places = scenario.num_classes
        elif data.x.dtype not in (torch.uint8, torch.float32):
            raise ConfigError(f"skew permutations: of = 'pixels' needs images or features, samples are {data.x.dtype}")
        else:
            places = int(np.prod(data.input_shape[1:] or data.input_shape))
        orders = torch.from_numpy(rng.permuted(np.tile(np.arange(places), (self.groups, 1)), axis=1))
        if self.of == "labels":
            return change_samples(self.kind, scenario, lambda part, owner: _renamed(part, owner, orders), "y")
        changes = [partial(_reordered, order=order) for order in orders]
        return change_samples(self.kind, scenario, lambda part, owner: _seen(part, owner, changes))


def _renamed(data: Dataset, owner: Indices, orders: Tensor) -> Tensor:
    group = torch.from_numpy(owner % len(orders))
    return torch.where(torch.from_numpy(owner >= 0), orders[group, data.y], data.y)


def _reordered(x: Tensor, order: Tensor) -> Tensor:
    return x.reshape(len(x), -1, len(order))[:, :, order].reshape(x.shape)
