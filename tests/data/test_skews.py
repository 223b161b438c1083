"""Skews over a partition: who keeps what, whose labels are wrong, whose images look different."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data import make_scenario
from fedloom.data.dataset import Dataset
from fedloom.data.partitions import labels_only
from fedloom.data.partitions.classes import IID
from fedloom.data.partitions.dirichlet import Dirichlet
from fedloom.data.partitions.domains import DirichletDomains
from fedloom.data.skews.ratio import LabelNoise, LongTail, Noise, Ratio, client_sigmas, tail_counts
from fedloom.data.skews.skew import Permutations, Rotations, Transforms
from fedloom.data.sources import Splits

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "data.json").read_text())


def images(n=120, side=4, dtype=torch.uint8, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.integers(0, 256, (n, 2, side, side))).to(dtype)
    x[0, 0, 0, 0], x[-1, 0, 0, 0] = 0, 255
    return Dataset(x, torch.arange(n) % 3, ("a", "b", "c"), torch.tensor([100.0, 90.0]), torch.tensor([50.0, 60.0]))


SPLITS = Splits(images(), images(60, seed=1))


def scenario(*skews, data=SPLITS, clients=4, seed=0, val=0.2, partition=None):
    return make_scenario(
        "toy", data, partition or IID(), clients=clients, val=val, streams=Streams(seed), skews=list(skews)
    )


@pytest.mark.parametrize("rho", [10, 50, 100, 200])
def test_long_tail_counts_of_the_golden_file(rho):
    assert tail_counts(5000, 10, rho).tolist() == GOLDEN["long_tail_5000_10"][str(rho)]
    assert tail_counts(5000, 10, rho).sum() == GOLDEN["long_tail_totals"]["cifar10"][str(rho)]
    assert tail_counts(500, 100, rho).sum() == GOLDEN["long_tail_totals"]["cifar100"][str(rho)]
    assert tail_counts(500, 100, rho).min() == GOLDEN["long_tail_totals"]["cifar100_smallest"][str(rho)]


def test_a_long_tail_scenario_has_these_counts_and_a_balanced_test_set():
    rng = np.random.default_rng(0)
    train = labels_only(rng.permutation(np.repeat(np.arange(10), 5000)))
    test = labels_only(np.repeat(np.arange(10), 100))
    made = scenario(LongTail(rho=50), data=Splits(train, test), clients=20)
    counts = (made.class_counts() + made.val.class_counts(train.y.numpy(), 10)).sum(0)
    assert counts.tolist() == GOLDEN["long_tail_5000_10"]["50"]
    assert made.test.class_counts(test.y.numpy(), 10).sum(0).tolist() == [100] * 10
    assert made.train_set is train
    first = [scenario(LongTail(rho=50), data=Splits(train, test), clients=20, seed=s).train.order for s in (0, 1)]
    assert set(first[0].tolist()) != set(first[1].tolist())


def test_a_class_that_has_less_than_its_count_keeps_all_it_has():
    train = labels_only([0] * 5 + [1] * 20 + [2] * 20)  # n / C = 15
    kept = LongTail(rho=3).thin(train, np.arange(45), np.random.default_rng(0))
    assert np.bincount(train.y.numpy()[kept]).tolist() == [5, 8, 5]
    assert (np.diff(kept) > 0).all()


def test_long_tails_that_cannot_be_made():
    with pytest.raises(ConfigError, match="rho = 100 leaves class 2 without a sample: n / C = 40; lower rho"):
        scenario(LongTail(rho=100))
    with pytest.raises(ConfigError, match="needs 2 classes"):
        LongTail(rho=2).thin(labels_only([0, 0]), np.arange(2), np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"scenario\.clients = 90: toy has \d+ training samples"):
        scenario(LongTail(rho=10), clients=90)


@pytest.mark.parametrize(("gamma", "images_left"), [(0.2, 148), (0.4, 297), (0.6, 446), (1.0, 743), (2.0, 1487)])
def test_data_ratios_of_fedco2(gamma, images_left):
    data = labels_only(np.arange(3200) % 10)
    made = scenario(Ratio(ratio=gamma, base=743.8), data=Splits(data, data), clients=2, val=0)
    assert made.train.sizes.tolist() == [images_left] * 2


def test_smaller_ratios_keep_a_subset_and_nothing_else_changes():
    whole, half, third = scenario(), scenario(Ratio(ratio=0.5)), scenario(Ratio(ratio=(0.3, 0.3, 0.3, 1)))
    assert half.train.sizes.tolist() == [12] * 4
    assert third.train.sizes.tolist() == [7, 7, 7, 24]
    assert set(third.train[0].tolist()) < set(half.train[0].tolist()) < set(whole.train[0].tolist())
    assert half.val.order.tolist() == whole.val.order.tolist()
    assert half.test.order.tolist() == whole.test.order.tolist()


@pytest.mark.parametrize(
    ("skew", "says"),
    [
        (Ratio(ratio=1.5), r"ratio = 1\.5; need above 0, and up to 1 unless base is given"),
        (Ratio(ratio=0), r"ratio = 0\.0; need above 0"),
        (Ratio(ratio=float("nan")), "ratio = nan"),
        (Ratio(ratio=2, base=20), "client 0 is to keep 40 training samples and has 24"),
        (Ratio(ratio=(0.5, 0.5)), "ratio lists 2 numbers for 4 clients"),
        (LabelNoise(share=1.1), r"share = 1\.1; need numbers in \[0, 1\]"),
        (LabelNoise(share=(0.1, -0.1, 0, 0)), r"need numbers in \[0, 1\]"),
        (LabelNoise(share=(0.1,)), "share lists 1 numbers for 4 clients"),
    ],
    ids=str,
)
def test_numbers_out_of_range(skew, says):
    with pytest.raises(ConfigError, match=says):
        scenario(skew)


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1), st.integers(0, 1000))
def test_label_noise_changes_exactly_its_share_of_training_labels(share, seed):
    clean, noisy = scenario(seed=seed), scenario(LabelNoise(share=share), seed=seed)
    wrong = noisy.train_set.y != clean.train_set.y
    for k in range(4):
        assert int(wrong[clean.train.tensor(k)].sum()) == int(share * len(clean.train[k]))
    assert int(wrong.sum()) == 4 * int(share * 24)  # validation labels stay
    assert noisy.test_set is clean.test_set
    assert noisy.train_set.x is clean.train_set.x
    assert set(noisy.train_set.y.tolist()) <= {0, 1, 2}
    assert torch.equal(SPLITS.train.y, torch.arange(120) % 3)  # the source is not touched


def test_wrong_labels_are_all_alike():
    data = labels_only(np.arange(9000) % 3)
    noisy = scenario(LabelNoise(share=0.5), data=Splits(data, data), val=0).train_set.y.numpy()
    moved = np.stack([np.bincount(noisy[data.y.numpy() == c], minlength=3) for c in range(3)])
    # half stay, a quarter goes to each other class: 750 of 3,000, standard deviation below 25
    assert np.abs(moved - (750 + 750 * np.eye(3))).max() < 5 * 27


def test_sigmas_of_the_golden_file():
    example = GOLDEN["noise_sigma"]
    found = client_sigmas(example["in"]["sigma_M"], example["in"]["N"])
    assert found == pytest.approx(np.array(example["out"]["sigma"]), abs=1e-6)


def grey(n=1600):
    """Mid-grey images but for one white pixel, so that clipping never shows."""
    x = torch.full((n, 1, 4, 4), 128, dtype=torch.uint8)
    x[0, 0, 0, 0] = 255
    return Dataset(x, torch.arange(n) % 2, ("a", "b"), torch.tensor([128.0]), torch.tensor([64.0]))


@pytest.mark.parametrize("rounded", [False, True])
def test_noise_rises_from_client_to_client_in_all_three_views(rounded):
    data = Splits(grey(), grey())
    made = scenario(Noise(sigma=15, rounded=rounded), data=data, val=0.5)
    for images_of, views in ((made.train_set, made.train), (made.train_set, made.val), (made.test_set, made.test)):
        for k in range(4):
            values = images_of.x[views.tensor(k)].float() - 128
            values = values[values != 127]  # the white pixel, if it is here
            # sigma_k = 5 k; n = 200 or 400 images of 16 pixels: relative standard error below 1.3 %
            expected = ((5.0 * k) ** 2 + (1 / 12 if rounded and k else 0)) ** 0.5
            assert float(values.std()) == pytest.approx(expected, rel=0.07)
            assert abs(float(values.mean())) <= 5 * 5 * k / (len(values) ** 0.5)
    assert made.train_set.x.dtype == (torch.uint8 if rounded else torch.float32)
    assert torch.equal(made.train_set.x[made.train.tensor(0)].float(), data.train.x[made.train.tensor(0)].float())
    assert made.train_set.mean is data.train.mean
    assert int(data.train.x.sum()) == 1600 * 16 * 128 + 127  # the source is not touched


def test_noise_is_in_shares_of_the_full_range_and_clipped_to_it():
    quarter = replace(grey(), x=(grey().x.float() / 255))
    made = scenario(Noise(sigma=15), data=Splits(quarter, quarter))
    assert float((made.train_set.x[made.train.tensor(3)] - 128 / 255).std()) == pytest.approx(15 / 255, rel=0.1)
    loud = scenario(Noise(sigma=1000)).train_set.x
    assert float(loud.min()) == 0.0
    assert float(loud.max()) == 255.0


def test_noise_of_an_image_does_not_depend_on_who_holds_it():
    two = [scenario(Noise(sigma=9), data=Splits(grey(), grey()), clients=n, val=0) for n in (2, 3)]
    last = [set(s.train[s.clients - 1].tolist()) for s in two]  # both last clients have sigma 9
    shared = torch.tensor(sorted(last[0] & last[1]))
    assert len(shared) > 100
    assert torch.equal(two[0].train_set.x[shared], two[1].train_set.x[shared])


def test_noise_after_normalisation_as_released():
    made = scenario(Noise(sigma=2, noise_space="normalised-clamped"))
    for k, sigma in ((0, 0.0), (3, 2.0)):
        view = made.train.tensor(k)
        seen, clean = made.train_set.gather(view), SPLITS.train.gather(view)
        assert float(seen.min()) >= -1e-5  # cut at the mean, even without noise
        if sigma == 0:
            assert torch.allclose(seen, clean.clamp(min=0), atol=1e-5)
        else:
            assert float((seen - clean.clamp(min=0)).abs().mean()) > 0.3


def test_transforms_go_by_client_and_keep_bytes():
    made = scenario(Transforms(of=("none", "rotate90", "invert", "contrast")))
    expected = [
        lambda x: x,
        lambda x: torch.rot90(x, 1, (2, 3)),
        lambda x: 255 - x,
        lambda x: (((x.float() + 127.5) / 2).round()).to(torch.uint8),
    ]
    for data, clean, views in (
        (made.train_set, SPLITS.train, made.train),
        (made.train_set, SPLITS.train, made.val),
        (made.test_set, SPLITS.test, made.test),
    ):
        assert data.x.dtype == torch.uint8
        for k in range(4):
            view = views.tensor(k)
            assert torch.equal(data.x[view], expected[k](clean.x[view]))


def test_rotations_go_by_client_and_quarter_turns_move_pixels():
    made, turns = scenario(Rotations(angles=(0, 90, -90, -180))), (0, 1, 3, 2)
    for data, clean, views in (
        (made.train_set, SPLITS.train, made.train),
        (made.train_set, SPLITS.train, made.val),
        (made.test_set, SPLITS.test, made.test),
    ):
        assert data.x.dtype == torch.uint8
        for client, turn in enumerate(turns):
            view = views.tensor(client)
            assert torch.equal(data.x[view], torch.rot90(clean.x[view], turn, (2, 3)))


def test_a_rotation_by_an_eighth_moves_a_point_by_hand():
    x = torch.zeros(2, 1, 7, 7)
    x[:, 0, 3, 5] = 8.0  # two pixels right of the centre
    data = Dataset(x, torch.tensor([0, 1]), ("a", "b"))
    seen = scenario(Rotations(angles=(45.0,)), data=Splits(data, data), clients=1, val=0).train_set.x[0, 0]
    rows, columns = torch.meshgrid(torch.arange(7.0), torch.arange(7.0), indexing="ij")
    mass = float(seen.sum())
    centre = float((rows * seen).sum()) / mass - 3, float((columns * seen).sum()) / mass - 3
    assert centre == pytest.approx((-(2**0.5), 2**0.5), abs=0.1), "up and right: counter-clockwise"
    sideways = Dataset(torch.rand(4, 1, 3, 5), torch.arange(4) % 2, ("a", "b"))
    turned = scenario(Rotations(angles=(180.0,)), data=Splits(sideways, sideways), clients=1, val=0).train_set.x
    assert torch.equal(turned, sideways.x.flip(2, 3))


def test_a_client_without_samples_is_no_obstacle():
    made = scenario(Rotations(), partition=Dirichlet(alpha=0.01, min_samples=0), clients=20, val=0)
    assert made.train.sizes.min() == 0
    assert made.train_set.x.shape == SPLITS.train.x.shape


def test_blur_of_a_point_by_hand():
    x = torch.zeros(2, 1, 5, 5)
    x[:, 0, 0, 0] = 9.0
    data = Dataset(x, torch.tensor([0, 1]), ("a", "b"))
    seen = scenario(Transforms(of=("blur",)), data=Splits(data, data), clients=1, val=0).train_set.x[0, 0]
    # edges repeat: the corner pixel is four of the nine around itself, two of nine around its neighbours
    assert seen[:2, :2].tolist() == [[4.0, 2.0], [2.0, 1.0]]
    assert float(seen.sum()) == 9.0


@pytest.mark.parametrize("skew", [Noise(sigma=1), Rotations(), Transforms()], ids=str)
def test_only_images_can_be_changed(skew):
    tokens = Dataset(torch.ones(40, 7, dtype=torch.int64), torch.arange(40) % 2, ("a", "b"))
    with pytest.raises(ConfigError, match=r"needs images .*; samples here are \(7,\) of int64"):
        scenario(skew, data=Splits(tokens, tokens))


def test_pixel_skews_that_cannot_be_made():
    wide = Dataset(torch.ones(40, 1, 4, 6), torch.arange(40) % 2, ("a", "b"))
    with pytest.raises(ConfigError, match="a quarter turn needs square images, these are 4 x 6"):
        scenario(Transforms(), data=Splits(wide, wide))
    with pytest.raises(ConfigError, match="need 2 clients or more"):
        scenario(Noise(sigma=1), clients=1)
    negative = replace(wide, x=wide.x - 2)
    with pytest.raises(ConfigError, match="needs pixels from 0 up; the smallest here is -1"):
        scenario(Noise(sigma=1), data=Splits(negative, negative))
    with pytest.raises(ConfigError, match="rounded=true keeps bytes"):
        scenario(Noise(sigma=1, rounded=True), data=Splits(wide, wide))
    one = replace(images(200), domain=torch.zeros(200, dtype=torch.int64), domains=("only",))
    shared = DirichletDomains(alpha=5, domain_parts=2, clients_per_domain=2)
    with pytest.raises(ConfigError, match="some test samples belong to several clients"):
        scenario(Transforms(), data=Splits(one, one), partition=shared, clients=2)


def test_skews_compose_and_draw_from_streams_of_their_own():
    both = scenario(LongTail(rho=3), LabelNoise(share=0.25), Transforms(), Ratio(ratio=0.5))
    noise = scenario(LongTail(rho=3), LabelNoise(share=0.25))
    assert torch.equal(both.train_set.y, noise.train_set.y)
    assert both.val.order.tolist() == noise.val.order.tolist()
    assert set(both.train.order.tolist()) < set(noise.train.order.tolist())
    twice = scenario(LabelNoise(share=0.25), LabelNoise(share=0.25))
    assert not torch.equal(twice.train_set.y, scenario(LabelNoise(share=0.25)).train_set.y)


def test_labels_are_permuted_by_group_in_training_and_test():
    plain, changed = scenario(), scenario(Permutations(groups=2))
    maps = []
    for client in range(4):
        pairs = set()
        for views, part in (("train", "train_set"), ("val", "train_set"), ("test", "test_set")):
            rows = getattr(plain, views).tensor(client)
            pairs |= set(
                zip(getattr(plain, part).y[rows].tolist(), getattr(changed, part).y[rows].tolist(), strict=True)
            )
        maps.append(dict(pairs))
        assert len(pairs) == 3  # one new name for each class, the same in all views
        assert sorted(maps[-1].values()) == [0, 1, 2]
    assert maps[0] == maps[2]
    assert maps[1] == maps[3]
    assert torch.equal(changed.train_set.x, plain.train_set.x)


def test_pixels_are_permuted_alike_in_all_channels_of_a_group():
    plain, changed = scenario(), scenario(Permutations(of="pixels", groups=2))
    orders = []
    for client in range(4):
        rows = plain.train.tensor(client)
        before, after = (part.train_set.x[rows].flatten(2) for part in (plain, changed))
        order = [next(p for p in range(16) if torch.equal(before[:, :, p], after[:, :, place])) for place in range(16)]
        orders.append(order)
        assert sorted(order) == list(range(16))
    assert orders[0] == orders[2] != orders[1] == orders[3]
    assert torch.equal(changed.train_set.y, plain.train_set.y)


def test_permutations_that_cannot_be_made():
    with pytest.raises(ConfigError, match="groups = 5, but there are 4 clients"):
        scenario(Permutations(groups=5))
    tokens = Dataset(torch.ones(120, 4, dtype=torch.int64), torch.arange(120) % 3, ("a", "b", "c"))
    with pytest.raises(ConfigError, match="of = 'pixels' needs images or features"):
        scenario(Permutations(of="pixels"), data=Splits(tokens, tokens))
