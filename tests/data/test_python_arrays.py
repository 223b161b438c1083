"""What Python hands over as arrays: tensors, pictures, frames, and what would lose something on the way."""

import re

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from PIL import Image

import fedloom as fl
from fedloom.core.errors import DataError
from fedloom.data import from_arrays, from_clients, from_torch
from source_files import pixels

X = np.stack([pixels(seed) for seed in range(10)])
Y = np.array([0, 1] * 5)
FIRST = X.transpose(0, 3, 1, 2)
ROWS = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)


def palette(array):
    """A picture whose pixels are indices."""
    return Image.fromarray(array).convert("P", palette=Image.Palette.ADAPTIVE, colors=256)


class Frame:
    """A frame of another library: an array on request."""

    def __array__(self, dtype=None, copy=None):
        return ROWS.astype(dtype or np.float32)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (torch.from_numpy(ROWS).requires_grad_(), ROWS),
        (list(torch.from_numpy(ROWS).requires_grad_()), ROWS),
        (torch.from_numpy(ROWS).to(torch.bfloat16), torch.from_numpy(ROWS).to(torch.bfloat16).float().numpy()),
        (torch.from_numpy(ROWS).half(), ROWS.astype(np.float16)),
        (torch.from_numpy(ROWS).T.contiguous().T, ROWS),
        (pd.DataFrame(ROWS, columns=list("abc")), ROWS),
        (Frame(), ROWS),
        (np.ma.array(ROWS, mask=False), ROWS),
        (ROWS.tolist(), ROWS),
        ([Image.fromarray(x) for x in X], FIRST),
        ([palette(x) for x in X], np.stack([palette(x).convert("RGB") for x in X]).transpose(0, 3, 1, 2)),
        ([Image.fromarray(x[..., 0]) for x in X], FIRST[:, :1]),
        ([Image.fromarray(np.dstack([x, x[..., 0]])) for x in X], FIRST),
    ],
    ids=["gradients", "list of tensors", "bfloat16", "half", "transposed", "pandas", "other frame", "nothing masked",
         "lists", "pictures", "palettes", "grey pictures", "transparent pictures"],
)  # fmt: skip
def test_what_is_read(x, expected):
    splits = from_arrays(x, Y, x, Y)
    assert (splits.train.x.numpy() == expected).all()
    assert splits.notes == ()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ma.masked_less(ROWS, 0), r"from_arrays: 1\d of 30 values are masked; fill them"),
        ([np.ma.masked_less(row, 0) for row in ROWS], r"\d of 3 values are masked"),
        (scipy.sparse.csr_matrix(ROWS), r"a sparse csr_matrix is no array; give its toarray\(\)"),
        (torch.from_numpy(ROWS).to_sparse(), r"a sparse Tensor is no array; give its to_dense\(\)"),
        (torch.from_numpy(ROWS).to(torch.complex64), "dtype complex64"),
        (pd.DataFrame({"age": ["a", "b"] * 5, "sex": 1}), "dtype object; need uint8 or real numbers"),
        ([Image.new("F", (4, 4))] * 10, "mode F has no fixed range"),
        (np.zeros((10, 6, 6, 0)), "hold no values"),
    ],
    ids=["masked", "list of masked", "sparse", "sparse tensor", "complex", "words", "real pictures", "no channels"],
)
def test_what_is_refused_in_one_line(x, message):
    with pytest.raises(DataError, match=message) as error:
        from_arrays(x, Y, x, Y)
    assert "\n" not in str(error.value)


def test_masked_and_one_hot_labels():
    with pytest.raises(DataError, match="5 of 10 values are masked"):
        from_arrays(ROWS, np.ma.masked_equal(Y, 1))
    with pytest.raises(DataError, match=r"labels of shape \(10, 2\).*y\.argmax\(1\)"):
        from_arrays(ROWS, np.eye(2)[Y])


def test_rows_that_are_called_otherwise_are_named():
    x, y = pd.DataFrame(ROWS), pd.Series(Y, index=np.arange(10)[::-1])
    (note,) = from_arrays(x, y).notes
    assert "paired by their position" in note
    assert from_arrays(x, pd.Series(Y)).notes == ()


def test_pictures_of_torch_datasets_follow_the_same_reader():
    ink = [Image.fromarray(np.dstack([np.zeros((8, 8, 3), np.uint8), x[..., 0]])) for x in X]
    splits = from_torch([(picture, int(label)) for picture, label in zip(ink, Y, strict=True)])
    assert splits.notes == (
        "pictures drawn in their transparency alone, laid over white (light ones over black): 10 of 10, first "
        "from_torch: item 0 of train",
    )
    deep = [(Image.fromarray(x[..., 0].astype(np.uint16) * 257), 0) for x in X]
    clients = from_clients([deep, deep], normalise="unit")
    assert (clients.train.white, clients.train.std.tolist()) == (255.0, [255.0])
    assert (
        clients.train.x[0, 0].numpy() == X[[np.isclose(x[..., 0], clients.train.x[0, 0]).all() for x in X]][0, ..., 0]
    ).all()


def test_volumes_are_normalised():
    x = np.random.default_rng(0).normal(7, 3, (20, 1, 4, 5, 6)).astype(np.float32)
    scenario = fl.scenario((x, np.arange(20) % 2), clients=2)
    gathered = scenario.train_set.gather(torch.arange(len(scenario.train_set)))
    assert (float(gathered.mean()), float(gathered.std())) == (pytest.approx(0, abs=1e-4), pytest.approx(1, abs=1e-2))


@pytest.mark.parametrize("mark", ["", " ", "NA", "nan", "?"])
def test_missing_owners_are_refused(mark):
    x, y, owners = np.zeros((40, 3), np.float32), np.arange(40) % 2, np.array(["a", "b", mark, "a"] * 10)
    says = rf"owners are '{re.escape(mark)}' for 10 of 40 samples, the first 2, which stands for a missing value"
    with pytest.raises(DataError, match=says):
        from_arrays(x, y, owners=owners)
    named = np.where(owners == mark, "c", owners)
    with pytest.raises(DataError, match=says.replace("owners", "owners_test")):
        from_arrays(x, y, x, y, owners=named, owners_test=owners)
    assert from_arrays(x, y, owners=named).train.domains == ("a", "b", "c")
    assert from_arrays(x, y, owners=np.array(["+", "-"] * 20)).train.domains == ("+", "-")
