"""The digits: real, complete, split the same way in every run."""

import pytest
import torch

from fedloom.data import SOURCES


@pytest.fixture(scope="module")
def splits():
    return SOURCES.get("digits")().load()


def test_sizes_and_names(splits):
    assert len(splits.train) + len(splits.test) == 1797
    assert len(splits.test) == 355
    assert splits.train.classes == splits.test.classes == tuple("0123456789")
    assert splits.train.input_shape == splits.test.input_shape == (1, 8, 8)
    assert splits.train.x.dtype == torch.uint8


def test_the_test_set_is_every_fifth_image_of_each_class_of_scikit_learns_file(splits):
    from sklearn.datasets import load_digits

    digits = load_digits()
    seen, train, test = [0] * 10, [], []
    for row, label in enumerate(digits.target):
        seen[label] += 1
        (test if seen[label] % 5 == 0 else train).append(row)
    for part, rows in ((splits.train, train), (splits.test, test)):
        assert part.y.tolist() == digits.target[rows].tolist()
        assert (part.x[:, 0].numpy() == digits.images[rows]).all()


def test_the_split_is_the_same_in_every_load(splits):
    again = SOURCES.get("digits")().load()
    assert torch.equal(again.test.x, splits.test.x)
    assert torch.equal(again.train.y, splits.train.y)


def test_batches_are_about_standardised(splits):
    batch = splits.train.gather(torch.arange(len(splits.train)))
    assert batch.mean().item() == pytest.approx(0, abs=0.02)
    assert batch.std().item() == pytest.approx(1, abs=0.02)
