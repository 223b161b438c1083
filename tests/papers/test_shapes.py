"""Stand-ins have the sizes of what they stand in for."""

from __future__ import annotations

from typing import Any

import pytest

from fedloom.core.errors import ConfigError
from fedloom.papers.shapes import shape_of, stand_in
from fedloom.runs.config.run_config import parse


def domains(*parts: Any, **more: Any) -> Any:
    scenario = {"source": "domains", "parts": list(parts), "partition": "domains", "clients": len(parts), "val": 0}
    return parse({"method": "fedavg", "scenario": scenario | more})


def test_domains_have_the_sizes_of_their_own_parts() -> None:
    shape = shape_of(domains("usps", {"name": "other", "source": "mnist"}))
    assert (shape.train, shape.test) == ((7438, 7438), (1860, 14_000))
    assert stand_in(domains("usps", "mnist")).test.sizes.tolist() == [1860, 14_000]


def test_a_domain_trains_on_no_more_than_it_has() -> None:
    shape = shape_of(domains("mnist", "blended", per_domain=2000, size=16))
    assert (shape.train, shape.sample) == ((2000, 1438), (3, 16, 16))


def test_a_domain_of_unknown_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="size of 'digits' is not known here; known: mnist, svhn"):
        shape_of(domains("mnist", "digits"))
