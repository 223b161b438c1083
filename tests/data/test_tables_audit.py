"""The audit: each check finds what is planted, and says nothing about clean tables."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import fedloom as fl
from fedloom.core.errors import ConfigError, DataError
from fedloom.data.labels import near_twins
from fedloom.data.sources.source import configure_source
from fedloom.data.sources.tables import Csv, Parquet
from fedloom.data.sources.tables.audit import audit_table, lone_cells, sentinel_values, unit_parts
from fedloom.data.sources.tables.audited_table import read_table
from fedloom.data.sources.tables.table_files import TableFile

ROWS = 300
RNG = np.random.default_rng(0)
AGE = RNG.normal(50, 12, ROWS)
WARD = np.array(["A", "B", "C"])[np.arange(ROWS) % 3]
ILL = np.array(["yes", "no"])[RNG.integers(0, 2, ROWS)]


def table(**columns):
    return {"age": AGE, "ward": WARD, "ill": ILL} | columns


def planted(values, cells, value):
    changed = values.astype(object if isinstance(value, str) else values.dtype).copy()
    changed[np.asarray(cells)] = value
    return changed


def alarms(columns, **roles):
    return {(found.check, found.column) for found in fl.audit(columns, **roles) if not found.is_note}


def only(columns, check, **roles):
    (found,) = [found for found in fl.audit(columns, **roles) if found.check == check]
    return found


def test_a_clean_table_is_silent():
    assert alarms(table(), label="ill") == set()
    assert "found nothing" in repr(fl.audit(table(), label="ill"))


@pytest.mark.parametrize("value", [9999, -999, 99999, 999, -99, 0])
def test_sentinels(value):
    found = only(table(age=planted(AGE, [3, 40, 77, 200], value)), "sentinel")
    assert (found.column, found.rows, found.first_rows) == ("age", 4, (4, 41, 78, 201))
    assert found.key == f'scenario.missing: ["{value}"]'
    assert f"{value} stands in 4 cells" in found.rule


def test_several_sentinels_of_a_column():
    values = planted(planted(AGE, [1, 2, 3], -9), [4, 5, 6], -99)
    assert sentinel_values(values) == [-99, -9]


def test_a_sentinel_that_is_a_number_elsewhere_is_not_to_be_missing_everywhere():
    pulse = RNG.normal(80, 9, ROWS).round()
    columns = table(pulse=planted(pulse, range(5), 0), change=RNG.integers(-9, 10, ROWS))
    assert only(columns, "sentinel").key == 'empty these cells, or scenario.drop: ["pulse"]'


def test_a_sentinel_of_two_columns_is_missing_in_both():
    columns = table(age=planted(AGE, [3, 4, 5], 9999), size=planted(AGE * 2, [7, 8, 9], 9999))
    keys = {f.column: f.key for f in fl.audit(columns) if f.check == "sentinel"}
    assert keys == dict.fromkeys(("age", "size"), 'scenario.missing: ["9999"]')
    names = np.where(np.arange(ROWS) % 3, "a", "9999")  # a name there
    assert only(table(age=columns["age"], code=names), "sentinel").key.startswith("empty these cells")


def test_the_key_for_a_sentinel_keeps_the_marks_of_the_file(tmp_path):
    path = tmp_path / "ages.csv"
    ages = planted(planted(AGE.round(2).astype(str), [1, 2, 3], "9999"), [7, 9], "NA")
    path.write_text("age,ward\n" + "".join(f"{age},{ward}\n" for age, ward in zip(ages, WARD, strict=True)))
    assert only(path, "sentinel").key == 'scenario.missing: ["NA", "9999"]'


@pytest.mark.parametrize(
    "values",
    [
        np.arange(300.0),
        np.r_[np.zeros(250), RNG.exponential(5, 50)],  # many zeros are a count
        RNG.integers(0, 10, 300).astype(float),  # 9 is the end of a scale
        RNG.lognormal(0, 1, 300),
    ],
)
def test_no_sentinels(values):
    assert sentinel_values(values) == []


def test_lone_values():
    found = only(table(age=planted(AGE, [7], 5555)), "lone value")
    assert (found.first_rows, found.key) == ((8,), "mend the cell in the file")
    assert not lone_cells(planted(AGE, range(3), 5555)).any()  # three are no slip
    assert not lone_cells(planted(RNG.lognormal(8, 1.5, ROWS), [7], 2.4e6)).any()  # a city among villages


@pytest.mark.parametrize("factor", [12, 100, 365.25, 1000])
def test_mixed_units(factor):
    height = RNG.normal(1.7, 0.1, ROWS)
    mixed = np.where(np.arange(ROWS) % 3 == 0, height * factor, height)
    found = only(table(height=mixed), "mixed units")
    assert (found.rows, found.first_rows) == (100, (1, 4, 7, 10, 13))
    assert unit_parts(mixed)[1] == factor


def test_one_unit_is_not_two():
    assert unit_parts(np.r_[np.full(150, 1.0), np.full(150, 10.0)]) is None  # two codes
    assert unit_parts(RNG.lognormal(0, 1, 300)) is None
    assert unit_parts(np.r_[RNG.normal(1, 0.1, 150), RNG.normal(5, 0.5, 150)]) is None  # no such factor
    assert unit_parts(np.r_[-1, AGE]) is None


def test_owners_with_another_unit():
    weight = RNG.normal(70, 8, ROWS)
    owner = np.array(["north", "south", "east"])[np.arange(ROWS) // 150]
    mixed = np.where(owner == "south", weight * 1000, weight)
    found = [f for f in fl.audit(table(weight=mixed, site=owner), owner="site") if f.check == "unlike owner"]
    # of two owners, either may be the wrong one
    assert [(f.rows, f.rule[:20]) for f in found] == [(150, "owner 'north': mean "), (150, "owner 'south': mean ")]
    assert all("as grams and kilograms differ" in f.rule for f in found)
    assert not [f for f in fl.audit(table(weight=weight, site=owner), owner="site") if f.check == "unlike owner"]


def test_contradictions():
    columns = table(size=RNG.normal(size=ROWS))
    doubled = {name: np.r_[values, values[:4]] for name, values in columns.items()}
    doubled["ill"][ROWS:] = np.where(ILL[:4] == "yes", "no", "yes")
    found = only(doubled, "contradiction", label="ill")
    assert (found.rows, found.is_note) == (8, False)
    assert found.first_rows == (1, 2, 3, 4, 301)
    counted = only({"ward": WARD, "ill": ILL}, "contradiction", label="ill")  # few different rows are no surprise
    assert (counted.rows, counted.is_note) == (ROWS, True)


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        ("benign", "be\u200bnign"),
        ("benign", "b\u0435nign"),
        ("ANCA", "\u0391NCA"),
        ("type-2", "type\u20112"),
        ("type 2", "type\u00a02"),
        ("Crohn's", "Crohn\u2019s"),
        ("Benign", "benign"),
        ("\uff21", "A"),
        ("\u0412\u0430\u043d\u044f", "\u0432\u0430\u043d\u044f"),
    ],
)
def test_look_alikes(usual, other):
    label = planted(np.where(ILL == "yes", usual, "else").astype(object), [5, 6], other)
    found = only(table(ill=label), "look-alikes", label="ill")
    assert (found.rows, found.first_rows) == (2, (6, 7))
    if not other.isascii():
        assert ascii(other)[1:-1] in found.rule  # what nobody sees is written out


def test_names_that_look_different():
    names = ["mg", "\u00b5g", "O", "0", "l", "1", "+", "-", "type 1", "type 2", "\u0431", "6"]
    assert near_twins(names) == []


def test_codes(tmp_path):
    zips = [f"{number % 40:05d}" for number in range(ROWS)]
    mixed = ["01", "1", "2"] * (ROWS // 3)
    path = tmp_path / "codes.csv"
    lines = zip(zips, mixed, map(str, range(10, 10 + ROWS)), AGE, strict=True)
    path.write_text("zip,code,plain,age\n" + "".join(f"{a},{b},{c},{d}\n" for a, b, c, d in lines))
    found = {f.column: f.key for f in fl.audit(path) if f.check == "codes"}
    assert found == {"zip": 'scenario.categorical: ["zip"]', "code": 'scenario.categorical: ["code"]'}


def test_constants_and_ids():
    columns = table(country=["DE"] * ROWS, empty=[None] * ROWS, row=np.arange(ROWS), key=[f"k{i}" for i in range(ROWS)])
    found = alarms(columns, label="ill")
    assert found == {("constant", "country"), ("constant", "empty"), ("id", "row"), ("refused", "key")}
    assert only(table(row=np.arange(5, ROWS + 5)), "id").rule == "it counts the rows"
    assert alarms(table(people=RNG.permutation(90_000)[:ROWS], year=np.arange(1700, 1700 + ROWS))) == set()  # notes
    assert only(table(key=RNG.permutation(ROWS)), "id").rule.startswith("each of its 300 cells has a value of its own")
    assert only(table(row=np.arange(5, ROWS + 5)), "id").key == 'scenario.drop: ["row"]'


def persons(rows_each=5, count=60):
    person = np.repeat(np.arange(count), rows_each)
    born = RNG.integers(1930, 2000, count)
    order = RNG.permutation(count * rows_each)
    return {"patient": person[order], "born": born[person][order], "pulse": RNG.normal(80, 9, len(person))}


def test_groups():
    found = only(persons(), "group-like")
    assert (found.column, found.rows) == ("patient", 300)
    assert "60 values in 300 rows, 5 rows each (median)" in found.rule
    assert found.key == "scenario.group: patient"
    columns = persons()
    columns["code"] = columns.pop("patient")  # the dependent column alone shows it
    assert only(columns, "group-like").column == "code"
    columns["again"] = columns["code"] * 7  # the same persons under other numbers
    assert only(columns, "group-like").column == "code"


def test_a_large_table_is_read_in_part():
    columns = {"size": RNG.normal(size=5000), "row": np.arange(5000), "age": np.tile(AGE, 17)[:5000]}
    columns["age"][4990:] = 9999
    columns = {"age": columns.pop("age"), **columns}
    reader = Parquet.model_construct(path=Path("large"), label="")
    file = TableFile(Path("large"), {name: pa.chunked_array([of]) for name, of in columns.items()}, 5000)
    found = {f.check: f for f in audit_table(read_table(reader, file, cells=6000))}
    assert found["sentinel"].first_rows == (4991, 4992, 4993, 4994, 4995)
    assert found["part"].rule == "the audit looked at 2,000 of 5,000 rows, and 3 of 3 columns"
    assert "part" not in {f.check for f in audit_table(read_table(reader, file))}


def test_years_of_school_are_no_schools():
    assert alarms({"school": RNG.integers(0, 19, ROWS), "age": AGE}) == set()


CODES = [f"{row % 40:05}" for row in range(ROWS)]


def test_a_run_notes_what_changes_its_numbers(tmp_path):
    path = tmp_path / "visits.csv"
    columns = persons() | {
        "ill": ILL,
        "age": planted(AGE, range(5), 9999),
        "code": [f"{n % 40:05}" for n in range(ROWS)],
    }
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values()))]))  # noqa: B905
    splits = configure_source(Csv, path=path, label="ill").load()
    assert splits.suspect == "patient"  # which is noted with the share of its rows in both parts
    for note, says in zip(splits.notes, ("sentinel: 'age': 9999", "codes: 'code'"), strict=True):
        assert says in note
        assert "say scenario." in note


def test_no_groups():
    assert not [f for f in fl.audit(persons(), owner="patient") if f.check == "group-like"]
    years = RNG.integers(20, 80, ROWS)
    assert alarms({"years": years, "decade": years // 10, "born": 2020 - years, "pulse": AGE}) == set()


def test_a_dropped_id_is_still_a_group(tmp_path):
    path = tmp_path / "visits.csv"
    columns = persons() | {"ill": ILL}
    path.write_text(
        "\n".join([",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))])
    )
    config = tmp_path / "visits.yaml"
    config.write_text(
        f"scenario: {{source: csv, path: {path}, label: ill, drop: [patient], partition: iid, clients: 2}}"
    )
    assert ("group-like", "patient") in alarms(config)


def test_what_is_known_later():
    columns = persons()
    order = np.argsort(columns["patient"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    stay = RNG.integers(500, 4000, 60)
    columns["day"] = np.tile([0, 0.2, 0.4, 0.7, 1], 60) * stay[columns["patient"]]
    columns["until"] = stay[columns["patient"]]
    columns["status"] = RNG.integers(0, 2, 300)
    found = {f.column: f.is_note for f in fl.audit(columns) if f.check == "known later"}
    assert found == {"until": False, "status": True}


def test_a_time_of_follow_up_stands_beside_an_event():
    died = RNG.integers(0, 2, ROWS)
    stays = {"time": RNG.uniform(100, 3000, ROWS) * (1 - 0.5 * died), "status": died, "age": AGE}
    assert ("known later", "time") in alarms(stays, label="status")
    for harmless in ({"time": AGE}, {"time": np.arange(ROWS) % 7}, {"status": WARD}):
        assert ("known later", "time") not in alarms(stays | harmless, label="status")
    visits = {"patient": np.repeat(np.arange(60), 5), "time": np.tile(np.arange(5.0), 60) + RNG.uniform(0, 0.5, ROWS)}
    visits |= {"status": (visits["time"] > 2).astype(int), "age": AGE[visits["patient"]]}
    assert ("known later", "time") not in alarms(visits)


def test_what_tells_the_label():
    grade = RNG.integers(0, 3, ROWS)
    columns = {"score": 5 + grade * 10 + RNG.uniform(0, 1, ROWS), "code": np.array(["x", "y", "z"])[grade], "age": AGE}
    assert alarms(columns | {"grade": grade}, label="grade") == {("tells the label", "code")}
    two = alarms({"score": columns["score"], "age": AGE, "grade": grade > 0}, label="grade")
    assert two == {("tells the label", "score")}


def test_real_tables_without_flaws():
    datasets = pytest.importorskip("sklearn.datasets")
    pytest.importorskip("pandas")
    loaded = {name: getattr(datasets, f"load_{name}")(as_frame=True).frame for name in ("iris", "wine", "diabetes")}
    loaded["breast_cancer"] = datasets.load_breast_cancer(as_frame=True).frame
    assert {name: alarms(frame, label="target") for name, frame in loaded.items()} == {name: set() for name in loaded}
    found = planted_share(loaded["breast_cancer"].drop(columns="target"))
    assert found >= 0.95


def planted_share(frame):
    hits = 0
    for name in frame:
        values = frame[name].to_numpy().copy()
        values[RNG.random(len(values)) < 0.05] = 9999
        hits += 9999 in sentinel_values(values)
    return hits / frame.shape[1]


@pytest.mark.parametrize(
    "columns",
    [
        {"a": [1.0], "b": ["x"]},
        {"a": [None] * 30, "b": [None] * 30},
        {"a": [True, False] * 15, "b": ["x"] * 30},
        {"a": np.full(30, np.nan), "b": [True, None] * 15},
        {"a": np.arange(30), "b": np.repeat("x", 30)},
        {"a": [1, "x", None] * 10, "b": [1, 2, 3] * 10},
        {"a": [0] * 29 + [1], "b": [0] * 30},
    ],
)
def test_rare_tables(columns):
    for label in (None, "b"):
        for owner in (None, "a"):
            assert isinstance(repr(fl.audit(columns, label=label, owner=owner)), str)


def test_columns_that_a_run_refuses():
    dates = np.arange("2024-01-01", "2024-10-27", dtype="datetime64[D]")
    mass = planted(AGE.astype(str), [5], "heavy")
    found = {f.column: f.rule for f in fl.audit(table(date=dates, mass=mass)) if f.check == "refused"}
    assert found.keys() == {"date", "mass"}
    assert found["mass"].startswith("a run refuses it: it holds numbers except in")
    assert only(table(size=planted(AGE, [4], np.inf)), "refused").column == "size"


@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        ({}, DataError, "table: holds no rows"),
        ({"a": []}, DataError, "table: holds no rows"),
        ({"a": [1], "b": [1, 2]}, DataError, "one length with a name each are needed, not 'a': 1, 'b': 2"),
        ({"a": np.ones((3, 2))}, DataError, r"column 'a' has the shape \(3, 2\)"),
        (np.ones(3), ConfigError, "a DataFrame, a mapping of arrays or a path, not ndarray"),
        ("no.csv", ConfigError, "no.csv: no such file"),
        ("demo", ConfigError, "demo: the audit reads csv, .*image-folder, parquet, .*; source digits is none"),
    ],
)
def test_what_is_no_table(columns, kind, message):
    with pytest.raises(kind, match=message):
        fl.audit(columns)


def test_unknown_columns():
    with pytest.raises(ConfigError, match="label = 'il' is no column: did you mean 'ill'"):
        fl.audit(table(), label="il")


def test_a_table_in_a_notebook():
    assert "sentinel" in fl.audit(table(age=planted(AGE, [3, 4, 5], 9999)))._repr_html_()
