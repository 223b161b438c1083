"""Which key an error names: what was typed, and not the kind of value that a union tried."""

import pytest

from fedloom.core.errors import ConfigError
from fedloom.runs.config.run_config import parse


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"str": 1}, "unknown key 'str'"),
        ({"int": 1}, "unknown key 'int'"),
        ({"optimizer": {"str": 1}}, "unknown key 'optimizer.str'"),
        ({"model": {"name": "mlp", "str": 1}}, "unknown key 'model.str'"),
        ({"model": [{"name": "mlp", "hidden": ["x"]}]}, "model.hidden.0 = 'x': "),
        ({"evaluation": {"newcomers": {"shots": [-1]}}}, "evaluation.newcomers.shots.0 = -1: "),
        ({"evaluation": {"newcomers": {"shots": ["few"]}}}, "evaluation.newcomers.shots.0 = 'few': "),
        (
            {"scenario": {"source": "digits", "partition": "iid", "held_out": [1.5]}},
            "scenario.held_out.clients.0 = 1.5: ",
        ),
        ({"checkpoint": {"keep_clients": ["x"]}}, "checkpoint.keep_clients.0 = 'x': "),
        ({"evaluation": {"newcomers": {"tunes": []}}}, "evaluation.newcomers.tunes = []: need at least 1 item"),
        ({"evaluation": {"newcomers": {"shots": list(range(1, 102))}}}, ": need at most 100 items"),
    ],
)
def test_an_error_names_the_key_that_was_typed(values, says):
    with pytest.raises(ConfigError) as refused:
        parse({"scenario": {"source": "digits", "partition": "iid"}} | values)
    assert says in str(refused.value)
