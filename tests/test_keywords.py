"""The typed keywords of `fl.run`, `fl.compare` and `fl.scenario` are the keys of a config."""

import inspect
import typing

import pytest

import fedloom as fl
from fedloom.runs.config.keywords import CompareKeywords, RunKeywords, ScenarioKeywords
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.scenario_config import ScenarioConfig


@pytest.mark.parametrize("keywords", [RunKeywords, CompareKeywords])
def test_keywords_of_a_run_are_the_fields_of_its_config(keywords):
    parameters = {"method", "scenario", "model"}
    assert keywords.__annotations__.keys() == RunConfig.model_fields.keys() - parameters
    assert not keywords.__required_keys__


def test_keywords_of_a_scenario_are_the_fields_of_its_section():
    assert ScenarioKeywords.__annotations__.keys() == ScenarioConfig.model_fields.keys() - {"source"}


@pytest.mark.parametrize(
    ("function", "keywords"),
    [(fl.run, RunKeywords), (fl.compare, CompareKeywords), (fl.scenario, ScenarioKeywords)],
    ids=["run", "compare", "scenario"],
)
def test_functions_take_the_keywords_unpacked(function, keywords):
    typed, *_, anything = typing.get_overloads(function)
    assert list(inspect.signature(typed).parameters)[-1] == "keys"
    assert typing.get_type_hints(typed, localns={keywords.__name__: keywords})["keys"] == typing.Unpack[keywords]
    assert typing.get_type_hints(anything)["keys"] is typing.Any


@pytest.mark.parametrize(("function", "keywords"), [(fl.run, RunKeywords), (fl.compare, CompareKeywords)])
def test_parameters_of_the_overload_are_those_of_the_function(function, keywords):
    typed = typing.get_overloads(function)[0]
    assert list(inspect.signature(typed).parameters) == list(inspect.signature(function).parameters)
    assert not keywords.__annotations__.keys() & inspect.signature(function).parameters.keys()
