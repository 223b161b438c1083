"""Groups of samples, such as persons: every door, every part of a scenario, and what tests share with training."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import fedloom as fl
from fedloom.core.errors import ConfigError, DataError, FedloomError
from fedloom.data import Scenario, from_arrays, from_huggingface
from fedloom.data.leak import leak, leak_sentences
from fedloom.data.sources.source import load_splits
from hub_sets import FakeSet

PERSONS, ROWS = 60, 5
IDS = np.repeat(np.arange(PERSONS), ROWS)


def noise(seed=0):
    """Persons with a fingerprint and a random label: nothing can be learned that holds for other persons."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(PERSONS, 8))[IDS] + 0.05 * rng.normal(size=(len(IDS), 8))
    return x.astype(np.float32), np.tile([0, 1], PERSONS // 2)[IDS]


X, Y = noise()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("groups") / "rows.csv"
    with path.open("w", newline="") as stream:
        write = csv.writer(stream)
        write.writerow(["person", "hospital", "ill", *(f"f{number}" for number in range(8))])
        for person, x, y in zip(IDS, X, Y, strict=True):
            write.writerow([f"{person:02d}", "ABC"[person % 3], ["no", "yes"][y], *x])
    return path


def scenario_of(path, **keys) -> Scenario:
    return fl.scenario("csv", path=path, label="ill", **keys).build(0)


def parts_of(scenario):
    """The groups of each part."""
    groups, newcomers = scenario.train_set.group.numpy(), scenario.newcomers
    parts = [groups[scenario.train.order], groups[scenario.val.order], scenario.test_set.group.numpy()]
    parts += [] if scenario.public is None else [scenario.public.group.numpy()]
    return parts + ([] if newcomers is None else [newcomers.train_set.group.numpy()[newcomers.train.order]])


@pytest.mark.parametrize(
    "keys",
    [
        {"partition": "iid", "clients": 4},
        {"partition": "dirichlet", "alpha": 0.3, "clients": 4},
        {"partition": "dirichlet-equal", "alpha": 0.3, "clients": 4},
        {"partition": "quantity", "alpha": 0.5, "clients": 4},
        {"partition": "classes", "classes_per_client": 1, "clients": 4},
        {"partition": "natural", "owner": "hospital"},
        {"partition": "domains", "owner": "hospital", "clients": 6, "clients_per_domain": 2},
        {"partition": "iid", "clients": 3, "owner": "person", "group": "owner"},
        {"partition": "iid", "clients": 3, "split": {"train": 0.6, "val": 0.2, "test": 0.2}},
        {"partition": "iid", "clients": 3, "split": {"train": 0.6, "val": 0.2, "test": 0.2, "pool": "all"}},
        {"partition": "iid", "clients": 3, "public": 0.1},
        {"partition": "iid", "clients": 8, "held_out": {"share": 0.25}},
        {"partition": "iid", "clients": 3, "owner": "hospital", "held_out": {"domain": "B"}},
        {"partition": "iid", "clients": 3, "tests": "matched"},
    ],
    ids=lambda keys: "-".join(map(str, keys.values()))[:50],
)
def test_no_group_has_rows_in_two_parts_or_at_two_clients(table, keys):
    scenario = scenario_of(table, **{"group": "person", **keys})
    parts = parts_of(scenario)
    assert all(len(part) for part in (parts[0], *parts[2:]))
    assert sum(len(np.unique(part)) for part in parts) == len(np.unique(np.concatenate(parts)))
    owner = scenario.train.owner_of(len(scenario.train_set))[scenario.train.order]
    pairs = np.unique(np.stack([owner, parts[0]]), axis=1)
    assert pairs.shape[1] == len(np.unique(parts[0]))
    assert leak(scenario)["groups_seen"] == 0


def test_groups_may_have_rows_at_several_owners_and_the_split_is_common(table, tmp_path):
    header, *rows = [line.split(",") for line in table.read_text().splitlines()]
    moved = [[person, "ABC"[number % 3], *cells] for number, (person, _, *cells) in enumerate(rows)]
    path = tmp_path / "crossing.csv"
    path.write_text("\n".join(",".join(cells) for cells in [header, *moved]))
    scenario = scenario_of(path, owner="hospital", partition="natural", group="person")
    groups = scenario.train_set.group.numpy()
    assert np.intersect1d(groups[scenario.train[0]], groups[scenario.train[1]]).size
    parts = parts_of(scenario)
    assert not np.intersect1d(parts[0], parts[2]).size
    keys = {"owner": "hospital", "partition": "natural", "cross_owner": "refuse"}
    with pytest.raises(ConfigError, match=r"cross_owner = refuse: \d+ of \d+ groups have rows at several clients"):
        scenario_of(path, group="person", **keys)
    with pytest.raises(
        ConfigError, match=r"cross_owner = refuse: no groups are known here; name them by scenario.group"
    ):
        scenario_of(path, drop=["person"], **keys)
    assert fl.scenario("csv", path=path, label="ill").resolved().keys().isdisjoint({"cross_owner"})
    with pytest.raises(ConfigError, match=r"groups have rows in both the training samples .* and the newcomers'"):
        scenario_of(path, owner="hospital", partition="natural", group="person", held_out=[0])


def test_ids_are_compared_as_they_are_written_and_numbered_in_their_order(table):
    source, _ = fl.scenario("csv", path=table, label="ill", group="person", drop=["hospital"]).parts()
    splits = load_splits(source)
    assert splits.train.features[0] == "f0"
    samples = [pair for part in (splits.train, splits.test) for pair in zip(part.x, part.group, strict=True)]
    whole = {tuple(x[:2].numpy().round(3)): int(group) for x, group in samples}
    assert [whole[tuple(x[:2].round(3))] for x in X] == IDS.tolist()  # "00" to "59", as sorted texts


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"group": "persn"}, "group = 'persn' is no column: did you mean 'person'"),
        ({"group": "ill"}, "label and group are both 'ill'"),
        ({"group": "owner"}, "group = 'owner', and no column is named as owner"),
        ({"group": {"pattern": "(a)"}}, "group.pattern is for file names"),
        ({"group": {"pattern": "a"}}, "need one group in parentheses"),
        ({"group": {"pattern": "(("}}, "no regular expression"),
        ({"group": "person", "features": ["person", "f0"]}, "features name 'person' twice"),
        ({"group": "person", "partition": "iid", "clients": 70}, "48 groups cannot give each of 70 clients one"),
    ],
)
def test_a_key_that_fits_no_table_is_one_line(table, keys, message):
    with pytest.raises(FedloomError, match=message.replace("(", r"\(")) as caught:
        scenario_of(table, **keys)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"groups": IDS[:-1]}, r"groups have shape \(299,\)"),
        ({"groups": IDS / 2}, "need .* whole numbers or words"),
        ({"groups": ["", *map(str, IDS[1:])]}, "groups lack an id for 1 of 300 samples, the first 0"),
        ({"groups": [None, *map(str, IDS[1:])]}, "need .* no gaps"),
        ({"groups": np.zeros(len(IDS), int)}, r"no group can be held out for tests \(1 in all\)"),
        ({"groups": Y}, r"no group can be held out for tests \(2 in all\)"),
        ({"groups": IDS, "x_test": X, "y_test": Y}, "groups_test are the groups of x_test"),
        ({"groups_test": IDS}, "groups_test are the groups of x_test"),
        (
            {"groups": IDS, "x_test": X[:10], "y_test": Y[:10], "groups_test": IDS[:10]},
            r"2 of 2 groups .*\(10 test rows",
        ),
    ],
)
def test_arrays_of_groups_that_do_not_fit_are_one_line(keys, message):
    with pytest.raises(DataError, match=message) as caught:
        from_arrays(X, Y, **keys)
    assert "\n" not in str(caught.value)


def test_shared_groups_leave_one_part_and_are_counted():
    test = {"x_test": X[200:], "y_test": Y[200:], "groups_test": IDS[200:], "groups": IDS[:250]}
    splits = from_arrays(X[:250], Y[:250], **test, shared_groups="drop_test")
    assert (len(splits.train), len(splits.test)) == (250, 50)
    assert "10 of 20 groups" in splits.notes[-1]
    splits = from_arrays(X[:250], Y[:250], **test, shared_groups="drop_train")
    assert (len(splits.train), len(splits.test)) == (200, 100)
    splits = from_arrays(X[:200], Y[:200], X[200:], Y[200:], groups=IDS[:200], groups_test=IDS[200:])
    crossing = replace(splits, test=replace(splits.test, group=splits.test.group - 10))  # as a plug-in may build them
    with pytest.raises(DataError, match="of 20 groups of the test set are in the training set too"):
        fl.scenario(crossing, clients=2)


def test_notes_name_what_no_split_can_mend():
    groups = np.where(IDS < 40, 0, IDS)
    notes = " ".join(fl.scenario(from_arrays(X, Y, groups=groups), clients=2).notes)
    assert "one group holds 200 of 300 rows" in notes
    notes = " ".join(fl.scenario(from_arrays(X, np.where(IDS == 7, 2, Y), groups=IDS), clients=2).notes)
    assert "classes of one group, which is in one part alone and cannot be tested: 2" in notes
    split = {"train": 0.5, "test": 0.5}
    notes = " ".join(fl.scenario(from_arrays(X, Y, groups=IDS), partition="iid", clients=40, split=split).notes)
    assert "clients of one group, which trains and leaves them no test: 3" in notes


def test_npz_files_hold_groups(tmp_path):
    arrays = {"x_train": X[:200], "y_train": Y[:200], "x_test": X[200:], "y_test": Y[200:]}
    names = np.array([f"p{person}" for person in IDS])
    np.savez(tmp_path / "set.npz", **arrays, group_train=names[:200], group_test=names[200:])
    scenario = fl.scenario("npz", path=tmp_path / "set.npz", partition="iid", clients=3).build(0)
    assert sum(len(np.unique(part)) for part in parts_of(scenario)) == PERSONS
    assert (
        scenario.digest() == fl.scenario("npz", path=tmp_path / "set.npz", partition="iid", clients=3).build(0).digest()
    )
    without = fl.scenario("npz", path=tmp_path / "set.npz", partition="iid", clients=3, group="none").build(0)
    assert without.train_set.group is None
    np.savez(tmp_path / "half.npz", **arrays, group_train=names[:200])
    with pytest.raises(DataError, match="holds one of group_train and group_test"):
        fl.scenario("npz", path=tmp_path / "half.npz", partition="iid", clients=3).build(0)


def pictures():
    rng = np.random.default_rng(0)
    faces = rng.integers(0, 256, (PERSONS, 16, 16, 3))
    return [np.clip(faces[person] + rng.normal(0, 8, (16, 16, 3)), 0, 255).astype(np.uint8) for person in IDS]


def test_a_pattern_finds_the_persons_of_pictures(tmp_path):
    for number, (person, label, picture) in enumerate(zip(IDS, Y, pictures(), strict=True)):
        folder = tmp_path / "slices" / "ab"[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"patient{person:03d}_slice{number % ROWS}.png")
    keys = {"path": tmp_path / "slices", "size": 16, "partition": "iid", "clients": 3}
    plain = fl.scenario("image-folder", **keys).build(0)
    assert "names of test files, such as 'patient0" in " ".join(plain.notes)
    (alarm,) = leak_sentences(leak(plain))
    assert "test samples nearly equal a training sample" in alarm
    grouped = fl.scenario("image-folder", **keys, group={"pattern": r"(patient\d+)_"}).build(0)
    assert len(np.unique(np.concatenate(parts_of(grouped)))) == PERSONS
    assert leak(grouped)["near"] == 0
    silenced = fl.scenario("image-folder", **keys, group="none").build(0)
    assert leak(silenced) == {}
    assert "names of test files" not in " ".join(silenced.notes)
    with pytest.raises(DataError, match=r"finds no id in 300 of 300 files, such as 'patient000_slice0.png'"):
        fl.scenario("image-folder", **keys, group={"pattern": r"(pupil\d+)_"}).build(0)


def test_a_hugging_face_column_names_groups():
    persons = [f"p{person}" for person in IDS]
    data = FakeSet(label=Y.tolist(), image=[Image.fromarray(picture) for picture in pictures()], person=persons)
    splits = from_huggingface(data, size=16, group="person")
    assert not np.intersect1d(splits.train.group, splits.test.group).size
    with pytest.raises(DataError, match="no column 'persn'"):
        from_huggingface(data, size=16, group="persn")


@pytest.mark.parametrize("key", ["column", "owner", {"pattern": "(a)"}])
def test_a_source_without_such_groups_says_what_names_them(key):
    with pytest.raises(DataError, match=r"scenario\.group"):
        fl.scenario("digits", clients=2, group=key).build(0)
    with pytest.raises(DataError, match=r"scenario\.group"):
        fl.scenario((X, Y), clients=2, group=key)


def test_a_key_at_its_default_is_no_part_of_the_config():
    assert not {"group", "shared_groups"} & fl.scenario("digits", clients=2).resolved().keys()
    resolved = fl.scenario("digits", clients=2, group="none", shared_groups="drop_test").resolved()
    assert (resolved["group"], resolved["shared_groups"]) == ("none", "drop_test")


@pytest.mark.parametrize(("persons", "rows", "least"), [(60, 5, 0.95), (300, 2, 0.6)])
def test_near_duplicates_are_found_row_by_row_and_hardly_any_group_by_group(persons, rows, least):
    rng, ids = np.random.default_rng(1), np.repeat(np.arange(persons), rows)
    x = rng.normal(size=(persons, 8))[ids] + 0.05 * rng.normal(size=(len(ids), 8))
    y = rng.integers(0, 2, persons)[ids]
    by_row = leak(fl.scenario(from_arrays(x, y), clients=2))
    by_group = leak(fl.scenario(from_arrays(x, y, groups=ids), clients=2))
    assert by_row["near"] >= least * by_row["compared"]
    assert by_group["near"] <= 1
    assert (len(leak_sentences(by_row)), leak_sentences(by_group)) == (1, [])


def test_equal_rows_count_whatever_their_label():
    x, y = X[::ROWS], Y[::ROWS]
    measured = leak(fl.scenario(from_arrays(x, y, x[:20], 1 - y[:20]), clients=2))
    assert (measured["equal"] > 0, measured["equal"] - measured["relabelled"]) == (True, 0)
