"""The options of `fedloom advise` say what the needs say of themselves."""

import inspect

import pytest

from fedloom.cli.app import advise  # after the commands have their texts
from fedloom.diagnosis.evidence import Needs


@pytest.mark.parametrize("name", Needs.model_fields)
def test_an_option_has_the_description_of_its_need(name):
    annotation = inspect.signature(advise, eval_str=True).parameters[name].annotation
    assert annotation.__metadata__[0].help == Needs.model_fields[name].description
