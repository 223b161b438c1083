"""Arrays that may be wrong become data sets that are right, or a message."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core.errors import DataError
from fedloom.data.dataset import Dataset, channel_moments, checked


def test_images_get_a_channel_axis_and_labels_become_int64():
    data = checked(np.zeros((2, 4, 5), np.uint8), np.array([0, 2], np.uint8), origin="toy")
    assert data.input_shape == (1, 4, 5)
    assert data.x.dtype == torch.uint8
    assert data.y.dtype == torch.int64
    assert data.classes == ("0", "1", "2")
    assert (len(data), data.num_classes) == (2, 3)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 2)), np.array([0, 1]), "one label per sample"),
        (np.zeros((2, 2)), np.array([[0, 1], [1, 0]]), "one label per sample"),
        (np.zeros(()), np.array([0]), "one label per sample"),
        (np.zeros((0, 2)), np.array([], np.int64), "holds no samples"),
        (np.zeros((2, 2)), np.array([0.0, 1.0]), "labels have dtype float64"),
        (np.zeros((2, 2)), np.array([True, False]), "labels have dtype bool"),
        (np.zeros((2, 2)), np.array(["a", "b"]), "labels have dtype <U1"),
        (np.zeros((2, 2)), np.array([0, -3]), r"label -3 is outside 0 \.\. 0"),
        (np.array([["a"], ["b"]]), np.array([0, 1]), "samples have dtype <U1"),
        (np.zeros((2, 2), complex), np.array([0, 1]), "samples have dtype complex128"),
        (np.array([[1.0], [np.nan]]), np.array([0, 1]), "1 values are NaN or infinite"),
        (np.array([[-np.inf], [np.inf]]), np.array([0, 1]), "2 values are NaN or infinite"),
        (np.array([[1e300], [0.0]]), np.array([0, 1]), "1 values are NaN or infinite"),  # beyond float32
    ],
)
def test_wrong_arrays_are_refused_with_their_origin(x, y, message):
    with pytest.raises(DataError, match=rf"^toy: .*{message}"):
        checked(x, y, origin="toy")


def test_gather_normalises_per_channel_and_leaves_the_store_alone():
    x = torch.tensor([[[[1.0]], [[10.0]]], [[[3.0]], [[20.0]]]])
    data = Dataset(x, torch.tensor([0, 1]), ("a", "b"), torch.tensor([1.0, 20.0]), torch.tensor([2.0, 5.0]))
    # (3 - 1) / 2 = 1 and (20 - 20) / 5 = 0; (1 - 1) / 2 = 0 and (10 - 20) / 5 = -2
    assert data.gather(torch.tensor([1, 0, 1])).flatten(1).tolist() == [[1.0, 0.0], [0.0, -2.0], [1.0, 0.0]]
    assert x.flatten().tolist() == [1.0, 10.0, 3.0, 20.0]


def test_gather_without_moments_gives_the_values_as_float32():
    data = Dataset(torch.tensor([[255], [3]], dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"))
    batch = data.gather(torch.tensor([0, 1]))
    assert batch.dtype == torch.float32
    assert batch.tolist() == [[255.0], [3.0]]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 4), st.sampled_from(["uint8", "float32", "int16"]))
def test_channel_moments_equal_numpy(seed, samples, channels, dtype):
    x = np.random.default_rng(seed).integers(0, 256, (samples, channels, 3, 2)).astype(dtype)
    mean, std = channel_moments(x)
    exact = x.astype(np.float64)
    assert mean == pytest.approx(exact.mean((0, 2, 3)).tolist(), rel=1e-12)
    expected = [s if s > 0 else 1.0 for s in exact.std((0, 2, 3)).tolist()]
    assert std == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("value", [0, 7, 255])
def test_a_constant_channel_of_bytes_gets_unit_deviation(value):
    assert channel_moments(np.full((3, 1, 2, 2), value, np.uint8)) == ([value], [1.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_constant_channel_of_floats_gets_unit_deviation(dtype):
    """The mean of three times 0.1 is not 0.1 in float64: its rounding must not pass for a deviation."""
    assert channel_moments(np.full((3, 1, 1, 1), 0.1, dtype)) == ([float(dtype(0.1))], [1.0])


def test_token_ids_are_gathered_as_they_are():
    data = checked(np.array([[3, 1], [2, 0]], np.int32), np.array([0, 1]), origin="toy", tokens=True)
    assert data.x.dtype == torch.int64
    batch = data.gather(torch.tensor([1, 0, 1]))
    assert batch.dtype == torch.int64
    assert batch.tolist() == [[2, 0], [3, 1], [2, 0]]


def test_domains_are_checked_and_kept():
    x, y = np.zeros((3, 2), np.uint8), np.zeros(3, int)
    data = checked(x, y, origin="toy", domain=np.array([1, 0, 1], np.int8), domains=["a", "b"])
    assert data.domain.dtype == torch.int64
    assert data.domain.tolist() == [1, 0, 1]
    assert data.head(2).domain.tolist() == [1, 0]
    assert data.head(9).domains == ("a", "b")
    for wrong in (np.array([0, 1]), np.array([0.0, 1.0, 0.0]), np.array([0, 2, 1]), np.array([0, -1, 1])):
        with pytest.raises(DataError, match=r"^toy: domain id"):
            checked(x, y, origin="toy", domain=wrong, domains=["a", "b"])


def test_memory_that_must_not_be_written_is_copied():
    x = np.zeros((2, 1, 2, 2), np.uint8)
    x.setflags(write=False)
    assert checked(x, np.array([0, 1]), origin="toy").x.sum() == 0
