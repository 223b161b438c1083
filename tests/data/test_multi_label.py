"""Several labels a sample: where they are read, how they are split and dealt, and what is said of them."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import fedloom as fl
from fedloom.core.errors import ConfigError, DataError
from fedloom.data import PARTITIONS, SKEWS, describe_scenario, from_arrays, from_clients, from_torch
from fedloom.data.attacks import LabelFlip
from fedloom.data.labels import class_notes
from fedloom.data.sources.hf import from_huggingface
from fedloom.data.sources.nodes import Nodes
from fedloom.data.sources.source import stratified_split
from fedloom.data.views import Views, group_split, split_three, strata
from fedloom.runs.config.first_config import first_config
from hub_sets import FakeSet

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 6)).astype(np.float32)
Y = (X[:, :4] > [0, 0.5, 1, 1.5]).astype(np.int64)  # positives are rarer from label to label
Y[RNG.random(Y.shape) < 0.1] = -1
OWNERS = np.arange(400) % 5


def scenario(y=Y, keys=None, **arrays):
    return fl.scenario(from_arrays(X, y, labels="multi", **arrays), **(keys or {}))


@pytest.mark.parametrize("y", [Y, Y.astype(float), np.where(Y < 0, np.nan, Y), torch.from_numpy(Y), Y.tolist()])
def test_arrays_hold_1_0_and_minus_1(y):
    data = from_arrays(X, y, X, y, labels="multi", classes="abcd").train
    assert (data.y.tolist(), data.y.dtype, data.multi, data.num_classes) == (Y.tolist(), torch.int64, True, 4)
    assert data.classes == tuple("abcd")


@pytest.mark.parametrize(
    ("y", "problem"),
    [
        (Y * 2, "are other numbers, as"),
        (Y[:, 0], r"labels have shape \(400,\)"),
        (Y[:, :0], r"labels have shape \(400, 0\)"),
        (Y.astype(str), "dtype <U"),
        (np.where(Y == 0, -1, Y), "no label of a training sample is 0"),
    ],
)
def test_other_labels_are_refused(y, problem):
    with pytest.raises(DataError, match=problem) as error:
        from_arrays(X, y, labels="multi")
    assert "\n" not in str(error.value)


def test_single_labels_of_several_1s_are_pointed_here():
    with pytest.raises(DataError, match=r"say `labels: multi` \(in Python labels='multi'\)"):
        from_arrays(X, np.maximum(Y, 0))
    with pytest.raises(DataError, match="source digits has one label a sample"):
        fl.scenario("digits", labels="multi", clients=2).build(0)


def test_torch_and_client_doors_tell_samples_from_clients():
    items = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(X, Y, strict=True)]
    assert from_torch(items, labels="multi").train.y.shape == (320, 4)
    assert fl.scenario(items, labels="multi", clients=2).train_set.multi
    assert from_clients([(X[:200], Y[:200]), (X[200:], Y[200:])], labels="multi").owner_count == 2
    with pytest.raises(DataError, match="all must match"):
        from_clients([(X[:200], Y[:200]), (X[200:], Y[200:, :3])], labels="multi")


def test_strata_are_the_rarest_label_of_a_sample():
    y = np.array([[1, 1, 0], [1, 0, 0], [1, 0, -1], [0, 0, 0], [-1, -1, 1], [1, 0, 1]])
    assert strata(y).tolist() == [1, 0, 0, 3, 2, 2]


def test_splits_keep_the_shares_of_labels():
    train, test = stratified_split(Y, 0.25, np.random.default_rng(0), "x")
    shares = (Y[test] == 1).sum(0) / (Y == 1).sum(0)
    assert (len(test), len(train)) == (100, 300)
    assert np.abs(shares - 0.25).max() < 0.06
    assert abs(shares[3] - 0.25) < 0.03  # the rarest one
    parts = split_three(Views.from_owners(OWNERS, 5), Y, 4, 0.25, 0.25, np.random.default_rng(0))
    assert [len(part.order) for part in parts] == [200, 100, 100]
    assert all((Y[part.order] == 1).any(0).all() for part in parts)


def test_groups_are_split_by_the_positives_of_all_labels():
    groups = RNG.integers(0, 100, 400)
    for seed in range(5):
        part = group_split(groups, Y, (0.6, 0.2, 0.2), np.random.default_rng(seed))
        assert not set(groups[part == 0]) & set(groups[part == 2])
        for share, number in ((0.6, 0), (0.2, 1), (0.2, 2)):
            assert abs((part == number).mean() - share) < 0.02
            assert np.abs((Y[part == number] == 1).sum(0) - share * (Y == 1).sum(0)).max() < 2  # positives
    order = RNG.permutation(400)
    again = group_split(groups[order], Y[order], (0.6, 0.2, 0.2), np.random.default_rng(seed))
    assert (again == part[order]).all()


@pytest.mark.parametrize("keys", [{"val": 0.2}, {"split": {"train": 2, "val": 1, "test": 1}}, {"public": 0.2}], ids=str)
@pytest.mark.parametrize(
    "arrays", [{}, {"groups": np.arange(400) // 4}, {"owners": OWNERS}], ids=["", "groups", "owners"]
)
def test_scenarios_are_dealt(keys, arrays):
    dealt = scenario(keys={**keys, **({} if "owners" in arrays else {"clients": 4})}, **arrays)
    held = dealt.train_set.y.numpy()
    assert dealt.class_counts()[0].tolist() == (held[dealt.train[0]] == 1).sum(0).tolist()


def test_partitions_either_deal_or_name_those_that_do():
    takers = {name for name, kind in PARTITIONS if kind.takes_multi}
    assert takers == {"iid", "quantity", "natural", "domains", "indices"}
    for name, kind in PARTITIONS:
        if name in takers or any(field.is_required() for field in kind.model_fields.values()):
            continue
        with pytest.raises(ConfigError, match="several labels; take one of domains, iid, indices, natural, quantity"):
            scenario(keys={"partition": name, "clients": 3})
    for keys in ({"partition": "quantity", "alpha": 1.0, "clients": 3}, {"partition": "domains", "clients": 5}):
        arrays = {"domain": OWNERS, "domains": [*"vwxyz"]} if keys["partition"] == "domains" else {}
        assert scenario(keys=keys, **arrays).train_set.multi


@pytest.mark.parametrize(
    "keys",
    [
        {"tests": "matched"},
        {"attack": LabelFlip.kind},
        *({"skews": [skew]} for skew in ({"name": "long-tail", "rho": 2}, {"name": "label-noise", "share": 0.1})),
        {"skews": [{"name": "permutations", "groups": 2}]},
    ],
    ids=str,
)
def test_what_needs_one_class_is_refused(keys):
    with pytest.raises(ConfigError, match="needs one class for each sample"):
        scenario(keys=keys | {"clients": 5})


def test_other_skews_and_attacks_work():
    assert {"ratio", "transforms"} <= {*SKEWS.names()}
    dealt = scenario(keys={"clients": 5, "skews": [{"name": "ratio", "ratio": 0.5}], "attack": "sign-flip"})
    assert len(dealt.train.order) < 200


def test_who_records_what_is_described():
    y = Y.copy()
    y[OWNERS != 3, 2] = -1
    dealt = scenario(y, owners=OWNERS, classes=["a", "b", "c", "d"])
    assert "labels that one client alone records (1): c" in dealt.notes
    described = json.loads(json.dumps(describe_scenario(dealt)))
    held = dealt.train_set.y.numpy()[dealt.train.order]
    assert described["labels"]["positives"] == (held == 1).sum(0).tolist()
    assert described["labels"]["recorded"] == (held >= 0).sum(0).tolist()
    assert described["labels"]["clients"] == [5, 5, 1, 5]
    assert described["client_samples"] == dealt.train.sizes.tolist()
    assert f"c: {described['labels']['positives'][2]:,} of" in repr(fl.inspect(dealt))
    y[OWNERS == 2] = -1
    with pytest.raises(ConfigError, match=r"1 of 5 clients record none of the labels, the first client 2 \("):
        scenario(y, owners=OWNERS)


def test_labels_without_positives_are_noted():
    y = Y.copy()
    y[y[:, 0] == 1, 0] = 0
    notes = from_arrays(X, y, X, Y, labels="multi").notes
    assert notes[0] == "from_arrays (train): labels without a positive here (1): 0"


def table(path, rows):
    path.write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return path


WRITTEN = {"a": {1: "1", 0: "0", -1: ""}, "b": {1: "yes", 0: "N", -1: ""}, "c": {1: "true", 0: "False", -1: "NA"}}
NAMES = ("Effusion", "Mass", "Nodule")
FINDINGS = ["|".join(name for name, one in zip(NAMES, row, strict=False) if one == 1) or "No Finding" for row in Y]


@pytest.fixture
def file(tmp_path):
    cells = [[WRITTEN[name][int(value)] for name, value in zip(WRITTEN, row, strict=False)] for row in Y]
    rows = [(f"{x[0]:.4f}", *row, finding) for x, row, finding in zip(X, cells, FINDINGS, strict=True)]
    return table(tmp_path / "t.csv", [("u", *WRITTEN, "finding"), *rows])


def load(file, **keys):
    built = fl.scenario(**{"source": "csv", "path": str(file), "labels": "multi", "clients": 3, **keys}).build(0)
    x = np.concatenate([built.train_set.x.numpy(), built.test_set.x.numpy()])[:, 0]
    y = np.concatenate([built.train_set.y.numpy(), built.test_set.y.numpy()])
    return built, y[np.argsort(x, kind="stable")], Y[np.argsort(np.round(X[:, 0], 4), kind="stable"), :3]


def test_tables_have_a_column_for_each_label(file):
    built, read, written = load(file, label=[*WRITTEN], drop=["finding"])
    assert (built.class_names, built.train_set.features) == (tuple(WRITTEN), ("u",))
    assert (read == written).all()


def test_tables_have_a_column_that_names_all_labels(file):
    keys = {"label": "finding", "label_separator": "|", "drop": [*WRITTEN]}
    built, read, written = load(file, **keys, no_label="No Finding")
    assert built.class_names == NAMES
    assert (read == (written == 1)).all()
    assert load(file, **keys)[0].class_names == (*NAMES[:2], "No Finding", NAMES[2])


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"label": "a"}, "labels: multi reads a list of different columns"),
        ({"label": []}, "labels: multi reads"),
        ({"label": ["a", "a"]}, "labels: multi reads"),
        ({"label": ["a", "b"], "labels": "single"}, "labels: single reads one column"),
        ({"label": ["a", "b"], "no_label": "x"}, "labels: multi reads"),
        ({"label": ["a", "bb"]}, "label = 'bb' is no column"),
        ({"label": ["a", "b"], "owner": "b"}, "label and owner are both 'b'"),
        ({"label": ["a", "b", "finding"]}, "label 'finding' is 'Effusion' in"),
        ({"label": "finding", "label_separator": ";", "drop": [*WRITTEN]}, "';' is in no cell of 'finding'"),
        ({"label": "finding", "label_separator": "|", "no_label": "None", "drop": [*WRITTEN]}, "'None' is in no cell"),
        (
            {"label": "finding", "label_separator": "|", "no_label": "Mass", "drop": [*WRITTEN]},
            "'Mass' stands with labels in",
        ),
    ],
    ids=str,
)
def test_labels_of_tables_that_cannot_be_read_are_refused(file, keys, problem):
    with pytest.raises((ConfigError, DataError), match=problem):
        load(file, **({"drop": ["c"]} | keys))


def test_single_labels_that_name_others_are_noted():
    notes = class_notes(["t", "t"], ["Effusion", "Effusion|Mass", "Mass"], [1, 1, 1], [1, 1, 1])
    assert notes[0].startswith("t: classes that name others (1), such as 'Effusion|Mass'; labels: multi with")


def test_pictures_and_texts_that_a_table_lists(tmp_path):
    rows = []
    for number, (labels, finding) in enumerate(zip(Y[:40], FINDINGS, strict=False)):
        pixels = np.full((8, 8), number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"p{number}.png")
        rows.append(
            (f"p{number}.png", f"word{number} and more", *np.maximum(labels[:2], 0), finding, f"q{number // 2}")
        )
    file = table(tmp_path / "l.csv", [("file", "text", "a", "b", "finding", "person"), *rows])
    keys = {"source": "file-table", "path": str(file), "labels": "multi", "clients": 2, "size": 8, "channels": 1}
    built = fl.scenario(**keys, label=["a", "b"], group="person").build(0)
    numbers = built.train_set.x[:, 0, 0, 0].long().numpy()
    assert (built.train_set.y.numpy() == np.maximum(Y[numbers, :2], 0)).all()
    named = {"label": "finding", "label_separator": "|", "no_label": "No Finding"}
    assert fl.scenario(**keys, **named).build(0).class_names == NAMES
    texts = {"source": "text-table", "path": str(file), "labels": "multi", "clients": 2}
    assert fl.scenario(**texts, **named).build(0).train_set.y.shape == (32, 3)


def test_npz_as_medmnist_writes_them_and_init(tmp_path):
    y = (RNG.random((90, 14)) < 0.3).astype(np.uint8)
    parts = {"train": slice(0, 60), "val": slice(60, 75), "test": slice(75, 90)}
    pixels = RNG.integers(0, 255, (90, 8, 8), dtype=np.uint8)
    arrays = {f"{part}_images": pixels[rows] for part, rows in parts.items()}
    path = tmp_path / "chestmnist.npz"
    np.savez(path, **arrays, **{f"{part}_labels": y[rows] for part, rows in parts.items()})
    built = fl.scenario("npz", path=str(path), labels="multi", clients=2).build(0)
    assert (built.train_set.y.numpy() == y[:75]).all()
    assert len(built.val.order) == 15
    assert (built.test_set.y.numpy() == y[75:]).all()
    with pytest.raises(DataError, match="say `labels: multi`"):
        fl.scenario("npz", path=str(path), clients=2).build(0)
    section = first_config(str(path)).sections["scenario"]
    assert (section["labels"][0], section["partition"][0]) == ("multi", "iid")


HUB = [["mass"], [], ["mass", "node"], ["node"], []] * 2
CELLS = np.array([[int(name in row) for name in ("mass", "node")] for row in HUB])
IDS = [[("node", "mass").index(name) for name in row] for row in HUB]


def lists_of(values, names=None, kind="feature"):
    """A set of the hub whose labels are lists; names: those of their entries."""
    data = FakeSet(label=values)
    entry = SimpleNamespace(names=names)
    data.features["label"] = [entry] if kind == "list" else SimpleNamespace(feature=entry)
    return data


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (FakeSet(mass=CELLS[:, 0].tolist(), node=CELLS[:, 1].astype(bool).tolist()), {"label": ["mass", "node"]}),
        (lists_of(HUB), {}),
        (lists_of(IDS, ["node", "mass"]), {}),
        (lists_of(IDS, ["node", "mass"], "list"), {}),
        (lists_of(CELLS.tolist()), {}),
    ],
)
def test_sets_of_the_hub_have_lists_of_labels_or_columns(data, keys):
    splits = from_huggingface({"train": data, "test": data}, labels="multi", size=8, **keys)
    order = [("mass", "node", "0", "1").index(name) % 2 for name in splits.train.classes]
    assert splits.train.y.tolist() == CELLS[:, order].tolist() == splits.test.y.tolist()
    assert len(from_huggingface(data, labels="multi", size=8, **keys).train) == 8


def test_labels_of_the_hub_that_cannot_be_read_are_refused():
    blank = FakeSet(mass=[None, *CELLS[1:, 0].tolist()], node=CELLS[:, 1].tolist())
    both = {"train": blank, "test": blank}
    assert from_huggingface(both, labels="multi", size=8, label=["mass", "node"]).train.y[0].tolist() == [-1, 0]
    for data, keys, problem in (
        (FakeSet(), {"labels": "multi"}, "0 is no list of labels; need lists, or a column for each"),
        (lists_of([*IDS[:9], [2]], ["node", "mass"]), {"labels": "multi"}, "label 2 is none of the 2 names"),
        (FakeSet(), {"label": ["mass", "node"]}, "several columns are for labels: multi"),
        (FakeSet(), {"labels": "multi", "label": ["label", "node"]}, "has no column 'node'"),
    ):
        with pytest.raises(DataError, match=problem):
            from_huggingface({"train": data}, size=8, **keys)


def test_nodes_record_different_labels():
    agreed = Nodes(labels="multi", classes=("c", "a", "b"), shape=(6,), values="numbers")
    own = from_arrays(X, Y[:, :2], X, Y[:, :2], labels="multi", classes="ab").train
    assert agreed.as_agreed(own, "n").y.tolist() == [[-1, *row] for row in Y[:, :2].tolist()]
    assert agreed.as_agreed(own, "n", absent=0).y[:, 0].tolist() == [0] * 400
    assert agreed.placeholder_data().multi
    with pytest.raises(DataError, match="class 'b' is none of the federation's: c, a"):
        Nodes(labels="multi", classes=("c", "a"), shape=(6,), values="numbers").as_agreed(own, "n")


def test_the_key_is_written_only_where_it_is_used():
    assert "labels" not in fl.scenario("digits", clients=2).resolved()
    assert fl.scenario("npz", path="x.npz", labels="multi", clients=2).resolved()["labels"] == "multi"
