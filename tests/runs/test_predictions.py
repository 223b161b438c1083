"""predictions.parquet: the samples of the last test, from which its accuracy can be counted again."""

import numpy as np
import pyarrow.parquet as pq
import pytest

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.data import from_arrays

RNG, PERSONS = np.random.default_rng(0), np.arange(300) // 5
X = (RNG.normal(size=(300, 4)) + (PERSONS % 2)[:, None]).astype(np.float32)
DATA = from_arrays(X, PERSONS % 2, classes=["healthy", "ill"], owners=np.arange(300) // 100, groups=PERSONS)
SHORT = {"scenario": fl.scenario(DATA, val=0.2), "rounds": 2, "model": "logistic", "progress": False}


@pytest.mark.parametrize("engine", ["serial", "processes"])
@pytest.mark.parametrize(
    ("method", "protocol"), [("fedavg", "global/global"), ("fedavg", "global/local"), ("ditto", "personal/global")]
)
def test_the_accuracy_can_be_counted_again(method, protocol, engine, tmp_path):
    keys = {"evaluation": {"protocol": protocol}, "engine": engine, "out": tmp_path / "run", **SHORT}
    run = fl.run(method, checkpoint={"predictions": True}, **keys)
    table = pq.read_table(tmp_path / "run" / "predictions.parquet")
    assert table.schema.names == ["row", "client", "group", "label", "logits"]
    rows, clients, groups, labels, logits = (np.array(table[name].to_pylist()) for name in table.schema.names)
    test_set = SHORT["scenario"].test_set
    assert labels.tolist() == test_set.y[rows].tolist()
    assert len(rows) == len(test_set) * (3 if protocol == "personal/global" else 1)
    assert len({*zip(groups, test_set.group[rows].tolist(), strict=True)}) == len({*groups}) == 12
    correct = logits.argmax(1) == labels
    assert np.mean([correct[clients == k].mean() for k in range(3)]) == pytest.approx(run.numbers["accuracy"])
    plain = fl.run(method, **keys | {"out": None})
    assert {k: plain.numbers[k] for k in ("fingerprint", "details")} == {
        k: run.numbers[k] for k in ("fingerprint", "details")
    }


def test_what_cannot_be_written_is_one_line(tmp_path, caplog):
    with pytest.raises(
        ConfigError, match=r"checkpoint\.predictions: they are written to a run folder; give the run one"
    ):
        fl.run("fedavg", checkpoint={"predictions": True}, **SHORT)
    fl.run("fedavg", out=tmp_path / "run", **SHORT)
    fl.run("fedavg", out=tmp_path / "run", checkpoint={"predictions": True}, **SHORT | {"progress": True})
    assert "it has no predictions.parquet; existing='fresh' makes them" in caplog.text
