"""Random streams: a function of (seed, purpose, round, client), and of nothing else."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core.streams import Streams, generator_states

keys = st.tuples(
    st.integers(-5, 2**40), st.sampled_from(["init", "batches", "partition"]), st.integers(0, 5), st.integers(-1, 5)
)


def draw_numpy(key):
    seed, *rest = key
    return Streams(seed).numpy(*rest).random(4).tolist()


def draw_torch(key):
    seed, *rest = key
    with Streams(seed).isolated(*rest):
        return torch.rand(4).tolist()


@pytest.fixture
def _global_generators_kept():
    """The test may seed the global generators; afterwards they are as they were."""
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    yield
    torch.set_rng_state(kept[0])
    np.random.set_state(kept[1])  # noqa: NPY002
    random.setstate(kept[2])


@settings(max_examples=60, deadline=None)
@given(keys, keys)
def test_streams_are_equal_exactly_where_their_keys_are(a, b):
    assert (draw_numpy(a) == draw_numpy(b)) == (a == b)
    assert (draw_torch(a) == draw_torch(b)) == (a == b)


@pytest.mark.parametrize("draw", [draw_numpy, draw_torch])
@pytest.mark.parametrize(
    "other", [(1, "p", 2, 3), (0, "q", 2, 3), (0, "p", 3, 3), (0, "p", 2, 2), (0, "p", 3, 2)], ids=str
)
def test_every_part_of_the_key_counts(draw, other):
    assert draw((0, "p", 2, 3)) != draw(other)


def test_many_neighbouring_keys_never_collide():
    found = {Streams(s).key("init", r, c) for s in range(8) for r in range(16) for c in range(-1, 31)}
    assert len(found) == 8 * 16 * 32


def test_a_stream_draws_the_same_numbers_in_a_fresh_generator():
    streams = Streams(3)
    assert streams.numpy("a").random(5).tolist() == streams.numpy("a").random(5).tolist()


@pytest.mark.usefixtures("_global_generators_kept")
def test_nothing_here_touches_the_global_generators():
    before = torch.get_rng_state(), repr(np.random.get_state(legacy=False)), random.getstate()  # noqa: NPY002
    Streams(1).numpy("a").random(10)
    with Streams(1).isolated("a"):
        torch.rand(10)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert repr(np.random.get_state(legacy=False)) == before[1]  # noqa: NPY002
    assert random.getstate() == before[2]


@pytest.mark.usefixtures("_global_generators_kept")
def test_streams_do_not_depend_on_the_global_generators():
    drawn = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        drawn.append((draw_numpy((5, "a")), draw_torch((5, "a"))))
    assert drawn[0] == drawn[1]


def test_isolated_restores_torchs_generator_after_an_exception():
    before = torch.get_rng_state()

    def fails():
        torch.rand(3)
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), Streams(1).isolated("a"):
        fails()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("_global_generators_kept")
def test_isolated_gives_numpy_and_python_the_streams_numbers_and_restores_theirs():
    drawn = []
    for seed in (0, 1):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        before = generator_states()
        with Streams(1).isolated("a", 2, 3):
            drawn.append((random.random(), np.random.random()))  # noqa: NPY002
            assert generator_states() != before
        assert generator_states() == before
    assert drawn[0] == drawn[1]
