"""CIFAR-100's superclasses and FC100, on a tiny file of the same layout that the test writes."""

import numpy as np
import pytest
import torch

import fedloom
from fedloom.core.errors import ConfigError, DataError
from fedloom.data import SOURCES
from fedloom.data.dataset import Dataset
from fedloom.data.sources.cifar import CLASS_GROUPS, CLASSES, SUPERCLASSES, coarse_labels, fc100
from fedloom.data.sources.source import Splits

# The official coarse label of each fine label, as the published files hold them.
OFFICIAL = (
    "4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 11 5 5 19 8 8 15 13 "
    "14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 12 9 13 15 13 16 19 2 4 6 19 5 5 8 19 "
    "18 1 2 15 6 0 17 8 14 13"
)


def cifar100(per_train=4, per_test=2, classes=CLASSES):
    """A tiny CIFAR-100: every pixel is its image's fine label, but the top left one: 200, or 201 in the test set."""
    halves = []
    for each, mark in ((per_train, 200), (per_test, 201)):
        y = torch.from_numpy(np.random.default_rng(each).permutation(np.repeat(np.arange(100), each)))
        x = y.to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 3, 4, 4)
        x[:, :, 0, 0] = mark
        halves.append(Dataset(x, y, tuple(classes)))
    return Splits(*halves)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A tiny cifar100.npz where that source looks for it, and a cache of the test's own."""
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    splits, path = cifar100(), tmp_path / "cifar100" / "cifar100.npz"
    path.parent.mkdir()
    arrays = {}
    for part, data in (("train", splits.train), ("test", splits.test)):
        arrays |= {f"x_{part}": data.x.permute(0, 2, 3, 1).numpy(), f"y_{part}": data.y.numpy()}
    np.savez(path, **arrays)
    return path


# -- superclasses ------------------------------------------------------------------------------------------------------
def test_superclasses_are_those_of_the_published_files():
    assert coarse_labels(CLASSES) == [int(c) for c in OFFICIAL.split()]
    assert [len(names) for names in SUPERCLASSES.values()] == [5] * 20
    assert len(set(CLASSES)) == 100


def test_superclasses_follow_names_not_positions():
    shuffled = [CLASSES[i] for i in np.random.default_rng(0).permutation(100)]
    by_name = dict(zip(CLASSES, coarse_labels(CLASSES), strict=True))
    assert coarse_labels(shuffled) == [by_name[name] for name in shuffled]
    assert coarse_labels([str(c) for c in range(100)]) == coarse_labels(CLASSES)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (CLASSES[:99], "need its 100 classes, got 99"),
        ((*CLASSES[:99], "wurm"), "it has no class 'wurm'; did you mean 'worm'"),
        ((*CLASSES[:99], "apple"), "a class is named twice"),
    ],
)
def test_other_classes_have_no_superclasses(classes, message):
    with pytest.raises(DataError, match=message):
        coarse_labels(classes)


# -- the split ---------------------------------------------------------------------------------------------------------
def test_parts_are_whole_superclasses_and_cover_all():
    assert [len(CLASS_GROUPS[part]) for part in ("train", "val", "test")] == [12, 4, 4]
    assert set().union(*CLASS_GROUPS.values()) == set(range(20))
    names = list(SUPERCLASSES)
    assert {names[c] for c in CLASS_GROUPS["test"]} == {"aquatic_mammals", "insects", "medium_mammals", "people"}
    assert {names[c] for c in CLASS_GROUPS["val"]} == {
        "large_carnivores",
        "large_omnivores_and_herbivores",
        "non-insect_invertebrates",
        "small_mammals",
    }


@pytest.mark.parametrize("novel", ["val", "test"])
def test_base_classes_train_and_novel_classes_test_with_all_their_images(novel):
    split = fc100(cifar100(), novel)
    coarse = [int(c) for c in OFFICIAL.split()]
    for data, part, classes in ((split.train, "train", 60), (split.test, novel, 20)):
        assert (len(data), data.num_classes, data.input_shape) == (classes * 6, classes, (3, 4, 4))
        assert torch.equal(torch.bincount(data.y), torch.full((classes,), 6))
        fine = data.x[:, 0, 1, 1].long()  # what each image really is
        assert all(CLASSES[f] == data.classes[y] for f, y in zip(fine.tolist(), data.y.tolist(), strict=True))
        assert {coarse[f] for f in fine.tolist()} == CLASS_GROUPS[part]
        origin = data.x[:, 0, 0, 0]
        assert torch.equal(origin, torch.tensor([200] * classes * 4 + [201] * classes * 2, dtype=torch.uint8))
    assert not set(split.train.classes) & set(split.test.classes)


def test_both_parts_are_normalised_by_the_base_images(file):
    split = SOURCES.get("fc100")(path=file).load()
    assert torch.allclose(split.train.mean, split.train.x.double().mean((0, 2, 3)).float())
    assert torch.allclose(split.train.std, split.train.x.double().std((0, 2, 3), correction=0).float())
    assert torch.equal(split.test.mean, split.train.mean)
    assert torch.equal(split.test.std, split.train.std)


# -- the source --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("novel", ["val", "test"])
def test_the_source_splits_the_files_of_cifar100(file, novel):
    expected, fc100_source = fc100(cifar100(), novel), SOURCES.get("fc100")
    for source in (fc100_source(novel=novel), fc100_source(path=file, novel=novel)):
        ours = source.load()
        for part in ("train", "test"):
            assert torch.equal(getattr(ours, part).x, getattr(expected, part).x)
            assert torch.equal(getattr(ours, part).y, getattr(expected, part).y)
        assert source.files() == [file]


def test_limit_shortens_the_training_set_and_normalise_follows_cifar100(file):
    whole, short = (SOURCES.get("fc100")(limit=limit, normalise="published").load() for limit in (None, 7))
    assert (len(short.train), len(short.test)) == (7, len(whole.test))
    assert torch.equal(short.train.y, whole.train.y[:7])
    cifar = SOURCES.get("cifar100")(normalise="published").load()
    assert torch.equal(whole.test.mean, cifar.test.mean)


def test_a_federation_is_trained_on_base_classes_and_tested_on_new_ones(file):
    scenario = fedloom.scenario("fc100", path=str(file), partition="dirichlet", alpha=0.5, clients=3, val=0.0)
    few_shot = {"protocol": "few-shot", "shots": 2, "queries": 4, "episodes": 50}
    result = fedloom.run(scenario=scenario, model="mlp", rounds=2, local_epochs=1, evaluation=few_shot)
    assert result.scenario["test_samples"] == 120
    assert len(result.scenario["classes"]) == 60
    assert result.numbers["accuracy"] > 0.9  # an image is one shade, its class
    with pytest.raises(ConfigError, match="other classes than its training set; use few-shot"):
        fedloom.run(scenario=scenario, model="mlp", rounds=1)
    with pytest.raises(ConfigError, match=r"scenario.novel = 'train': input should be 'val' or 'test'"):
        fedloom.scenario("fc100", path=str(file), alpha=0.5, novel="train")
