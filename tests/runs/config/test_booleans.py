"""True and false where a config needs a number are refused, and stay where a key takes them."""

import pytest

from fedloom.core.errors import ConfigError
from fedloom.runs.config.run_config import parse

SCENARIO = {"source": "digits", "clients": 4, "alpha": 0.5}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"rounds": True}, "rounds"),
        ({"participation": True}, "participation"),
        ({"checkpoint": {"keep_clients": [2, True]}}, r"checkpoint\.keep_clients\.1"),
        ({"optimizer": {"lr": True}}, r"optimizer\.lr"),
        ({"optimizer": {"weight_decay": False}}, r"optimizer\.weight_decay"),
        ({"scenario": SCENARIO | {"alpha": True}}, r"scenario\.alpha"),
        (
            {"scenario": SCENARIO | {"skews": [{"name": "rotations", "angles": [0, True]}]}},
            r"scenario\.skews\.0\.angles",
        ),
        ({"method": "floco", "floco": {"ends": True}}, r"floco\.ends"),
    ],
)
def test_a_boolean_is_no_number(values, key):
    with pytest.raises(ConfigError, match=rf"^{key}.* = (True|False): need a number, as [01]; ") as error:
        parse({"scenario": SCENARIO, "rounds": 5, **values})
    assert "\n" not in str(error.value)


def test_keys_that_take_booleans_keep_them():
    config = parse({"scenario": SCENARIO, "drift": True, "method": "heterofl", "heterofl": {"mask": False}})
    assert config.drift is not None
    assert config.build_method().options.mask is False
