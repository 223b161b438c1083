"""Import a user's model by the name of its module or file, for commands, which cannot be passed a Python object."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.core.files import expand_home
from fedloom.nets.user_model import ModelSource, error_line


def imported_model(reference: str) -> ModelSource:
    """Return the module, or the function that makes one, which "FILE.py:NAME" or "package.module:NAME" refers to.

    Modules are also looked for in the working directory, and those that a file imports beside it. The user's file is
    run. Raises `ConfigError` if it cannot be imported or does not have the name.
    """
    origin, colon, name = reference.rpartition(":")
    if not colon or not origin or not name:
        raise ConfigError(f"--model {reference}: need FILE.py:NAME or MODULE:NAME, as nets.py:make_net")
    model: Any = _imported(origin)
    for attribute in name.split("."):
        if not hasattr(model, attribute):
            raise ConfigError(f"--model {reference}: {origin} has no {name}")
        model = getattr(model, attribute)
    if not isinstance(model, nn.Module) and not callable(model):
        raise ConfigError(f"--model {reference}: a {type(model).__name__}; need a torch.nn.Module, or what makes one")
    source: ModelSource = model
    return source


def _imported(origin: str) -> ModuleType:
    try:
        if not origin.endswith(".py"):
            with _searched(Path.cwd()):
                return importlib.import_module(origin)
        path = expand_home(origin)
        if not path.is_file():
            raise ConfigError(f"--model {origin}: no such file")
        with _searched(path.resolve().parent):
            return _run_file(path)
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's file raises
        raise ConfigError(f"--model {origin}: cannot be imported ({error_line(error)})") from error


def _run_file(path: Path) -> ModuleType:
    """Run a file as a module, which is listed in `sys.modules`: dataclasses look theirs up there."""
    name = path.stem if path.stem not in sys.modules else f"_fedloom_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a file that ends in .py is a module"
    assert spec.loader is not None, "a file that ends in .py has a loader"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


@contextlib.contextmanager
def _searched(folder: Path) -> Iterator[None]:
    """Look for modules in a folder first."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:  # the user's code may have taken it out
            sys.path.remove(entry)
