"""Old names of the documented API fail, and the error says the new name."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
from pydantic import BaseModel
from torch import nn

from fedloom._renamed import RENAMED
from fedloom.data.attacks import Attack, UploadAttack
from fedloom.data.sources.cached import CachedSource, ImageSource
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


def class_of(owner):
    """Return the class that an entry of the table names."""
    module, _, name = owner.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    ("owner", "old", "new"),
    [
        (owner, old, new)
        for owner, names in RENAMED.items()
        if owner.rpartition(".")[2][0].isupper() and owner not in ("fedloom.methods.Sent", "fedloom.nets.Net")
        for old, new in names.items()
    ],
)
def test_an_old_name_of_a_class_tells_the_new_one(owner, old, new):
    kind = class_of(owner)
    concrete = type("Concrete", (kind,), dict.fromkeys(getattr(kind, "__abstractmethods__", ()), lambda self: None))
    with pytest.raises(AttributeError, match=f"it is now called '{new}'"):
        getattr(concrete.__new__(concrete), old)
    assert not hasattr(kind, old)
    if not issubclass(kind, BaseModel):  # the metaclass of pydantic has the last word on its classes
        with pytest.raises(AttributeError, match=f"it is now called '{new}'"):
            getattr(kind, old)
    name = new.partition(".")[0]
    code = inspect.getsource(inspect.getmodule(kind))
    assert hasattr(kind, name) or name in getattr(kind, "model_fields", {}) or re.search(rf"self\.{name}\b", code)


HOOKS = [
    (base, old, new)
    for base in (Attack, UploadAttack, CachedSource, ImageSource)
    for owner, names in RENAMED.items()
    if owner.rpartition(".")[2] == base.__name__
    for old, new in names.items()
]


@pytest.mark.parametrize(("base", "old", "new"), HOOKS)
def test_an_attack_or_source_with_a_hook_of_an_old_name_is_refused(base, old, new):
    with pytest.raises(TypeError, match=f"Late: .* '{old}'; it is now called '{new}'"):
        type("Late", (base,), {old: lambda self, *args: None})


def test_a_hook_of_a_base_of_the_base_is_refused_too():
    with pytest.raises(TypeError, match=r"Late: 'fedloom.data.attacks.Attack' has no .* 'poisoned'; .* 'poison'"):
        type("Late", (UploadAttack,), {"poisoned": lambda self, scenario: scenario})
    assert type("Fine", (UploadAttack,), {"poison": lambda self, scenario: scenario}).min_bad == 1


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


@pytest.mark.parametrize(("old", "new"), RENAMED["fedloom.nets.Net"].items())
def test_an_attribute_of_a_net_of_an_old_name_tells_the_new_one(old, new):
    net = MODELS.get("mlp")(input_shape=(1, 8, 8), num_classes=10)
    with pytest.raises(AttributeError, match=f"it is now called '{new}'"):
        getattr(net, old)
    assert hasattr(net, new)
    net.add_module(old, nn.Identity())  # a net of a user may have a module of that name
    assert isinstance(getattr(net, old), nn.Identity)


def test_other_names_of_a_net_are_as_in_torch():
    net = MODELS.get("mlp")(input_shape=(1, 8, 8), num_classes=10)
    assert not hasattr(net, "anything")
    assert net.functional is net.functional
