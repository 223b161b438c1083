"""Registries: lazy, refusing duplicates, open to third parties, helpful to people who mistype."""

import sys
import types
from importlib.metadata import EntryPoint

import pytest

from fedloom.core import registry as registry_module
from fedloom.core.errors import ConfigError
from fedloom.core.registry import Registry

HOME = "fedloom_test_home"
PLUGIN = "fedloom_test_plugin"


@pytest.fixture
def _no_plugins(monkeypatch):
    monkeypatch.setattr(registry_module, "entry_points", lambda group: [])


def empty_registry(tmp_path, monkeypatch):
    """A registry that modules of its home package, written to `tmp_path`, can import."""
    registry = Registry("thing", home=HOME)
    holder = types.ModuleType("fedloom_test_holder")
    holder.THINGS = registry
    monkeypatch.setitem(sys.modules, "fedloom_test_holder", holder)
    monkeypatch.syspath_prepend(tmp_path)
    return registry


@pytest.fixture
def things(tmp_path, monkeypatch):
    """A registry whose home package registers "builtin" when it is imported."""
    registry = empty_registry(tmp_path, monkeypatch)
    source = "from fedloom_test_holder import THINGS\n@THINGS.register('builtin')\nclass Builtin: pass\n"
    (tmp_path / f"{HOME}.py").write_text(source)
    yield registry
    for name in (HOME, PLUGIN):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("_no_plugins")
def test_the_home_package_is_imported_at_the_first_question_and_not_before(things):
    @things.register("mine")
    class Mine:
        pass

    assert HOME not in sys.modules
    assert things.names() == ["builtin", "mine"]
    assert HOME in sys.modules


@pytest.mark.usefixtures("_no_plugins")
@pytest.mark.parametrize(
    "ask",
    [lambda r: r.get("builtin"), lambda r: "builtin" in r, lambda r: dict(r)["builtin"]],
    ids=["get", "in", "iter"],
)
def test_every_question_loads_the_built_ins(things, ask):
    assert ask(things)


@pytest.mark.usefixtures("_no_plugins")
def test_register_returns_the_thing_and_get_finds_it(things):
    @things.register("mine")
    def mine():
        return 5

    assert mine() == 5
    assert things.get("mine") is mine
    assert "mine" in things
    assert "other" not in things


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A registry whose home package has two modules, each named like the class that it registers."""
    registry = empty_registry(tmp_path, monkeypatch)
    (tmp_path / HOME).mkdir()
    (tmp_path / HOME / "__init__.py").touch()
    for name in ("first", "second"):
        source = f"from fedloom_test_holder import THINGS\n@THINGS.register('{name}')\nclass Builtin: pass\n"
        (tmp_path / HOME / f"{name}.py").write_text(source)
    yield registry
    for name in (PLUGIN, HOME, f"{HOME}.first", f"{HOME}.second"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("_no_plugins")
def test_looking_up_a_built_in_imports_its_module_alone(package):
    assert package.get("first").__module__ == f"{HOME}.first"
    assert "first" in package
    assert f"{HOME}.second" not in sys.modules
    assert package.names() == ["first", "second"]


@pytest.mark.usefixtures("_no_plugins")
@pytest.mark.parametrize("name", ["first.second", "..first", "", 3, "third", "__init__"])
def test_a_name_that_is_no_modules_is_looked_up_among_all(package, name):
    assert name not in package
    assert package.names() == ["first", "second"]


@pytest.mark.usefixtures("_no_plugins")
def test_a_name_of_a_built_in_is_not_taken_before_the_built_in_is_imported(package):
    package.register("first")("mine")
    with pytest.raises(ConfigError, match="thing 'first' is registered already"):
        package.get("first")


def test_a_plugin_with_the_name_of_a_built_in_is_told(package, tmp_path, monkeypatch, caplog):
    plugin(tmp_path, monkeypatch, "first")
    assert package.get("first").__module__ == f"{HOME}.first"
    assert "thing 'first' is left out" in caplog.text


def test_a_name_is_taken_once(things):
    things.register("mine")("first")
    with pytest.raises(ConfigError, match="thing 'mine' is registered already by 'first'"):
        things.register("mine")("second")


def test_registering_the_same_thing_again_is_harmless(things):
    item = object()
    things.register("mine")(item)
    things.register("mine")(item)


@pytest.mark.usefixtures("_no_plugins")
def test_an_unknown_name_is_answered_with_the_nearest(things):
    with pytest.raises(ConfigError, match="unknown thing 'biultin': did you mean 'builtin'"):
        things.get("biultin")


def plugin(tmp_path, monkeypatch, name, source="class Mine: pass\n"):
    """An installed package that offers `Mine` under `name`; returns the list of groups asked for."""
    (tmp_path / f"{PLUGIN}.py").write_text(source)
    asked = []

    def entry_points(group):
        asked.append(group)
        return [EntryPoint(name, f"{PLUGIN}:Mine", group)]

    monkeypatch.setattr(registry_module, "entry_points", entry_points)
    return asked


def test_entry_points_of_the_nouns_group_are_loaded(things, tmp_path, monkeypatch):
    asked = plugin(tmp_path, monkeypatch, "foreign")
    assert things.get("foreign").__module__ == PLUGIN
    assert things.names() == ["builtin", "foreign"]
    assert set(asked) == {"fedloom.things"}


def test_a_plugin_cannot_take_a_built_in_name_and_is_named_once(things, tmp_path, monkeypatch, caplog):
    plugin(tmp_path, monkeypatch, "builtin")
    assert things.names() == things.names() == ["builtin"]
    assert things.get("builtin").__module__ == HOME
    (line,) = caplog.messages
    assert line.startswith("thing 'builtin' is left out: the plug-in cannot be loaded (ConfigError: thing 'builtin'")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import fedloom_test_missing\n", "ModuleNotFoundError: No module named 'fedloom_test_missing'"),
        ("raise SystemExit('no\\nlicence')\n", "SystemExit: no licence"),
        ("Yours = 3\n", "AttributeError: module 'fedloom_test_plugin' has no attribute 'Mine'"),
        ("class Mine(:\n", "SyntaxError: invalid syntax"),
        ("Mine = 3\n", "TypeError: fedloom_test_plugin:Mine is no class or function"),
    ],
    ids=["import", "exit", "attribute", "syntax", "value"],
)
def test_a_broken_plugin_is_named_once_and_left_out(things, tmp_path, monkeypatch, caplog, source, why):
    plugin(tmp_path, monkeypatch, "foreign", source)
    assert things.names() == things.names() == ["builtin"]
    (line,) = caplog.messages
    assert line.startswith(f"thing 'foreign' is left out: the plug-in cannot be loaded ({why}")
    with pytest.raises(ConfigError, match=r"unknown thing 'foreign': the plug-in cannot be loaded \("):
        things.get("foreign")


def test_workers_leave_the_word_on_a_broken_plugin_to_their_parent(things, tmp_path, monkeypatch, caplog):
    plugin(tmp_path, monkeypatch, "foreign", "import fedloom_test_missing\n")
    monkeypatch.setattr(registry_module.multiprocessing, "parent_process", lambda: "somebody")
    assert things.names() == ["builtin"]
    assert not caplog.messages


@pytest.mark.usefixtures("_no_plugins")
def test_a_definition_that_runs_again_takes_the_place_of_the_first(things):
    def define(value):
        @things.register("mine")
        class Mine:
            number = value

    define(1)
    define(2)
    assert things.get("mine").number == 2
    with pytest.raises(ConfigError, match="registered already"):

        @things.register("mine")
        class Other:
            pass
