"""Index lists in files, and Flower's partitioners."""

import importlib.util
import json

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError, DataError
from fedloom.core.streams import Streams
from fedloom.data import OwnSplit, export_indices, make_scenario
from fedloom.data.dataset import Dataset
from fedloom.data.partitions import labels_only
from fedloom.data.partitions.classes import IID
from fedloom.data.partitions.dirichlet import Dirichlet
from fedloom.data.partitions.natural import Flower, IndexLists
from fedloom.data.skews.ratio import LabelNoise, LongTail
from fedloom.data.skews.skew import Permutations
from fedloom.data.sources import Splits


def splits(train=120, test=60):
    def dataset(n):
        return Dataset(torch.arange(n).view(n, 1).float(), torch.arange(n) % 3, ("a", "b", "c"))

    return Splits(dataset(train), dataset(test))


def scenario(partition, seed=0, data=None, **more):
    given = {"clients": 4, "val": 0.2} | more
    return make_scenario("toy", data or splits(), partition, streams=Streams(seed), **given)


def as_lists(views):
    return [views[k].tolist() for k in range(len(views))]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"val": 0.0},
        {"tests": "matched"},
        {"split": OwnSplit(train=8, val=1, test=1)},
        {"split": OwnSplit(train=8, val=1, test=1, pool="all")},
        {"skews": [LongTail(rho=4)]},
        {"skews": [LabelNoise(share=0.3)]},
        {"skews": [Permutations(of="labels", groups=2)]},
    ],
    ids=str,
)
def test_what_is_exported_is_read_back_to_the_same_scenario(tmp_path, more):
    made = scenario(Dirichlet(alpha=0.5, min_samples=5), **more)
    path = tmp_path / "dealt.json"
    export_indices(made, path, config={"seed": 0, "alpha": 0.5})
    again = {key: value for key, value in more.items() if key == "split"}
    if isinstance(more.get("skews", [None])[0], LabelNoise | Permutations):
        again |= more
    read = scenario(IndexLists(partition_file=path), seed=0, **again)
    for part in ("train", "val", "test"):
        assert as_lists(getattr(read, part)) == as_lists(getattr(made, part))
    assert (read.draws, read.accepted) == (made.draws, made.accepted)
    if again.keys() == more.keys():
        assert read.digest() == made.digest()


def test_the_file_says_what_it_is_of(tmp_path):
    made = scenario(IID())
    export_indices(made, tmp_path / "dealt.json", config={"seed": 3})
    content = json.loads((tmp_path / "dealt.json").read_text())
    assert content["config"] == {"seed": 3}
    assert content["source"] == "toy"
    assert content["train_samples"] == 120
    assert content["clients"][2]["train"] == made.train[2].tolist()
    assert [c["class_counts"] for c in content["clients"]] == made.class_counts().tolist()


def test_other_data_are_refused(tmp_path):
    path = tmp_path / "dealt.json"
    export_indices(scenario(IID()), path)
    with pytest.raises(DataError, match=r"was made of other data \(train_samples differ\)"):
        scenario(IndexLists(partition_file=path), data=splits(121))
    turned = splits()
    turned.test.y[:2] = turned.test.y[:2].flip(0)
    with pytest.raises(DataError, match=r"source_digest differ"):
        scenario(IndexLists(partition_file=path), data=turned)
    with pytest.raises(ConfigError, match=r"holds 4 clients; need clients=4"):
        scenario(IndexLists(partition_file=path), clients=5)
    with pytest.raises(ConfigError, match="names samples of the whole source; none may be left out"):
        scenario(IndexLists(partition_file=path), skews=[LongTail(rho=4)])


def test_whose_test_samples_they_are_must_agree(tmp_path):
    path = tmp_path / "dealt.json"
    export_indices(scenario(IID(), split=OwnSplit(train=8, val=1, test=1, pool="all")), path)
    with pytest.raises(ConfigError, match="the clients' own pool; set split with pool=all"):
        scenario(IndexLists(partition_file=path))
    with pytest.raises(ConfigError, match=r"test lists are of train\+test, scenario\.split\.pool = 'train'"):
        scenario(IndexLists(partition_file=path), split=OwnSplit(train=8, val=1, test=1))


def test_the_least_that_a_file_must_hold(tmp_path):
    path = tmp_path / "foreign.json"
    path.write_text(json.dumps({"clients": [{"train": [5, 3], "test": [0]}, {"train": [1]}]}))
    read = scenario(IndexLists(partition_file=path), clients=2, val=0.5)
    assert sorted([*read.train[0].tolist(), *read.val[0].tolist()]) == [3, 5]
    assert as_lists(read.test) == [[0], []]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not readable as JSON"),
        ("[]", "holds no index lists"),
        ('{"clients": []}', "holds no index lists"),
        ('{"clients": [{"test": [1]}]}', "holds no index lists"),
        ('{"clients": [{"train": [1.5]}]}', "client 0, train: need a list of whole numbers"),
        ('{"clients": [{"train": [true]}]}', "client 0, train: need a list"),
        ('{"clients": [{"train": [-1]}]}', "client 0, train: need a list"),
        ('{"clients": [{"train": [1]}, {"train": [2, 1]}]}', "sample 1 is listed twice"),
        ('{"clients": [{"train": [1], "val": [1]}]}', "sample 1 is listed twice"),
        ('{"clients": [{"train": [120]}]}', r"train index 120 is outside 0 .. 119"),
        ('{"clients": [{"train": [1], "test": [60]}]}', r"test index 60 is outside 0 .. 59"),
        ('{"clients": [{"train": [1]}], "test_rows": "mine"}', "test_rows = 'mine'; need official"),
        ('{"clients": [{"train": [1]}], "draws": 0}', "draws = 0, accepted = 1; need"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path, content, says):
    path = tmp_path / "broken.json"
    path.write_text(content)
    clients = content.count("train") or 1
    with pytest.raises(DataError, match=says) as caught:
        scenario(IndexLists(partition_file=path), clients=clients)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match="no such file of index lists"):
        scenario(IndexLists(partition_file=tmp_path / "none.json"))


@pytest.mark.skipif(importlib.util.find_spec("flwr_datasets") is not None, reason="flwr-datasets is installed")
def test_flower_says_what_to_install():
    data = labels_only([0, 1] * 10)
    with pytest.raises(ConfigError, match=r"flwr-datasets is not installed; install fedloom\[flower-datasets\]"):
        Flower(partitioner="IidPartitioner").deal(data, data, 2, np.random.default_rng(0))


@pytest.mark.skipif(importlib.util.find_spec("flwr_datasets") is None, reason="needs flwr-datasets")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("partitioner", "options", "clients"),
    [
        ("IidPartitioner", {}, 5),
        ("DirichletPartitioner", {"alpha": 0.5}, 5),
        ("ShardPartitioner", {"num_shards_per_partition": 2}, 5),
        ("NaturalIdPartitioner", {"partition_by": "domain"}, 3),
    ],
)
def test_flowers_partitioners(partitioner, options, clients):
    data = labels_only(list(range(10)) * 60, domain=[0, 1, 2] * 200, domains=["a", "b", "c"])
    made = Flower(partitioner=partitioner, options=options)
    first, again = (made.deal(data, data, clients, np.random.default_rng(0)) for _ in range(2))
    assert sorted(first.train.order.tolist()) == list(range(600))
    assert first.train.order.tolist() == again.train.order.tolist()
    assert first.train.sizes.tolist() == first.test.sizes.tolist()


@pytest.mark.skipif(importlib.util.find_spec("flwr_datasets") is None, reason="needs flwr-datasets")
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"partitioner": "DirichletPartitione"}, "did you mean 'DirichletPartitioner'"),
        ({"partitioner": "DirichletPartitioner", "options": {"alpa": 1}}, "did you mean 'alpha'"),
        ({"partitioner": "DirichletPartitioner", "options": {"alpha": -1}}, "refused: Alpha values"),
    ],
    ids=str,
)
def test_flower_settings_that_do_not_work(settings, says):
    data = labels_only([0, 1] * 10)
    with pytest.raises(ConfigError, match=says):
        Flower(**settings).deal(data, data, 2, np.random.default_rng(0))
