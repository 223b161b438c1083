"""Values that a config refuses in one line: booleans for numbers, numbers that no run needs, slips in unions."""

import pytest

from fedloom.core.errors import ConfigError
from fedloom.runs.config.grid import grid_points
from fedloom.runs.config.kinds import overlaid
from fedloom.runs.config.run_config import parse
from fedloom.runs.studies.plan import nested, parse_study

VALUES = {"scenario": {"source": "digits", "partition": "iid", "clients": 2}, "rounds": 1}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", 10**12),
        ("rounds", 10**9),
        ("local_epochs", 10**9),
        ("batch_size", 10**12),
        ("evaluation.every", 10**12),
        ("evaluation.last_k", 10**23),
        ("evaluation.episodes", 10**9),
        ("early_stopping.patience", 10**18),
        ("checkpoint.keep", 10**20),
        ("checkpoint.seconds", 1e300),
        ("engine.workers", 10**9),
        ("engine.stack", 10**9),
        ("engine.client_seconds", 1e300),
        ("engine.state_budget_mb", 1e300),
        ("flower.round_timeout", 1e300),
        ("optimizer.lr", 1e300),
        ("scenario.alpha", 1e300),
        ("ditto.personal_epochs", 10**6),
        ("fedgen.server_steps", 10**9),
        ("seed", 10**30),
    ],
)
def test_a_number_without_a_bound_is_refused(key, value):
    values = overlaid(VALUES, {"scenario": {"partition": "dirichlet"}}) if key == "scenario.alpha" else VALUES
    with pytest.raises(ConfigError, match=key.replace(".", r"\.") + " = "):
        parse(overlaid(values, nested(key, value)))


@pytest.mark.parametrize(
    ("key", "value"), [("batch_size", 10**9), ("checkpoint.seconds", float("inf")), ("seed", 2**62), ("rounds", 10**6)]
)
def test_large_numbers_that_mean_something_stay(key, value):
    parse(overlaid(VALUES, nested(key, value)))


def test_nodes_are_bounded():
    nodes = {"source": "nodes", "classes": ["a", "b"], "shape": [3], "clients": 10**9}
    with pytest.raises(ConfigError, match=r"scenario\.clients = 1000000000: need up to"):
        parse({"scenario": nodes, "model": "mlp"})


HUNDREDS = list(range(1, 301))


def test_a_comparison_of_millions_is_refused():
    with pytest.raises(ConfigError, match="combinations, more than 100,000"):
        grid_points(VALUES | {"rounds": HUNDREDS, "batch_size": HUNDREDS, "local_epochs": HUNDREDS})


def test_seeds_without_a_bound_are_refused():
    with pytest.raises(ConfigError, match="seeds = 1000000000"):
        grid_points(VALUES, seeds=10**9)
    with pytest.raises(ConfigError, match="seeds = 1000000000: more than 10,000"):
        parse_study(VALUES | {"seeds": 10**9})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rounds": HUNDREDS, "batch_size": HUNDREDS, "local_epochs": HUNDREDS}, "more than 100,000"),
        ({"tune": {"rounds": HUNDREDS, "batch_size": HUNDREDS, "local_epochs": HUNDREDS}}, "tune: 27,000,000"),
        ({"tune": {"optimizer.lr": {"low": 0.1, "high": 0.2}}, "tries": 25_000_000}, "tries = 25000000"),
    ],
)
def test_a_study_of_millions_is_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        parse_study(VALUES | {"methods": ["fedavg"], "seeds": 1} | keys)


DEALT = {"source": "digits", "clients": 4, "alpha": 0.5}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"rounds": True}, "rounds"),
        ({"participation": True}, "participation"),
        ({"checkpoint": {"keep_clients": [2, True]}}, r"checkpoint\.keep_clients\.1"),
        ({"optimizer": {"lr": True}}, r"optimizer\.lr"),
        ({"optimizer": {"weight_decay": False}}, r"optimizer\.weight_decay"),
        ({"scenario": DEALT | {"alpha": True}}, r"scenario\.alpha"),
        ({"scenario": DEALT | {"skews": [{"name": "rotations", "angles": [0, True]}]}}, r"scenario\.skews\.0\.angles"),
        ({"method": "floco", "floco": {"ends": True}}, r"floco\.ends"),
    ],
)
def test_a_boolean_is_no_number(values, key):
    with pytest.raises(ConfigError, match=rf"^{key}.* = (True|False): need a number, as [01]; ") as error:
        parse({"scenario": DEALT, "rounds": 5, **values})
    assert "\n" not in str(error.value)


def test_keys_that_take_booleans_keep_them():
    config = parse({"scenario": DEALT, "drift": True, "method": "heterofl", "heterofl": {"mask": False}})
    assert config.drift is not None
    assert config.build_method().options.mask is False


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
        parse(VALUES | values)
    assert says in str(refused.value)
