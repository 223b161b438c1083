"""CSV and Parquet: what rows become, where statistics come from, and the lines for what is wrong."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow import csv

from fedloom.core.errors import ConfigError, DataError
from fedloom.data import SOURCES
from fedloom.data.sources.tables import table_rows
from fedloom.runs.config.run_config import parse

ROWS = 40
AGE = np.arange(ROWS) % 7 + 0.5
JOB = np.array(["cook", "nurse"])[np.arange(ROWS) % 2]
ILL = np.array(["yes", "no"])[np.arange(ROWS) // 2 % 2]
HOSPITAL = np.array(["north", "south", "east", "west"])[np.arange(ROWS) // 10]
COLUMNS = {"age": AGE, "job": JOB, "ill": ILL, "hospital": HOSPITAL}


@pytest.fixture
def write(tmp_path):
    """A table's path; columns may be replaced, and left out with None."""

    def made(kind="csv", name="set", **changed):
        columns = {key: values for key, values in (COLUMNS | changed).items() if values is not None}
        path = tmp_path / f"{name}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.table(columns), path)
        else:
            lines = zip(*columns.values(), strict=True)
            path.write_text("\n".join([",".join(columns), *(",".join(map(str, line)) for line in lines)]) + "\n")
        return path

    return made


def load(path, **keys):
    return SOURCES.get(path.suffix[1:])(path=path, **({"label": "ill"} | keys)).load()


def dealt(path, **keys):
    values = {"source": path.suffix[1:], "path": str(path), "label": "ill", "partition": "iid", "clients": 2} | keys
    return parse({"scenario": values}).scenario.build(0)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_and_words_become_features(write, kind):
    splits = load(write(kind), features=("age", "job"), test_share=0.25)
    assert splits.train.features == ("age", "job=cook", "job=nurse")
    assert (splits.train.classes, splits.numeric_features) == (("no", "yes"), (0,))
    assert (len(splits.train), len(splits.test)) == (30, 10)
    both = torch.cat([splits.train.x, splits.test.x]).numpy()
    assert sorted(map(tuple, both.tolist())) == sorted(
        (age, float(job == "cook"), float(job == "nurse")) for age, job in zip(AGE.tolist(), JOB, strict=True)
    )
    assert torch.bincount(splits.test.y).tolist() == [5, 5]


def test_rows_keep_their_labels(write):
    """The label is a function of the features here, so a shift by one row would show."""
    splits = load(write(ill=np.where(AGE > 3, "old", "young")), features=("age",))
    for part in (splits.train, splits.test):
        assert ((part.x[:, 0] > 3) == (part.y == 0)).all()


def test_csv_and_parquet_give_the_same_bits(write):
    one, other = load(write("csv")), load(write("parquet"))
    for part in ("train", "test"):
        assert torch.equal(getattr(one, part).x, getattr(other, part).x)
        assert torch.equal(getattr(one, part).y, getattr(other, part).y)


def test_a_test_file_is_encoded_as_the_training_file_is(write):
    train = write(job=JOB, hospital=None)
    test = write(name="other", job=np.where(JOB == "cook", "pilot", "nurse"), hospital=None, age=AGE.astype(int))
    splits = load(train, test_path=test)
    assert (len(splits.train), len(splits.test)) == (ROWS, ROWS)
    assert splits.test.x[:2].tolist() == [[0.0, 0.0, 0.0], [1.0, 0.0, 1.0]]  # a word not seen in training is all 0


def test_numbers_that_are_names(write):
    splits = load(write(ward=np.arange(ROWS) % 3 * 10), features=("ward",), categorical=("ward",))
    assert splits.train.features == ("ward=0", "ward=10", "ward=20")
    assert splits.numeric_features == ()
    assert (splits.train.x.sum(1) == 1).all()


@pytest.mark.parametrize(
    ("kind", "values", "classes"),
    [
        ("csv", np.arange(ROWS) % 3 + 1, ("1", "2", "3")),
        ("csv", np.arange(ROWS) % 2 * 1.0, ("0", "1")),  # whole numbers that a program wrote as floats
        ("parquet", np.arange(ROWS) % 2 == 0, ("False", "True")),
        ("parquet", pa.array(ILL.tolist()).dictionary_encode(), ("no", "yes")),
        ("parquet", pa.array(ILL.tolist(), pa.large_string()), ("no", "yes")),
    ],
    ids=["from 1", "floats", "booleans", "categories", "large strings"],
)
def test_labels_of_all_kinds(write, kind, values, classes):
    assert load(write(kind, ill=values)).train.classes == classes


def test_decimals_and_booleans_are_numbers(write):
    price = pa.array(np.arange(ROWS) / 4).cast(pa.decimal128(10, 2))
    splits = load(write("parquet", price=price, urgent=JOB == "cook"), features=("price", "urgent"))
    assert splits.train.features == ("price", "urgent")
    assert sorted(torch.cat([splits.train.x, splits.test.x])[:, 0].tolist()) == (np.arange(ROWS) / 4).tolist()


def test_owners_hold_out_a_share_of_their_own_rows_and_become_clients(write):
    scenario = dealt(write(), owner="hospital", partition="natural", clients=4, test_share=0.3, val=0.0)
    assert scenario.train_set.domains == ("east", "north", "south", "west")
    assert scenario.train.sizes.tolist() == [7] * 4
    assert scenario.test.sizes.tolist() == [3] * 4
    assert "hospital" not in "".join(scenario.train_set.features)
    for client in range(4):
        assert set(scenario.train_set.domain[scenario.train.tensor(client)].tolist()) == {client}


@pytest.mark.parametrize("partition", ["natural", "domains"])
def test_a_partition_by_owners_asks_for_their_column(write, partition):
    with pytest.raises(ConfigError, match=r"this source has no domains; name the column of .* \(`owner: COLUMN`\)"):
        dealt(write(), partition=partition)


# --- standardised by what clients train on ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        {"val": 0.0},
        {"val": 0.5},
        {"split": {"train": 2, "val": 1, "test": 1}},
        {"split": {"train": 2, "val": 1, "test": 1, "pool": "all"}},
        {"val": 0.2, "public": 0.3},
        {"val": 0.2, "skews": [{"name": "ratio", "ratio": 0.5}]},
    ],
    ids=str,
)
def test_mean_and_deviation_are_those_of_the_rows_that_clients_train_on(write, keys):
    age = np.random.default_rng(0).normal(40, 10, ROWS).round(3)
    scenario = dealt(write(age=age), features=["age", "job"], **keys)
    used = scenario.train_set.x[torch.from_numpy(scenario.train.order), 0].double().numpy()
    for part in (scenario.train_set, scenario.test_set, *([scenario.public] if scenario.public else [])):
        assert part.normalisation["mean"] == pytest.approx([used.mean(), 0, 0])
        assert part.normalisation["std"] == pytest.approx([used.std(), 1, 1])
    seen = scenario.train_set.gather(torch.from_numpy(scenario.train.order)).double()
    assert float(seen[:, 0].mean()) == pytest.approx(0, abs=1e-5)
    assert float(seen[:, 0].std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert set(seen[:, 1:].flatten().tolist()) == {0.0, 1.0}


def test_validation_and_test_rows_do_not_move_them(write):
    """Rows that are held out get absurd values: nothing that is done to training rows may change."""
    before = dealt(write(), features=["age"], val=0.4)
    held = np.concatenate([before.train_set.x[torch.from_numpy(before.val.order), 0], before.test_set.x[:, 0]])
    assert len(held) > 8
    rows = np.arange(ROWS, dtype=float)  # the row's number as its value says where a row went
    numbered = dealt(write(age=rows), features=["age"], val=0.4)
    training = set(numbered.train_set.x[torch.from_numpy(numbered.train.order), 0].tolist())
    wild = np.where([row in training for row in rows.tolist()], AGE, 1e6)
    after = dealt(write(age=wild), features=["age"], val=0.4)
    assert (after.val.order == before.val.order).all()
    assert after.normalisation == before.normalisation


def test_a_constant_column_is_only_centred(write):
    assert dealt(write(age=np.full(ROWS, 0.1)), features=["age"]).normalisation == {
        "mean": pytest.approx([0.1]),
        "std": [1.0],
    }


# --- what is wrong ---------------------------------------------------------------------------------------------------

NAN = np.where(np.arange(ROWS) == 3, np.nan, AGE)
GAP = [None if row == 3 else float(value) for row, value in enumerate(AGE)]


@pytest.mark.parametrize(
    ("kind", "changed", "keys", "message"),
    [
        ("parquet", {"age": NAN}, {}, "column 'age' holds nan in row 4; need finite numbers"),
        ("parquet", {"age": pa.array(GAP)}, {}, "column 'age' lacks 1 values, the first in row 4"),
        ("csv", {"age": AGE * 1e40}, {}, r"column 'age' holds 5e\+39 in row 1"),
        ("csv", {"job": np.where(AGE > 1, JOB, "")}, {}, "column 'job' is empty in row 1"),
        ("csv", {"ill": np.arange(ROWS) * 7}, {}, "labels take 40 different values in 40 samples"),
        ("csv", {"ill": np.where(AGE > 1, 0, 2**62)}, {}, "label 4611686018427387904 is no class"),
        ("csv", {"ill": np.arange(ROWS) % 4 - 1}, {}, r"label -1 is outside 0 \.\. 2"),
        ("csv", {"ill": ["only"] * ROWS}, {"label": "sick"}, "label = 'sick' is no column"),
        ("csv", {}, {"label": "il"}, "label = 'il' is no column: did you mean 'ill'"),
        ("csv", {}, {"owner": "hospitl"}, "owner = 'hospitl' is no column: did you mean 'hospital'"),
        ("csv", {}, {"features": ("age", "jobs")}, "features = 'jobs' is no column: did you mean 'job'"),
        ("csv", {}, {"categorical": ("ag",)}, "categorical = 'ag' is no column"),
        ("csv", {}, {"features": ("age", "ill")}, "features name 'ill' twice, or as the label or owner"),
        ("csv", {}, {"features": ("age", "age")}, "features name 'age' twice"),
        ("csv", {}, {"features": ()}, "no column to learn from except ill"),
        ("csv", {"age": None, "job": None}, {"owner": "hospital"}, "no column to learn from except ill and hospital"),
        ("csv", {}, {"owner": "ill"}, "label and owner are both 'ill'"),
        ("csv", {"hospital": np.arange(ROWS)}, {"owner": "hospital"}, "no owner has samples enough to hold out 0.2"),
        ("csv", {"hospital": AGE}, {"owner": "hospital"}, "owners have shape .* need .* whole numbers or words"),
        ("csv", {"job": [f"{n:04}x" * 60 for n in range(ROWS)]}, {}, "texts of up to 300 characters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_one_line(write, kind, changed, keys, message):
    with pytest.raises(DataError, match=message) as caught:
        load(write(kind, **changed), **keys)
    assert "\n" not in str(caught.value)


def test_too_many_words_are_refused(tmp_path):
    path = tmp_path / "set.csv"
    path.write_text("name,ill\n" + "".join(f"n{n},{n % 2}\n" for n in range(1200)))
    with pytest.raises(DataError, match=r"column 'name' holds 1200 different words, more than 1000"):
        load(path, test_path=path)


@pytest.mark.parametrize(
    ("kind", "raw", "message"),
    [
        ("csv", b"age,ill\n1,0\n", "cannot be split into training and test"),
        ("csv", b"1,0\n2,1\n", "label = 'ill' is no column"),
        ("parquet", b"", "cannot be read as parquet"),
        ("parquet", b"PAR1 and nothing PAR1", "cannot be read as parquet"),
        ("parquet", b"age,ill\n1,0\n", "cannot be read as parquet"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_files_are_one_line(tmp_path, kind, raw, message):
    path = tmp_path / f"set.{kind}"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ({}, {"job": None}, r"other\.csv: has no column 'job'"),
        ({}, {"job": np.arange(ROWS)}, "column 'job' holds words in one of the two files and numbers in the other"),
        ({}, {"ill": ["maybe"] * ROWS}, r"\(test\): label 'maybe' is none of no, yes"),
        ({}, {"ill": np.arange(ROWS) % 2}, r"\(test\): label '0' is none of no, yes"),
    ],
)
def test_test_files_of_another_kind_are_one_line(write, train, test, message):
    with pytest.raises(DataError, match=message):
        load(write(**train), test_path=write(name="other", **test))


@pytest.mark.parametrize(("kind", "most"), [("csv", 1), ("parquet", 0)])
def test_no_threads_are_started_for_parts_of_a_file(write, kind, most):
    """A process that exits while pyarrow's threads start is aborted, in up to every second run. CSV needs one thread,
    which has run when the table is there."""
    program = (
        "import os, sys, time; import numpy, pyarrow, torch\n"
        "from pathlib import Path; from fedloom.data import SOURCES\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "SOURCES.get(sys.argv[1])(path=Path(sys.argv[2]), label='ill').tables()\n"
        "time.sleep(0.1); sys.exit(len(os.listdir('/proc/self/task')) - before)"
    )
    done = subprocess.run([sys.executable, "-c", program, kind, str(write(kind))], check=False, capture_output=True)
    assert done.stderr == b""
    assert done.returncode <= most


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path / "absent.csv", tmp_path):
        with pytest.raises(DataError, match="need a table with a column 'ill'"):
            SOURCES.get("csv")(path=path, label="ill").load()


def test_a_table_beyond_memory_is_refused_before_it_is_read(write, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 8)  # 64 bytes
    for kind in ("csv", "parquet"):
        with pytest.raises(DataError, match="GiB of memory, this machine has"):
            load(write(kind))


def test_kinds_are_told_from_all_rows(tmp_path):
    """Whole numbers for 2 MB, then a fraction, then a word: pyarrow's own first block would see whole numbers only."""
    many = 300_000
    lines = "".join(f"{n % 7},{n % 2}\n" for n in range(many))
    path = tmp_path / "set.csv"
    path.write_text(f"age,ill\n{lines}0.5,1\n")
    assert load(path).numeric_features == (0,)


def test_the_config_door_names_keys(write):
    with pytest.raises(ConfigError, match=r"scenario\.label is missing"):
        parse({"scenario": {"source": "csv", "path": str(write()), "partition": "iid"}})
    with pytest.raises(ConfigError, match=r"unknown key 'scenario\.lable'"):
        parse({"scenario": {"source": "csv", "path": str(write()), "lable": "ill", "partition": "iid"}})


# --- keys of later versions, wide tables -------------------------------------------------------------------


def test_keys_at_their_default_are_no_part_of_the_fingerprint():
    """Runs of versions that do not know these keys keep their fingerprint."""
    old = {
        "csv": {"path", "test_path", "label", "owner", "features", "categorical", "test_share", "separator"},
        "parquet": {"path", "test_path", "label", "owner", "features", "categorical", "test_share"},
    }
    for kind, keys in old.items():
        assert SOURCES.get(kind)(path="a", label="ill").model_dump(mode="json").keys() == keys
        plain = {"source": kind, "path": "a", "label": "ill", "partition": "iid"}
        base = parse({"scenario": plain})
        for key, value in {
            "drop": ["x"],
            "missing": [],
            "incomplete": "drop",
            "decimal": ",",
            "thousands": ",",
        }.items():
            changed = parse({"scenario": plain | {key: value}})
            assert changed.fingerprint() != base.fingerprint()
            assert parse(changed.resolved()).fingerprint() == changed.fingerprint()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_wide_tables_are_read(tmp_path, kind):
    genes = {f"gene{n}": np.arange(20) % (n % 17 + 2) for n in range(10_000)}
    path = tmp_path / f"wide.{kind}"
    columns = pa.table(genes | {"ill": ILL[:20]})
    if kind == "csv":
        csv.write_csv(columns, path)
    else:
        pq.write_table(columns, path)
    splits = load(path)
    new = table_rows(path, splits.train.features)
    assert (new.x.shape, new.notes, new.unknown_words) == ((20, 10_000), [], 0)
