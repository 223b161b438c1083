"""Augmentation against slow references, and the laws of what is drawn."""

import itertools

import numpy as np
import pytest
import torch
from scipy.ndimage import rotate as turned
from scipy.stats import chi2

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data import augment as module
from fedloom.data.augment import Augmentation, crop_and_flip, rotate
from fedloom.data.dataset import Dataset

STRAY = 1e-6  # the rate at which a test of chance would fail on a fresh seed; the seeds below are fixed


def generator(seed=0):
    return Streams(seed).numpy("augment", 1, 0)


def images(n=7, shape=(3, 6, 9), dtype=torch.uint8, normalised=True):
    """Random images without zeros, so that padding can be told from content."""
    x = torch.from_numpy(np.random.default_rng(1).integers(1, 256, (n, *shape))).to(dtype)
    moments = (
        {"mean": torch.linspace(90.3, 120.3, shape[0]), "std": torch.linspace(50, 60, shape[0])} if normalised else {}
    )
    return Dataset(x, torch.zeros(n, dtype=torch.int64), ("0",), **moments)


def moved_slowly(image, shift, flip):
    """Pixel by pixel: out(r, c) = image(r + down, c + right), mirrored afterwards."""
    out = torch.zeros_like(image)
    height, width = image.shape[1:]
    for row, column in itertools.product(range(height), range(width)):
        r, c = row + shift[0], column + shift[1]
        if 0 <= r < height and 0 <= c < width:
            out[:, row, width - 1 - column if flip else column] = image[:, r, c]
    return out


# -- what is done ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("way", [module._one_by_one, module._at_once, crop_and_flip])
def test_crop_and_flip_agree_with_pixel_by_pixel(way, dtype):
    data, rng = images(dtype=dtype), np.random.default_rng(3)
    indices = torch.from_numpy(rng.integers(0, 7, 40))
    shifts, flips = rng.integers(-5, 6, (40, 2)), rng.random(40) < 0.5
    ours = way(data.x, indices, shifts, flips)
    expected = [moved_slowly(data.x[i], s, f) for i, s, f in zip(indices, shifts.tolist(), flips, strict=True)]
    assert torch.equal(ours, torch.stack(expected))
    assert (ours.dtype, ours.is_contiguous()) == (dtype, True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("fill", ["black", "mean"])
def test_a_gpu_gives_what_the_cpu_gives(fill):
    data, indices = images(), torch.arange(7)
    there = Dataset(*(t.cuda() for t in (data.x, data.y)), data.classes, data.mean.cuda(), data.std.cuda())
    augment = Augmentation(crop=2, flip=True, fill=fill)
    ours = augment.gather(there, indices.cuda(), generator())
    assert ours.is_cuda
    assert torch.equal(ours.cpu(), augment.gather(data, indices, generator()))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("fill", ["black", "mean"])
def test_with_nothing_to_do_it_is_a_plain_gather_of_the_same_bits(dtype, normalised, fill):
    data, indices = images(dtype=dtype, normalised=normalised), torch.tensor([5, 0, 0, 3])
    rng = generator()
    assert torch.equal(Augmentation(fill=fill).gather(data, indices, rng), data.gather(indices))
    assert rng.bit_generator.state == generator().bit_generator.state
    assert not Augmentation(fill=fill).active


def test_black_pads_before_normalisation_and_mean_after_it():
    data, indices = images(), torch.arange(7)
    black, mean = (Augmentation(crop=3, fill=fill).gather(data, indices, generator()) for fill in ("black", "mean"))
    border = mean == 0  # no pixel of these images is exactly the mean
    lowest = ((0 - data.mean) / data.std).view(1, -1, 1, 1).expand_as(black)
    assert 0.05 < border.float().mean() < 0.95
    assert torch.equal(black[border], lowest[border])
    assert torch.equal(black[~border], mean[~border])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("fill", ["black", "mean"])
@pytest.mark.parametrize(
    "keys", [{"crop": 2}, {"flip": True}, {"rotate": 20.0}, {"crop": 2, "flip": True, "rotate": 9}]
)
def test_shape_and_dtype_stay_and_the_store_is_left_alone(keys, fill, dtype):
    data, indices = images(dtype=dtype), torch.tensor([1, 1, 6])
    before = data.x.clone()
    x = Augmentation(**keys, fill=fill).gather(data, indices, generator())
    assert (x.shape, x.dtype) == ((3, 3, 6, 9), torch.float32)
    assert torch.equal(data.x, before)
    assert not torch.equal(x, data.gather(indices))


def test_rotation_by_a_right_angle_is_exact_and_counter_clockwise():
    x = images(2, (3, 8, 8)).x.float()
    assert torch.allclose(rotate(x, np.array([90.0, -90.0]))[0], torch.rot90(x[0], 1, (1, 2)), atol=1e-3)
    assert torch.allclose(rotate(x, np.array([90.0, -90.0]))[1], torch.rot90(x[1], -1, (1, 2)), atol=1e-3)
    assert torch.allclose(rotate(x, np.zeros(2)), x, atol=1e-3)


@pytest.mark.parametrize("degrees", [30.0, -17.5, 140.0])
def test_rotation_of_an_oblong_image_agrees_with_scipy(degrees):
    x = images(1, (2, 9, 14), torch.float32).x
    ours = rotate(x, np.array([degrees]))[0]
    for channel, plane in enumerate(x[0].numpy()):
        expected = turned(plane, degrees, reshape=False, order=1, mode="grid-constant")
        assert np.abs(ours[channel].numpy() - expected).max() < 1e-3  # of 255


# -- what is drawn -----------------------------------------------------------------------------------------------------
def test_the_same_stream_gives_the_same_images_and_no_global_generator_is_touched():
    data, indices = images(), torch.arange(7)
    augment = Augmentation(crop=2, flip=True, rotate=15)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    a, b, c = (augment.gather(data, indices, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002


def places(x, width):
    """What the centre of each image shows, and whether the image is mirrored: x [n, 1, w, w] of `numbered()`."""
    middle = width // 2
    centre = x[:, 0, middle, middle].long()
    return centre, x[:, 0, middle, middle - 1] > x[:, 0, middle, middle + 1]


def numbered(width=9):
    """One image whose pixels are numbered from 1."""
    x = torch.arange(1, width * width + 1, dtype=torch.uint8).view(1, 1, width, width)
    return Dataset(x, torch.zeros(1, dtype=torch.int64), ("0",))


def test_offsets_and_flips_are_uniform_and_independent():
    x = Augmentation(crop=2, flip=True).gather(numbered(), torch.zeros(20_000, dtype=torch.int64), generator())
    centre, mirrored = places(x, 9)
    counts = torch.bincount(centre * 2 + mirrored)
    counts = counts[counts > 0].double()
    assert len(counts) == 25 * 2  # every offset from -2 to 2 in both directions, mirrored and not
    statistic = float(((counts - 400) ** 2 / 400).sum())
    assert statistic < chi2.isf(STRAY, 49)


def test_angles_are_uniform_in_their_range():
    width = 33
    spot = torch.zeros(1, 1, width, width)
    spot[..., 16, 28] = 1.0  # right of the centre: after a turn by a, its centroid stands at angle a
    data = Dataset(spot, torch.zeros(1, dtype=torch.int64), ("0",))
    x = Augmentation(rotate=30).gather(data, torch.zeros(4000, dtype=torch.int64), generator())[:, 0].double()
    axis = torch.arange(width) - 16.0
    mass = x.sum((1, 2))
    angles = torch.rad2deg(torch.atan2(-(x.sum(2) @ axis.double()) / mass, (x.sum(1) @ axis.double()) / mass))
    assert -30.5 < angles.min() < -29
    assert 29 < angles.max() < 30.5
    shares = torch.histc(angles, bins=6, min=-30, max=30) / 4000
    assert (shares - 1 / 6).abs().max() < 5 * (5 / 36 / 4000) ** 0.5


def test_per_batch_draws_once_for_the_whole_batch_and_anew_for_the_next():
    augment, rng = Augmentation(crop=3, flip=True, rotate=20, per="batch"), generator()
    rows = torch.zeros(16, dtype=torch.int64)
    batches = [augment.gather(numbered(), rows, rng) for _ in range(12)]
    assert all(torch.equal(batch, batch[:1].expand_as(batch)) for batch in batches)
    assert len({batch[0].numpy().tobytes() for batch in batches}) == 12
    alone = [augment.gather(numbered(), rows[:size], generator()) for size in (1, 5)]
    assert torch.equal(alone[0][0], alone[1][4])


def test_views_are_drawn_one_after_the_other():
    data, indices, augment = images(), torch.arange(7), Augmentation(crop=2, flip=True)
    views, rng = augment.views(data, indices, generator(), 3), generator()
    assert len(views) == 3
    for view in views:
        assert torch.equal(view, augment.gather(data, indices, rng))
    assert not torch.equal(views[0], views[1])


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_done_is_refused():
    with pytest.raises(ConfigError, match=r"augment\.crop = 6: images are 6 x 9 pixels"):
        Augmentation(crop=6).check(images())
    Augmentation(crop=5, flip=True, rotate=180).check(images())


@pytest.mark.parametrize(
    "x", [torch.zeros(4, 200, dtype=torch.int64), torch.zeros(4, 800), torch.zeros(4, 1, 5, 5, dtype=torch.int64)]
)
def test_only_images_can_be_augmented(x):
    data = Dataset(x, torch.zeros(4, dtype=torch.int64), ("0",))
    with pytest.raises(
        ConfigError, match=r"augment \(crop, flip\): needs images \[channels, height, width\]"
    ) as caught:
        Augmentation(crop=1, flip=True).check(data)
    assert "\n" not in str(caught.value)
    Augmentation().check(data)
