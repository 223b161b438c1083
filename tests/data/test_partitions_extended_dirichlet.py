"""ExDir(C, alpha): classes that clients draw, and shares among those that drew a class."""

import numpy as np
import pytest

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data.partitions import labels_only
from fedloom.data.partitions.dirichlet import ExtendedDirichlet

TRAIN, TEST = (labels_only(np.repeat(np.arange(10), each)) for each in (500, 100))


def deal(seed=0, clients=20, data=(TRAIN, TEST), **keys):
    values = {"classes_per_client": 3, "alpha": 10.0} | keys
    return ExtendedDirichlet(**values).deal(*data, clients, Streams(seed).numpy("partition"))


def counts(views, data=TRAIN):
    return views.class_counts(data.y.numpy(), data.num_classes)


def test_clients_hold_at_most_their_classes_and_nothing_is_left():
    dealt = deal()
    held = counts(dealt.train)
    assert (held > 0).sum(1).max() == 3
    assert held.sum(0).tolist() == [500] * 10
    assert counts(dealt.test, TEST).sum(0).tolist() == [100] * 10
    assert not ((counts(dealt.test, TEST) > 0) & (held == 0)).any()  # tested on classes that it holds


class GivenClasses(np.random.Generator):
    """A generator that draws the classes it was given, one draw after the other; all else is drawn as usual."""

    draws = ()

    def permuted(self, x, **keys):
        first, *self.draws = self.draws
        return np.array([[label, 1 - label] for label in first])


def test_every_class_has_a_fifth_of_its_even_number_of_clients():
    """By hand: 40 clients with 1 of 2 classes are 20 a class, of which 20 // 5 = 4 must be there: 3 are too few."""
    rng = GivenClasses(np.random.PCG64(0))
    rng.draws = [[1] * 3 + [0] * 37, [1] * 4 + [0] * 36]
    data = labels_only([0, 1] * 400)
    dealt = ExtendedDirichlet(classes_per_client=1, alpha=1e6, min_samples=0).deal(data, data, 40, rng)
    assert (counts(dealt.train, data) > 0).sum(0).tolist() == [36, 4]


def test_a_full_client_gets_nothing_more():
    """By hand: 11 samples of two clients are 5 and 6; the fair part of 12 is 6, so the first client gets the last."""
    data = labels_only([0] * 11 + [1])
    keys = {"classes_per_client": 2, "alpha": 1e9, "min_samples": 0, "clients": 2, "data": (data, data)}
    assert deal(balanced=True, **keys).train.sizes.tolist() == [6, 6]
    assert deal(**keys).train.sizes.tolist() == [5, 7]


def test_test_samples_follow_the_shares_of_the_training_samples():
    """By hand: a class is cut at floor(500 s) and floor(100 s), so that counts differ by one test sample at most."""
    for seed in range(3):
        dealt = deal(seed, alpha=0.5, balanced=seed == 2)
        assert np.abs(5 * counts(dealt.test, TEST) - counts(dealt.train)).max() <= 5


def test_large_alpha_cuts_a_class_evenly_among_its_clients_and_small_alpha_does_not():
    even, uneven = (counts(deal(alpha=alpha, min_samples=0).train) for alpha in (1e6, 0.05))
    for label in range(10):
        shares = even[even[:, label] > 0, label]
        assert shares.max() - shares.min() <= 5  # 500 over a few clients
    assert uneven.max(0).mean() > 2 * even.max(0).mean()


def test_balanced_clients_stop_at_their_fair_part():
    """By hand: a client below 250 of 5,000 samples takes one more class of 500 at most, so it ends below 750."""
    keys = {"classes_per_client": 5, "alpha": 0.05, "min_samples": 0}
    assert max(deal(seed, balanced=True, **keys).train.sizes.max() for seed in range(3)) < 750
    assert max(deal(seed, **keys).train.sizes.max() for seed in range(3)) > 750


def test_with_all_classes_it_is_the_plain_dirichlet_rule():
    """All clients hold all classes, so a class is cut at the shares of one Dirichlet draw over all of them."""
    held = counts(deal(classes_per_client=10, alpha=1e6).train)
    assert held.min() >= 24
    assert held.max() <= 26


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"classes_per_client": 11}, "classes_per_client = 11, but the source has 10 classes"),
        ({"classes_per_client": 1, "clients": 9}, "9 clients with 1 classes each cannot hold all 10 classes"),
        (
            {"classes_per_client": 1, "clients": 10, "max_draws": 3},
            "none of 3 draws of 1 classes for 10 clients gave each",
        ),
        (
            {"alpha": 0.01, "min_samples": 200, "max_draws": 3},
            "none of 3 draws with alpha 0.01 gave each of 20 clients 200",
        ),
        ({"min_samples": 1000}, "need 20000 samples, there are 5000"),
    ],
)
def test_what_cannot_be_dealt_is_one_line(keys, message):
    with pytest.raises(ConfigError, match=message):
        deal(**keys)
