"""Data that are in memory already, and Hugging Face datasets (a stand-in of the library where it is not installed)."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedloom.core.errors import DataError
from fedloom.data import SOURCES, from_arrays, from_clients, from_huggingface, from_torch
from hub_sets import FakeSet, X, Y

# --- arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, list])
def test_arrays_tensors_and_lists(kind):
    splits = from_arrays(kind(X), kind(Y), kind(X[:2]), kind(Y[:2]))
    assert (splits.train.x.numpy() == X.transpose(0, 3, 1, 2)).all()
    assert splits.test.y.tolist() == [0, 1]
    assert splits.train.classes == ("0", "1")
    assert splits.train.mean.tolist() == pytest.approx(X.mean((0, 1, 2)).tolist())


def test_images_that_lie_right_are_not_copied():
    x = np.ascontiguousarray(X.transpose(0, 3, 1, 2))
    assert from_arrays(x, Y, x, Y).train.x.data_ptr() == x.ctypes.data


def test_without_a_test_set_a_share_of_each_class_is_held_out():
    splits = from_arrays(X, Y, test_share=0.4, domain=np.arange(10) % 2, domains=["a", "b"])
    assert torch.bincount(splits.train.y).tolist() == [3, 3]
    assert torch.bincount(splits.test.y).tolist() == [2, 2]
    assert torch.equal(splits.train.domain, splits.train.y)
    assert splits.test.domains == ("a", "b")


def test_tokens_stay_integers():
    splits = from_arrays(np.arange(20).reshape(10, 2), Y, tokens=True)
    assert splits.train.gather(torch.tensor([0])).dtype == torch.int64
    with pytest.raises(DataError, match=r"\(train\): token id -1 is negative"):
        from_arrays(np.full((10, 2), -1), Y, tokens=True)
    with pytest.raises(DataError, match="need integers"):
        from_arrays(np.zeros((10, 2)), Y, tokens=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, Y[:3]), "labels of shape"),
        ((X, Y, X), "x_test and y_test belong together"),
        ((X, Y, X[:, :4], Y), "differ in sample shape"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        from_arrays(*arguments)


def test_a_class_that_a_part_lacks_is_told():
    labels = np.array([0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
    assert from_arrays(X, labels).notes == ("from_arrays (test): classes without a sample here (1): 1",)
    assert from_arrays(X, Y, X[:2], [0, 0]).notes == ("from_arrays (test): classes without a sample here (1): 1",)


# --- torch datasets --------------------------------------------------------------------------------------------------


class Pictures(torch.utils.data.Dataset):
    classes = ("cat", "dog")

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 10

    def __getitem__(self, row):
        return self.make(X[row]), int(Y[row])


@pytest.mark.parametrize(
    "make",
    [Image.fromarray, np.asarray, lambda a: torch.from_numpy(a).permute(2, 0, 1)],
    ids=["PIL", "array", "tensor"],
)
def test_torch_datasets_are_read_once(make):
    splits = from_torch(Pictures(make), Pictures(make))
    assert splits.train.classes == ("cat", "dog")
    assert (splits.train.x.numpy() == X.transpose(0, 3, 1, 2)).all()
    assert splits.test.y.tolist() == Y.tolist()


def test_a_tensor_dataset_without_names_or_test_set():
    splits = from_torch(torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), normalise="unit")
    assert (len(splits.train), len(splits.test)) == (8, 2)
    assert splits.train.std.tolist() == [255.0] * 3


# --- Hugging Face ----------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch):
    calls = []
    module = types.SimpleNamespace(config=types.SimpleNamespace(HF_HUB_OFFLINE=False))
    module.DownloadConfig = lambda **keys: keys

    def load_dataset(name, subset, *, split, revision, download_config):
        calls.append((name, subset, split, revision, download_config, module.config.HF_HUB_OFFLINE))
        if name == "absent":
            raise FileNotFoundError("Couldn't find\nthe dataset")
        if name == "words":
            return FakeSet(label=["b", "a"] * 5, sentence=["good film", "bad"] * 5)
        return FakeSet(["cat", "dog"] if name == "pictures" else None)

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_hub_images(hub):
    splits = SOURCES.get("hf")(dataset="pictures", size=8).load()
    assert splits.train.classes == ("cat", "dog")
    assert (splits.train.x.numpy() == X.transpose(0, 3, 1, 2)).all()
    assert splits.test.y.tolist() == Y.tolist()
    assert [call[2] for call in hub] == ["train", "test"]


def test_unusual_words_as_labels_of_hub_sets():
    (note,) = from_huggingface(FakeSet(label=["a", "A"] * 5), size=8).notes
    assert note.startswith("hf data: classes look alike and count as different: 'A' (5) and 'a' (5)")
    with pytest.raises(DataError, match="label 'NA' of 5 samples stands for a missing value"):
        from_huggingface(FakeSet(label=["a", "NA"] * 5), size=8)
    assert from_huggingface(FakeSet(["a", "NA"]), size=8).notes == ()


def test_hub_texts_and_a_test_set_of_their_own(hub):
    keys = {"text": "sentence", "test_split": None, "length": 3}
    splits = SOURCES.get("hf")(dataset="words", **keys).load()
    assert splits.train.classes == ("a", "b")
    assert (len(splits.train), len(splits.test)) == (8, 2)
    assert {tuple(row) for row in splits.train.x.tolist()} == {(4, 3, 0), (2, 0, 0)}


def test_offline_is_handed_on_and_put_back(hub):
    SOURCES.get("hf")(dataset="pictures", size=8, offline=True).load()
    assert hub[0][4:] == ({"local_files_only": True}, True)
    SOURCES.get("hf")(dataset="pictures", size=8).load()
    assert hub[-1][4:] == (None, False)


def test_only_a_pinned_revision_is_cached(hub):
    pinned = SOURCES.get("hf")(dataset="pictures", size=8, revision="0123456789" * 4)
    first = pinned.load()
    calls = len(hub)
    assert torch.equal(pinned.load().train.x, first.train.x)
    assert len(hub) == calls
    branch = SOURCES.get("hf")(dataset="pictures", size=8, revision="main")
    branch.load()
    branch.load()
    assert len(hub) == calls + 4


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dataset": "absent"}, r"absent \(train\) cannot be loaded \(Couldn't find the dataset\)"),
        ({"dataset": "absent", "offline": True}, "offline is set and it is not in the local cache"),
        ({"dataset": "pictures", "image": "img"}, "has no column 'img'; it has label, image"),
        ({"dataset": "pictures", "label": "y"}, "has no column 'y'"),
    ],
)
def test_what_the_hub_does_not_have_is_one_line(hub, keys, message):
    with pytest.raises(DataError, match=message) as caught:
        SOURCES.get("hf")(**keys).load()
    assert "\n" not in str(caught.value)


def test_without_the_extra_one_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"install fedloom\[hub\]"):
        SOURCES.get("hf")(dataset="pictures").load()


def test_no_source_but_hf_can_reach_the_network():
    folder = Path(sys.modules["fedloom.data.sources"].__file__).parent
    for path in [*folder.glob("*.py"), folder.parent / "cache.py"]:
        text = path.read_text()
        for word in ("urllib", "requests", "http", "socket", "ftplib", "torchvision.datasets"):
            assert word not in text, path
        assert ("load_dataset(" in text) == (path.name == "hf.py")


class Augmented:
    """A data set whose items are mirrored at random, as torchvision's transforms do."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 40

    def __getitem__(self, row):
        x = np.arange(6.0) + row
        return (x[::-1].copy() if self.rng.random() < 0.5 else x), row % 2


def test_items_that_change_from_reading_to_reading():
    with pytest.raises(DataError, match=r"item \d+ of train changes from reading to reading.*frozen=True"):
        from_torch(Augmented())
    with pytest.raises(DataError, match=r"item \d+ of client \d changes"):
        from_clients([Augmented() for _ in range(3)])
    assert len(from_torch(Augmented(), frozen=True).train) == 32
    assert len(from_clients([Augmented() for _ in range(3)], frozen=True).train) == 96
