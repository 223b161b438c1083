"""A scenario in plain values, and the feature-shift figure."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedloom.core.streams import Streams
from fedloom.data import PARTITIONS, describe_scenario, make_scenario
from fedloom.data.dataset import Dataset
from fedloom.data.shift import feature_shift
from fedloom.data.sources.source import Splits


def two_domains(shift: float, n: int = 400) -> Dataset:
    """Standard normal inputs [n, 1, 2, 2]; the second domain's are moved by `shift` standard deviations."""
    domain = np.arange(n) % 2
    x = (
        np.random.default_rng(0).standard_normal((n // 2, 1, 2, 2)).repeat(2, axis=0)
        + shift * domain[:, None, None, None]
    )
    y = torch.from_numpy(np.arange(n) // 2 % 4)
    return Dataset(torch.from_numpy(x).float(), y, tuple("abcd"), domain=torch.from_numpy(domain), domains=("u", "v"))


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0])
def test_the_shift_is_in_standard_deviations(shift: float) -> None:
    assert feature_shift(two_domains(shift)) == pytest.approx(shift, rel=0.1, abs=1e-6)


def test_no_shift_without_domains_or_between_tokens() -> None:
    data = two_domains(1.0)
    assert feature_shift(Dataset(data.x, data.y, data.classes)) is None
    tokens = Dataset(
        torch.zeros(400, 5, dtype=torch.int64), data.y, data.classes, domain=data.domain, domains=data.domains
    )
    assert feature_shift(tokens) is None


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
