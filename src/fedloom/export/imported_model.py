"""Import a user's model by the name of its module or file, for commands, which cannot be passed a Python object."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.core.files import expand_home
from fedloom.nets.user_model import ModelSource, error_line


def imported_model(reference: str) -> ModelSource:
    """Return the module, or the function that makes one, which "FILE.py:NAME" or "package.module:NAME" refers to.

    Modules are also looked for in the working directory. The user's file is run. Raises `ConfigError` if it cannot be
    imported or does not have the name.
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
            sys.path.insert(0, str(Path.cwd()))
            try:
                return importlib.import_module(origin)
            finally:
                sys.path.remove(str(Path.cwd()))
        path = expand_home(origin)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise ConfigError(f"--model {origin}: no such file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's file raises
        raise ConfigError(f"--model {origin}: cannot be imported ({error_line(error)})") from error
