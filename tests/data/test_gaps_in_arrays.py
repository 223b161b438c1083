"""Missing features of arrays and .npz files are dropped or imputed as those of tables."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.impute import SimpleImputer

import fedloom as fl
from fedloom.core.errors import DataError
from fedloom.data import from_arrays
from fedloom.data.imputation import Impute

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3)).astype(np.float32)
X[RNG.random(X.shape) < 0.2] = np.nan
Y = np.arange(120) % 2


@pytest.mark.parametrize("strategy", ["mean", "median"])
def test_features_are_imputed_as_scikit_learn_does(strategy: str) -> None:
    impute = Impute(numbers=strategy)  # type: ignore[arg-type]
    splits = from_arrays(X[:80], Y[:80], X[80:], Y[80:], incomplete="impute", impute=impute)
    built = fl.scenario(splits, partition="iid", clients=4, val=0.0)
    reference = SimpleImputer(strategy=strategy, add_indicator=True).fit(X[:80])
    np.testing.assert_allclose(built.train_set.x, reference.transform(X[:80]), rtol=1e-5)
    np.testing.assert_allclose(built.test_set.x, reference.transform(X[80:]), rtol=1e-5)
    assert built.train_set.features[3:] == ("missing(x0)", "missing(x1)", "missing(x2)")


def test_an_npz_drops_or_imputes_and_predicts(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x_train=X[:80], y_train=Y[:80], x_test=X[80:], y_test=Y[80:])
    keys = {"path": str(path), "partition": "iid", "clients": 2}
    with pytest.raises(DataError, match=r"values are NaN or infinite; .* `incomplete` drops or imputes NaN"):
        fl.scenario("npz", **keys).build(run_seed=0)
    dropped = fl.scenario("npz", **keys, incomplete="drop").build(run_seed=0)
    assert len(dropped.train_set) == int((~np.isnan(X[:80])).all(1).sum())
    assert any("rows lack a value and were left out" in note for note in dropped.notes)
    imputed = fl.scenario("npz", **keys, incomplete="impute")
    result = fl.run("fedavg", scenario=imputed, model="mlp", rounds=1, out=str(tmp_path / "run"))
    tested = result.evaluate(data=(X[80:], Y[80:]))
    assert tested.metrics["accuracy"] == pytest.approx(result.numbers["accuracy"])


@pytest.mark.parametrize("incomplete", ["drop", "impute"])
def test_sparse_columns_are_dropped_and_said(tmp_path: Path, incomplete: str) -> None:
    x = np.column_stack([X[:, 0], np.where(np.arange(120) % 2, np.nan, X[:, 1]), X[:, 2]]).astype(np.float32)
    path = tmp_path / "a.npz"
    np.savez(path, x_train=x[:80], y_train=Y[:80], x_test=x[80:], y_test=Y[80:])
    keys = {"path": str(path), "partition": "iid", "clients": 2, "val": 0.0, "incomplete": incomplete}
    scenario = fl.scenario("npz", **keys, drop_columns={"above": 0.4})
    lacking = int(np.isnan(x[:80, 1]).sum())
    rest = x[:80, [0, 2]]
    for _ in range(2):  # the second time from the cache
        built = scenario.build(run_seed=0)
        assert any(f"of 80 cells (drop_columns) left out (1): x1 ({lacking})" in note for note in built.notes)
        assert built.train_set.features[:2] == ("x0", "x2")
        assert len(built.train_set) == (80 if incomplete == "impute" else (~np.isnan(rest)).all(1).sum())
    arrays = from_arrays(x[:80], Y[:80], x[80:], Y[80:], incomplete=incomplete, drop_columns={"above": 0.4})
    assert fl.scenario(arrays, partition="iid", clients=2, val=0.0).train_set.x.equal(built.train_set.x)
    result = fl.run("fedavg", scenario=scenario, model="mlp", rounds=1)
    whole = np.nan_to_num(x[80:])
    assert result.evaluate(data=(whole[:, [0, 2]], Y[80:])).metrics["accuracy"] >= 0
    with pytest.raises(DataError, match=r"3 columns; the model takes 2 of the run's: x0, x2"):
        result.evaluate(data=(whole, Y[80:]))


def test_columns_are_not_dropped_without_need() -> None:
    assert from_arrays(X, Y, incomplete="impute", drop_columns={"above": 0.9}).train.input_shape == (3,)
    with pytest.raises(DataError, match=r"drop_columns = \{'above': 0.01\} leaves no column"):
        from_arrays(X, Y, drop_columns={"above": 0.01})
    with pytest.raises(DataError, match=r"drop_columns is for features \[n, d\]"):
        from_arrays(np.zeros((20, 8, 8)), Y[:20], drop_columns={"above": 0.4})


def test_pictures_and_labels_with_gaps_are_refused() -> None:
    pictures = np.where(np.arange(64).reshape(1, 8, 8) == 3, np.nan, np.ones((20, 8, 8)))
    with pytest.raises(DataError, match=r"impute is for features \[n, d\]"):
        from_arrays(pictures, Y[:20], incomplete="impute")
    with pytest.raises(DataError, match="NaN"):
        from_arrays(pictures, Y[:20], incomplete="drop")
    with pytest.raises(DataError, match="1 are NaN: leave samples without a label out"):
        from_arrays(X, np.where(np.arange(120) == 5, np.nan, Y), incomplete="impute")
    hollow = from_arrays(np.where([0, 1, 0], np.nan, X), Y, incomplete="impute")
    with pytest.raises(DataError, match="column 'x1': no training row has a value"):
        fl.scenario(hollow, partition="iid", clients=2)
