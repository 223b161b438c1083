"""A scenario in plain values."""

import json

import pytest

from fedloom.core.streams import Streams
from fedloom.data import PARTITIONS, describe_scenario, make_scenario
from fedloom.data.sources.source import Splits
from support import two_domains


def test_a_description_fits_json_and_counts_domains() -> None:
    data = two_domains(1.0)
    scenario = make_scenario(
        "toy", Splits(data, data), PARTITIONS.get("domains")(), clients=2, val=0.0, streams=Streams(0)
    )
    described = json.loads(json.dumps(describe_scenario(scenario)))
    assert described["domains"] == ["u", "v"]
    assert described["domain_counts"] == [[200, 0], [0, 200]]
    assert described["class_counts"] == [[50, 50, 50, 50]] * 2
    assert described["total_variation"] == 0
    assert described["feature_shift"] == pytest.approx(1.0, rel=0.1)
    assert (described["acceptance"], described["empty_classes"]) == (1.0, [])
