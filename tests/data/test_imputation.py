"""Missing cells: values over training rows alone, cells that are filled, and rules that are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.impute import SimpleImputer

import fedloom as fl
from fedloom.core.errors import FedloomError
from fedloom.data import from_arrays
from fedloom.runs.export.samples import read_samples
from fedloom.runs.export.trained import read

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "imputation.json").read_text())
CELLS = [
    (f"site{number}", age, sex)
    for number, site in enumerate(GOLDEN["sites"])
    for age, sex in zip(site["age"], site["sex"], strict=True)
]


def write(path, rows, header="site,age,sex,ill"):
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in rows]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def dealt(folder, tests=((100, "f", "a"), (None, "m", "b"), (60, None, "b")), rows=None, **keys):
    rows = [(*cells, "ab"[row % 2]) for row, cells in enumerate(CELLS)] if rows is None else rows
    sites = [rows[0][0], rows[-1][0], rows[0][0]]
    keys = {"path": write(folder / "rows.csv", rows), "label": "ill", "incomplete": "impute"} | keys
    keys["test_path"] = write(folder / "tests.csv", [(site, *cells) for site, cells in zip(sites, tests, strict=True)])
    return fl.scenario("csv", owner="site", partition="natural", **{"val": 0.0, **keys}).build(run_seed=0)


@pytest.mark.parametrize(
    ("numbers", "golden"),
    [("mean", "mean"), ("median", "median"), ("most_frequent", "most_frequent_age_smallest_of_equal")],
)
def test_values_are_those_of_pooled_rows(numbers, golden, tmp_path):
    age, sex = dealt(tmp_path, impute={"numbers": numbers}).train_set.imputed
    pooled = np.array([[np.nan if cell is None else cell] for _, cell, _ in CELLS], np.float64)
    (sklearns,) = SimpleImputer(strategy=numbers).fit(pooled).statistics_
    assert age.value == sklearns == GOLDEN[golden]
    assert (age.observed, age.missing, age.indicator) == (5, 4, True)
    assert (sex.value, sex.observed, sex.missing) == (GOLDEN["most_frequent_sex"], 7, 2)


def test_means_encode_to_zero_and_indicators_come_last_without_a_scale(tmp_path):
    scenario = dealt(tmp_path)
    data = scenario.train_set
    assert data.features == ("age", "sex=f", "sex=m", "missing(age)", "missing(sex)")
    encoded = data.gather(torch.arange(len(data)))
    np.testing.assert_allclose(encoded[:, [0, 3]], GOLDEN["encoded_age_mean_with_indicator"], atol=1e-6)
    assert (encoded[data.x[:, 3] == 1, 0] == 0).all()
    assert scenario.test_set.x.tolist() == [
        [100, 1, 0, 0, 0], [pytest.approx(52.8), 0, 1, 1, 0], [60, 1, 0, 0, 1]
    ]  # fmt: skip
    assert "'age' (5, mean 52.8), 'sex' (3, most frequent f)" in scenario.notes[-1]


def test_only_rows_that_clients_train_on_decide_a_value(tmp_path):
    """The site that is held out has an age of 1,000, and validation rows are drawn from the others."""
    rows = [
        (f"s{row % 4}", 1000 if row % 4 == 3 else None if row % 8 == 4 else row, "f", "ab"[row // 4 % 2])
        for row in range(80)
    ]
    scenario = dealt(tmp_path, rows=rows, val=0.2, held_out=[3])
    data = scenario.train_set
    trained = data.x[scenario.train.order]
    observed = trained[trained[:, data.features.index("missing(age)")] == 0, 0]
    assert data.imputed[0].value == pytest.approx(float(observed.double().mean()))
    assert data.imputed[0].value < 80
    assert data.imputed[0].observed == len(observed)
    assert not scenario.newcomers.train_set.x.isnan().any()


def test_a_column_that_is_complete_in_training_has_no_indicator(tmp_path):
    rows = [(f"s{row % 2}", 40 + row, "fm"[row % 2], "ab"[row % 3 > 0]) for row in range(12)]
    scenario = dealt(tmp_path, rows=rows)
    assert scenario.train_set.features == ("age", "sex=f", "sex=m")
    assert scenario.test_set.x[:, 0].tolist() == [100, 45.5, 60]
    assert "'age' (1, mean 45.5, complete in training)" in scenario.notes[-1]


def test_a_constant_may_be_a_word_of_its_own_and_columns_have_their_own_rules(tmp_path):
    impute = {"words": "constant", "columns": {"age": {"constant": -1}}, "indicator": ["age"]}
    data = dealt(tmp_path, impute=impute).train_set
    assert data.features == ("age", "sex=f", "sex=m", "sex=missing", "missing(age)")
    assert data.x[2].tolist() == [-1, 1, 0, 0, 1]
    assert data.x[3].tolist() == [70, 0, 0, 1, 0]
    assert data.mean[0] == pytest.approx(GOLDEN["mean"])  # of observed cells


def test_rows_without_label_owner_or_group_are_left_out_and_counted(tmp_path):
    rows = [(f"s{row % 2}", None if row == 0 else 40 + row, f"p{row}", "ab"[row % 3 > 0]) for row in range(24)]
    rows[3], rows[6], rows[7] = (*rows[3][:3], None), (None, *rows[6][1:]), (*rows[7][:2], None, rows[7][3])
    scenario = dealt(tmp_path, tests=((1, "x", "a"), (2, "y", "b"), (3, "z", "b")), rows=rows, group="sex")
    assert len(scenario.train_set) == 21
    assert scenario.train_set.features == ("age", "missing(age)")
    assert any("3 of 24 rows lack a label, owner or group, which are never imputed" in note for note in scenario.notes)


def test_sparse_columns_leave_before_rows_do(tmp_path):
    rows = [(f"s{row % 2}", None if row % 2 else row, "f" if row else None, "ab"[row % 3 > 0]) for row in range(12)]
    scenario = dealt(tmp_path, tests=((1, "f", "a"),) * 3, rows=rows, incomplete="drop", drop_columns={"above": 0.4})
    assert (len(scenario.train_set), scenario.train_set.features) == (11, ("sex=f",))
    assert any("(drop_columns) left out: 'age' (6)" in note for note in scenario.notes)


REFUSED = {
    "scenario.impute is for incomplete: impute, and incomplete is drop": {"incomplete": "drop", "impute": {}},
    "'sex' holds words; need most_frequent": {"impute": {"columns": {"sex": "median"}}},
    "impute names 'ages', which is no column to learn from: did you mean 'age'": {"impute": {"indicator": ["ages"]}},
    "impute names 'ill'": {"impute": {"columns": {"ill": "most_frequent"}}},
    "'age' holds numbers, and the constant is 'x'": {"impute": {"numbers": {"constant": "x"}}},
    "'sex' holds words, and the constant is ''": {"impute": {"words": {"constant": " "}}},
    "leaves no column to learn from": {"drop_columns": {"above": 0}},
    "a skew or an attack changes features": {"skews": [{"name": "permutations", "of": "pixels", "groups": 2}]},
}


@pytest.mark.parametrize("problem", REFUSED)
def test_rules_that_cannot_be_meant_are_one_line(problem, tmp_path):
    with pytest.raises(FedloomError) as caught:
        dealt(tmp_path, **REFUSED[problem])
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("column", ["age", "sex"])
def test_a_column_that_no_training_row_knows_is_refused(column, tmp_path):
    place = ("site", "age", "sex").index(column)
    rows = [(f"s{row % 2}", 40 + row, "f", "ab"[row % 3 > 0]) for row in range(12)]
    rows = [(*row[:place], None, *row[place + 1 :]) for row in rows]
    with pytest.raises(FedloomError, match=f"column '{column}': no training row has a value"):
        dealt(tmp_path, tests=((None, None, "a"),) * 3, rows=rows)


def test_a_column_with_the_name_of_an_indicator_is_refused(tmp_path):
    rows = [(f"s{row % 2}", None if row == 5 else row, row % 5, "ab"[row % 3 > 0]) for row in range(12)]
    path = write(tmp_path / "rows.csv", rows, "site,age,missing(age),ill")
    with pytest.raises(FedloomError, match=r"two features would be called 'missing\(age\)'"):
        fl.scenario("csv", path=path, label="ill", owner="site", incomplete="impute").build(run_seed=0)


def test_public_rows_are_filled_by_the_clients_values_or_refused(tmp_path):
    rows = write(tmp_path / "public.csv", [(age, sex, "ab"[row % 2]) for row, (_, age, sex) in enumerate(CELLS)] * 2,
                 "age,sex,ill")  # fmt: skip
    public = {"source": "csv", "path": str(rows), "label": "ill", "incomplete": "impute"}
    scenario = dealt(tmp_path, public=public)
    assert scenario.public.features == scenario.train_set.features
    assert scenario.public.x[scenario.public.x[:, 3] == 1, 0].unique().tolist() == [pytest.approx(52.8)]
    with pytest.raises(FedloomError, match="the clients' source imputes nothing"):
        dealt(tmp_path, tests=((1, "f", "a"),) * 3, incomplete="drop", public=public)


def test_the_run_folder_and_new_rows_know_the_values(tmp_path):
    rows = [(f"s{row % 3}", None if row % 5 == 0 else 40 + row, "fm"[row % 2] if row % 7 else None, "ab"[row // 3 % 2])
            for row in range(60)]  # fmt: skip
    keys = {"path": str(write(tmp_path / "rows.csv", rows)), "label": "ill", "owner": "site", "partition": "natural"}
    config = {"source": "csv", **keys, "incomplete": "impute", "impute": {"numbers": "median"}, "val": 0.0}
    result = fl.run("fedavg", scenario=config, model="logistic", rounds=1, out=tmp_path / "run")
    age = json.loads((tmp_path / "run" / "scenario.json").read_text())["input"]["imputed"][0]
    assert age["strategy"] == "median"
    new, filled = tmp_path / "new.csv", tmp_path / "filled.csv"
    new.write_text("age,sex,ill\n,m,a\n50,f,b\n50,f,\n")
    filled.write_text(f"age,sex,ill\n{age['value']},m,a\n50,f,b\n")
    notes = list[str]()
    tested = fl.evaluate(tmp_path / "run", new, label="ill", note=notes.append)
    assert tested.samples == 2
    assert [note.partition(": ")[2] for note in notes] == [
        "1 of 3 rows lack the label and were left out, as in the run (incomplete: impute)",
        f"missing cells, filled as in training: 'age' (1, median {age['value']:g})",
    ]
    # The only difference from rows without holes is the indicator.
    expected = read(tmp_path / "run").metadata.input
    holes, whole = (read_samples([file], expected)[1] for file in (new, filled))
    assert torch.equal(holes[:2, :-2], whole[:, :-2])
    assert holes[0, -2:].tolist() == [1, 0]
    exported = read(result.export(tmp_path / "model.safetensors").model)
    assert exported.metadata.input.imputed == expected.imputed
    assert torch.equal(exported.scores(holes), read(tmp_path / "run").scores(holes))


def test_arrays_with_nan_stay_refused():
    with pytest.raises(FedloomError, match="NaN or infinite"):
        from_arrays(np.full((10, 2), np.nan, np.float32), np.arange(10) % 2)


def test_a_budget_of_privacy_covers_no_imputed_values():
    with pytest.raises(FedloomError, match="outside the budget"):
        fl.run("fedavg+dp", scenario={"source": "csv", "path": "x.csv", "label": "y", "incomplete": "impute"})
