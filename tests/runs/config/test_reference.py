"""The reference of config keys: complete, described, with the defaults of a run, and as a JSON Schema."""

import pytest

from fedloom.core.errors import ConfigError
from fedloom.data import ATTACKS, PARTITIONS, SKEWS, SOURCES
from fedloom.methods import METHODS, WRAPPERS
from fedloom.nets import MODELS
from fedloom.nets.blocks import model_options
from fedloom.runs.config.keys import keys_with_sections
from fedloom.runs.config.reference import config_keys, config_schema, matching_keys
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.scenario_config import ScenarioConfig

KEYS = config_keys()
PATHS = {key.path for key in KEYS}


def test_every_key_of_a_run_is_named():
    paths = {f"{section}.{name}" if section else name for section, name in keys_with_sections(RunConfig)}
    assert paths - {"model.module"} <= PATHS


@pytest.mark.parametrize("registry", [SOURCES, PARTITIONS, SKEWS, ATTACKS], ids=lambda registry: registry.noun)
def test_every_key_of_a_part_is_named(registry):
    for name, kind in registry:
        parts = {key.path.rpartition(".")[2] for key in KEYS if key.part.partition(" ")[2] == name}
        assert set(kind.model_fields) - set(ScenarioConfig.model_fields) <= parts


def test_every_option_of_a_model_and_a_method_is_named():
    for model in MODELS.names():
        assert {f"model.{option}" for option in model_options(model)} <= PATHS
    for name, method in METHODS:
        assert {f"{name}.{option}" for option in method.Options.model_fields} <= PATHS
    assert "METHOD+krum.krum_faulty" in PATHS
    assert {key.part for key in KEYS} >= {f"wrapper {name}" for name in ("dp", "dw", "topk")}
    assert "topk" in WRAPPERS.names()


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.path}-{key.part}")
def test_every_key_has_a_meaning_and_values(key):
    assert key.meaning
    assert key.values
    assert key.default_text


def test_defaults_are_those_of_a_run():
    config = RunConfig(scenario={"alpha": 0.1})
    for key in KEYS:
        if key.part or key.required or "." not in key.path or isinstance(key.default, dict):
            continue
        value = config.model_dump(mode="json")
        for name in key.path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            assert key.default == value, key.path


def test_ranges_and_choices_are_told():
    values = {key.path: key.values for key in KEYS}
    assert values["participation"] == "number, above 0, at most 1"
    assert values["precision"] == "float32, tf32, bfloat16"
    assert values["engine.workers"] == "integer, at least 1 or null"
    assert values["fedsc.cpdr"] == "l1, l2, mse, off"


def test_a_key_a_section_and_a_last_word_are_found():
    assert [key.path for key in matching_keys("optimizer.lr")] == ["optimizer.lr"]
    assert {"optimizer", "optimizer.lr"} <= {key.path for key in matching_keys("optimizer")}
    assert "optimizer.lr" in {key.path for key in matching_keys("lr")}
    assert {"scenario.public", "scenario.public.samples"} <= {key.path for key in matching_keys("public")}
    with pytest.raises(ConfigError, match="no config key 'optmizer': did you mean 'optimizer'"):
        matching_keys("optmizer")


def test_the_schema_knows_words_for_sections_methods_and_names():
    schema = config_schema()
    assert {"enum", "type"} == set(schema["properties"]["engine"]["anyOf"][1])
    assert "serial" in schema["properties"]["engine"]["anyOf"][1]["enum"]
    assert schema["properties"]["fedsc"]["properties"]["tau"]["exclusiveMinimum"] == 0
    assert "dirichlet" in schema["$defs"]["ScenarioConfig"]["properties"]["partition"]["enum"]
    assert schema["additionalProperties"] is False
    assert all(reference(schema, name) for name in _references(schema))


def reference(schema, pointer):
    return pointer.removeprefix("#/$defs/") in schema["$defs"]


def _references(value):
    if isinstance(value, dict):
        yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
