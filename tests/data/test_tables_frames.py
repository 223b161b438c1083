"""Data frames as scenarios, as new samples, and as labelled data."""

import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import fedloom as fl
from fedloom.core.errors import ConfigError, DataError, FedloomError

ROWS = 60


def patients():
    rng = np.random.default_rng(0)
    ill = np.arange(ROWS) % 2
    return pd.DataFrame(
        {
            "age": rng.integers(20, 90, ROWS),
            "pressure": rng.normal(120, 10, ROWS) + 30 * ill,
            "sex": np.where(np.arange(ROWS) % 3, "f", "m"),
            "hospital": [f"h{row % 3}" for row in range(ROWS)],
            "ill": np.where(ill, "yes", "no"),
        }
    )


class OfArrow:
    """A frame of another library, which hands over its columns as Arrow does."""

    def __init__(self, frame):
        self._table = pa.Table.from_pandas(frame)
        self.columns = list(frame.columns)

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.fixture(scope="module")
def result():
    scenario = fl.scenario(patients(), label="ill", owner="hospital", val=0.0)
    return fl.run("fedavg", scenario, rounds=2, progress=False)


@pytest.mark.parametrize("kind", [pd.DataFrame, pa.Table.from_pandas, OfArrow], ids=["pandas", "arrow", "other"])
def test_a_frame_is_read_as_its_file_is(kind, tmp_path):
    patients().to_parquet(tmp_path / "patients.parquet")
    file = fl.scenario("parquet", path=tmp_path / "patients.parquet", label="ill", owner="hospital")
    of_frame = fl.scenario(kind(patients()), label="ill", owner="hospital", partition="iid")
    of_file = file.build(0)
    assert of_frame.train_set.features == of_file.train_set.features
    assert torch.equal(of_frame.train_set.x, of_file.train_set.x)


def test_each_owner_is_a_client():
    scenario = fl.scenario(patients(), label="ill", owner="hospital")
    assert (scenario.clients, scenario.by_owners) == (3, True)


@pytest.mark.parametrize(
    ("frame", "keys", "message"),
    [
        (patients(), {}, "name the column of the DataFrame that holds the classes, as label='diagnosis'"),
        (patients(), {"label": "il"}, "the DataFrame: label = 'il' is no column: did you mean 'ill'"),
        (patients().head(0), {"label": "ill"}, "the DataFrame: holds no rows"),
        (patients().rename(columns={"age": "sex"}), {"label": "ill"}, "1 names of columns occur twice, e.g. 'sex'"),
        (patients().assign(mixed=[1, "a"] * 30), {"label": "ill"}, "no table of numbers and words"),
        (patients().assign(age=[None, *range(59)]), {"label": "ill"}, "the DataFrame: column 'age' lacks 1 values"),
        (patients(), {"label": "ill", "onwer": "hospital"}, "unknown key 'scenario.onwer'.* 'owner'"),
        (type("LazyFrame", (), {"columns": ["a"]})(), {"label": "a"}, "the LazyFrame: no rows .* its collect"),
    ],
)
def test_frames_that_do_not_fit_are_one_line_that_names_no_file(frame, keys, message):
    with pytest.raises(FedloomError, match=message) as caught:
        fl.scenario(frame, **keys)
    assert "frame.parquet" not in str(caught.value)


def test_a_run_says_how_a_frame_becomes_a_scenario():
    with pytest.raises(
        ConfigError, match=r"scenario is a DataFrame; make it one: fl.scenario\(df, label='diagnosis'\)"
    ):
        fl.run("fedavg", patients())


def test_samples_and_labels_are_a_pair():
    with pytest.raises(ConfigError, match=r"a pair: fl.scenario\(\(x, y\)\)"):
        fl.scenario(np.zeros((2, 3)), np.zeros(2))


# --- with the result of a run ----------------------------------------------------------------------------------------


def test_classes_are_predicted_from_a_frame_a_file_and_an_array(result, tmp_path):
    frame = patients().head(5)
    frame.to_csv(tmp_path / "new.csv", index=False)
    predicted = result.predict(frame)
    assert len(predicted) == 5
    assert {*predicted} <= {"no", "yes"}
    assert predicted == result.predict(tmp_path / "new.csv") == result.predict([str(tmp_path / "new.csv")])
    probabilities = result.probabilities(frame)
    assert probabilities.shape == (5, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-6)
    assert [("no", "yes")[column] for column in probabilities.argmax(1)] == predicted


def test_several_labels_are_predicted_as_lists():
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    splits = fl.data.from_arrays(x, np.stack([x[:, 0] > 0, x[:, 1] > 0], 1).astype(int), labels="multi")
    result = fl.run("fedavg", fl.scenario(splits, labels="multi", clients=2), rounds=1, progress=False)
    predicted, probabilities = result.predict(x[:6]), result.probabilities(x[:6])
    assert [[str(label) for label in np.flatnonzero(row > 0.5)] for row in probabilities] == predicted


def test_words_that_no_training_row_holds_are_noted_with_the_frame(result, caplog):
    with caplog.at_level(logging.WARNING):
        result.predict(patients().head(3).assign(sex=["f", "m", "x"]))
    assert "the DataFrame: words that no training row holds" in caplog.text


@pytest.mark.parametrize("data", [3, None, "missing.csv", np.zeros((2, 9)), patients().drop(columns="age")])
def test_samples_that_do_not_fit_are_one_line(result, data):
    with pytest.raises(DataError):
        result.predict(data)


def test_a_frame_is_tested_like_a_file(result, tmp_path):
    patients().to_csv(tmp_path / "new.csv", index=False)
    ours, theirs = (result.evaluate(data, label="ill") for data in (patients(), tmp_path / "new.csv"))
    assert ours.metrics == theirs.metrics
    by_sex = result.evaluate(patients(), label="ill", by="sex").numbers["evaluation"]
    assert {group["group"] for group in by_sex["groups"]} == {"sex=f", "sex=m"}
    with pytest.raises(DataError, match="the DataFrame: name the column with the labels"):
        result.evaluate(patients())


def test_a_torch_dataset_is_tested_like_its_arrays():
    x, y = torch.rand(30, 4), torch.arange(30) % 3
    result = fl.run("fedavg", fl.scenario((x, y), clients=2), rounds=1, progress=False)
    data = torch.utils.data.TensorDataset(x, y)
    assert result.evaluate(data).metrics == result.evaluate((x, y)).metrics


def test_a_result_says_where_its_values_are(result):
    with pytest.raises(ConfigError, match=r"result\.numbers\['accuracy'\]"):
        result["accuracy"]
