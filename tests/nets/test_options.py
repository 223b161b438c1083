"""Options of models, with type, default and description, as `fedloom models NAME` prints them."""

from collections.abc import Sequence
from typing import Any

import pytest

from fedloom.core.errors import ConfigError
from fedloom.nets import MODELS
from fedloom.nets.blocks import model_options


def test_options_have_types_defaults_and_descriptions():
    options = model_options("mlp")
    assert list(options) == ["hidden", "head_bias"]
    assert options["hidden"].annotation == Sequence[int] | None
    assert options["hidden"].default is None
    assert options["head_bias"].default is True
    assert "bias" in options["head_bias"].description


def test_shapes_are_no_options():
    assert all(not model_options(model).keys() & {"input_shape", "num_classes"} for model in MODELS.names())
    assert model_options("lenet5") == {}


def test_an_option_of_a_plugin_may_lack_type_and_default(monkeypatch):
    def factory(*, input_shape, num_classes, width, depth: "NoSuchType" = 2):  # noqa: F821
        raise NotImplementedError

    monkeypatch.setitem(MODELS._entries, "plugin", factory)
    options = model_options("plugin")
    assert options["width"].is_required()
    assert [option.annotation for option in options.values()] == [Any, Any]
    assert options["depth"].default == 2


def test_an_unknown_model_is_refused():
    with pytest.raises(ConfigError, match="unknown model 'no-such'"):
        model_options("no-such")
