"""Cells of tables that look like numbers: names that must stay apart, words that are known, marks of missing values."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedloom.core.errors import DataError
from fedloom.data import SOURCES
from fedloom.data.sources.source import configure_source
from fedloom.data.sources.tables import LabelColumn, table_rows

ROWS = 60


@pytest.fixture
def write(tmp_path):
    """Write a CSV of a column `age` and others, whose values repeat; return its path."""

    def made(name="set", rows=ROWS, **columns):
        cells = {"age": [f"{row % 7}.5" for row in range(rows)], "ill": ["a", "b", "b"]} | columns
        lines = [",".join(str(values[row % len(values)]) for values in cells.values()) for row in range(rows)]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join([",".join(cells), *lines]) + "\n")
        return path

    return made


def load(path, **keys):
    return SOURCES.get(path.suffix[1:])(path=path, **({"label": "ill"} | keys)).load()


BIG = ["12345678901234567890", "12345678901234567891", "12345678901234567892"]


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["01", "1", "001"], ("001", "01", "1")),
        (["1e3", "1000", "2000"], ("1000", "1e3", "2000")),
        (BIG, tuple(BIG)),
        (["01", "02"], ("1", "2")),  # as these names have been called so far
        (["0", "1", "0.0"], ("0", "1")),
        (["1.0", "2", "NA"], ("1", "2")),
        (["+1", "1", "-1"], ("-1", "1")),
    ],
)
@pytest.mark.parametrize("key", ["label", "owner", "categorical"])
def test_two_names_are_never_one_number(write, key, cells, names):
    path = write(code=cells)
    keys = {"incomplete": "drop", "test_share": 0.5}
    if key == "label":
        assert load(path, label="code", **keys).train.classes == names
    elif key == "owner":
        assert load(path, owner="code", **keys).train.domains == names
    else:
        splits = load(path, features=("code",), categorical=("code",), **keys)
        assert splits.train.features == tuple(f"code={name}" for name in names)


def test_names_of_both_files_are_told_apart(write):
    train, test = write(ward=["01", "02"]), write("other", ward=["1", "01"])
    splits = load(train, test_path=test, owner="ward")
    assert set(splits.train.domains) == {"01", "02", "1"}
    assert [splits.train.domains[place] for place in splits.test.domain[:2].tolist()] == ["1", "01"]


def test_files_that_write_names_in_one_way_each_are_matched_by_value(write):
    splits = load(write(ill=["01", "02"]), test_path=write("other", ill=["1", "2.0"]))
    assert splits.train.classes == ("1", "2")
    assert splits.test.y[:2].tolist() == [0, 1]


def test_owners_that_are_large_numbers_are_no_twins(write):
    splits = load(write(ward=["9007199254740992", "9007199254740993"]), owner="ward")
    assert splits.train.domains == ("9007199254740992", "9007199254740993")
    assert splits.notes == ()


def test_measurements_are_numbers_however_they_are_written(write):
    splits = load(write(age=["1.5", "1.50", "015e-1", "2"]))
    assert splits.numeric_features == (0,)
    assert set(splits.train.x[:, 0].tolist()) == {1.5, 2.0}


def test_large_whole_numbers_of_a_parquet_file_stay_categories_of_their_own(tmp_path):
    codes = [2**53, 2**53 + 1, 1234567890123456, 1234567890123457]
    table = pa.table({"code": [codes[row // 2 % 4] for row in range(ROWS)], "ill": [row % 2 for row in range(ROWS)]})
    pq.write_table(table, tmp_path / "set.parquet")
    splits = load(tmp_path / "set.parquet", categorical=("code",))
    assert splits.train.features == tuple(f"code={code}" for code in sorted(codes))


# --- words that the training file knows -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trained", "new", "keys"),
    [
        (["False", "True", "Unknown"], ["True", "False"], {}),
        (["False", "True", "Unknown"], ["True", "False"], {"categorical": ("code",)}),
        (["01", "02", "1A"], ["01", "02"], {"categorical": ("code",)}),
        (["12:00", "13:00", "never"], ["12:00", "13:00"], {"categorical": ("code",)}),
        (["1", "b", "c"], ["1.0", "b"], {}),
    ],
)
def test_words_are_known_in_files_whose_cells_look_like_numbers(write, trained, new, keys):
    train, other = write(code=trained), write("other", code=new)
    splits = load(train, test_path=other, **keys)
    assert splits.train.features == ("age", *(f"code={word}" for word in trained))
    expected = [[float(known == word.removesuffix(".0")) for known in trained] for word in new] * (ROWS // 2)
    assert splits.test.x[:, 1:].tolist() == expected
    assert all("tells the label" in note for note in splits.notes)  # as it does here
    new = table_rows(other, splits.train.features)
    assert (new.x[:, 1:].tolist(), new.notes, new.unknown_words) == (expected, [], 0)


def test_categories_that_are_numbers_are_known_by_value(write):
    train = write(ward=["01", "02"], smoker=["true", "false"])
    splits = load(train, categorical=("ward", "smoker"))
    assert splits.train.features == ("age", "ward=1", "ward=2", "smoker=0", "smoker=1")
    other = write("other", rows=3, ward=["1", "02", "1A"], smoker=["True", "false", "FALSE"])
    new = table_rows(other, splits.train.features)
    assert new.x[:, 1:].tolist() == [[1, 0, 0, 1], [0, 1, 1, 0], [0, 0, 1, 0]]
    assert (new.unknown_words, len(new.notes)) == (1, 1)
    gap = write("gap", rows=3, ward=["1", "NA", "2"], smoker=["true"])
    with pytest.raises(DataError, match="column 'ward' lacks 1 values, the first in row 2"):
        table_rows(gap, splits.train.features)


def test_booleans_of_a_parquet_file_are_known_words(write, tmp_path):
    features = load(write(smoker=["True", "False", "Unknown"])).train.features
    pq.write_table(pa.table({"age": [0.5, 1.5], "smoker": [True, False]}), tmp_path / "new.parquet")
    new = table_rows(tmp_path / "new.parquet", features)
    assert (new.x[:, 1:].tolist(), new.notes) == ([[0, 1, 0], [1, 0, 0]], [])


def test_labels_are_known_as_they_are_written(write):
    path = write(rows=2, ill=["01", "2"])

    def labels(*classes):
        return table_rows(path, ["age"], None, LabelColumn("ill", classes)).labels.tolist()

    assert labels("01", "1", "2") == ["01", "2"]
    assert labels("1", "2") == ["1", "2"]
    assert labels("no", "yes", "maybe") == [1, 2]  # ids


# --- marks of missing values ------------------------------------------------------------------------------------------

AGES = [-999.0 if row % 10 == 0 else row % 7 + 0.5 for row in range(ROWS)]
UNUSED = "which no cell of the columns in use holds"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("marks", [["-999"], ["-999.0"], [-999], -999, [-999.0], ["-9.99e2"]])
@pytest.mark.parametrize("number", [float, int, np.float32, np.int16])
def test_a_mark_is_missing_in_every_format_and_spelling(write, tmp_path, kind, marks, number):
    ages = [number(age) for age in AGES]
    path = write(age=ages)
    if kind == "parquet":
        path = tmp_path / "set.parquet"
        pq.write_table(pa.table({"age": np.array(ages), "ill": ["ab"[row % 2] for row in range(ROWS)]}), path)
    splits = load(path, missing=marks, incomplete="drop")
    assert len(splits.train) + len(splits.test) == 54
    assert splits.train.x.min() >= 0
    assert splits.notes == (f"{path}: 6 of 60 rows lack a value and were left out (incomplete: drop)",)
    with pytest.raises(DataError, match="column 'age' lacks 6 values, the first in row 1"):
        load(path, missing=marks)


def test_marks_that_occur_nowhere_are_named(write):
    path = write(age=AGES, job=["cook", "?", "nurse", "pilot"])
    (note, _) = load(path, missing=["-77", -999, "?", "n/a"], incomplete="drop").notes
    assert note == f"{path}: `missing` names '-77', 'n/a', {UNUSED}; look how it is written"
    assert UNUSED in load(path, missing="?", drop="job").notes[0]
    assert load(path, missing="", drop="job").notes == ()  # an empty cell is missing anyway
    other = write("other", age=[0.5], job=["?", "cook"])
    assert UNUSED not in "".join(load(write(job=["cook"]), missing="?", test_path=other, incomplete="drop").notes)


def test_marks_in_the_spelling_of_the_file(write):
    path = write(age=['"-999,0"', '"1.000,5"', '"2,5"'])
    splits = load(path, missing=["-999"], incomplete="drop", decimal=",", thousands=".")
    assert set(splits.train.x[:, 0].tolist()) == {1000.5, 2.5}
    with pytest.raises(DataError, match="input should be a valid string"):
        configure_source(SOURCES.get("csv"), path=path, label="ill", missing=[True])
