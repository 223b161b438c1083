"""Old names of the documented API fail, and the error says the new name."""

from __future__ import annotations

import importlib

import pytest

from fedloom._renamed import RENAMED
from fedloom.methods import Method, Sent
from fedloom.nets import MODELS


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (module, old, new)
        for module, names in RENAMED.items()
        if not module.rpartition(".")[2][0].isupper()
        for old, new in names.items()
    ],
)
def test_an_old_name_of_a_module_tells_the_new_one(module, old, new):
    with pytest.raises(AttributeError, match=f"it is now called '{new}'"):
        getattr(importlib.import_module(module), old)
    path, _, name = new.rpartition(".")
    assert hasattr(importlib.import_module(path or module), name)


@pytest.mark.parametrize(("old", "new"), RENAMED["fedloom.methods.Method"].items())
def test_a_method_with_a_hook_of_an_old_name_is_refused(old, new):
    with pytest.raises(TypeError, match=f"Late: .* '{old}'; it is now called '{new}'"):
        type("Late", (Method,), {old: None})
    assert hasattr(Method, new)


@pytest.mark.parametrize(("old", "new"), RENAMED["fedloom.methods.Sent"].items())
def test_an_argument_of_an_old_name_tells_the_new_one(old, new):
    with pytest.raises(TypeError) as caught:
        Sent(**{old: True})
    assert str(caught.value) == f"Sent has no argument {old!r}; it is now called {new!r}"
    assert Sent(labels=True, per_client=True) == Sent(True, True)


def test_an_attribute_of_a_net_of_an_old_name_tells_the_new_one():
    net = MODELS.get("mlp")(input_shape=(1, 8, 8), num_classes=10)
    with pytest.raises(AttributeError, match="it is now called 'functional'"):
        _ = net.frozen
    assert not hasattr(net, "anything")
    assert net.functional is net.functional
