"""Dataclasses become what JSON can hold."""

import json
from dataclasses import dataclass, field

import torch

from fedloom.core.records import to_plain


@dataclass(frozen=True)
class Point:
    name: str
    at: tuple[int, int]
    weights: torch.Tensor = field(default_factory=lambda: torch.tensor([[1, 2]]))


def test_everything_inside_a_dataclass_becomes_plain():
    plain = to_plain({"points": [Point("a", (1, 2))], "share": 0.5, "none": None})
    assert plain == {"points": [{"name": "a", "at": [1, 2], "weights": [[1, 2]]}], "share": 0.5, "none": None}
    assert json.loads(json.dumps(plain)) == plain
