"""Models of runs whose config names what this process does not have."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.evaluation.metric import METRICS
from fedloom.results.result import Result

SCENARIO = {"source": "digits", "partition": "iid", "clients": 3}


@pytest.mark.parametrize("select_by", ["accuracy", "is_almost_certain"])
def test_a_model_loads_where_a_metric_of_its_run_is_not_defined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, select_by: str
) -> None:
    def is_almost_certain(predictions: Any) -> torch.Tensor:
        return predictions.probabilities.amax(1) > 0.9

    evaluation = {"metrics": [is_almost_certain, "auroc"], "select_by": select_by}
    METRICS.names()  # imports the built-in ones
    with monkeypatch.context() as patch:
        patch.setattr(METRICS, "_entries", dict(METRICS._entries))
        fl.run("fedavg", rounds=3, out=tmp_path / "run", scenario=SCENARIO, evaluation=evaluation)
    with pytest.raises(ConfigError, match="unknown metric"):
        METRICS.get("is_almost_certain")
    finished = Result.read(tmp_path / "run")
    assert finished is not None
    assert isinstance(fl.load(tmp_path / "run"), nn.Module)
    assert finished.export(tmp_path / "m.safetensors").model.is_file()
