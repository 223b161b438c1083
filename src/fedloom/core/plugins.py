"""Python files with methods, metrics, partitions, sources or networks of the user's own, for commands and configs.

A plug-in is imported under its own name, by which what it defines travels to other processes. These find its file in
the environment variable `FEDLOOM_PLUGINS`."""

import hashlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError, FedloomError, short_repr
from fedloom.core.files import expand_home

_VARIABLE = "FEDLOOM_PLUGINS"
_loaded: dict[str, str] = {}  # SHA-256 by name of the module
registrations = 0  # of all registries, so that a file that registers nothing is noticed
loading = False  # whether a plug-in is imported now, whose names must not be those of parts that nobody imported yet


def load_plugin(file: Path | str) -> None:
    """Import the Python file `file`, which registers what it defines, here and in processes that start later.

    Raises `ConfigError` for a file that cannot be imported or registers nothing, and for the name of another module."""
    path = expand_home(file).absolute()
    if path.suffix != ".py" or not path.stem.isidentifier() or not path.is_file():
        why = "there is no such file" if not path.exists() else "need a Python file, named by a word, as mine.py"
        raise ConfigError(f"plug-in {file}: {why}")
    digest = _digest(path)
    if _loaded.get(path.stem) == digest:
        return
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = sys.modules.get(path.stem)
    module_spec = importlib.util.find_spec(path.stem) if module is None else module.__spec__
    origin = (module_spec.origin if module_spec else None) or "built into Python"
    if not Path(origin).exists() or _digest(Path(origin)) != digest:  # a copy, as in an exported app, is the same
        raise ConfigError(f"plug-in {file}: there is another module {path.stem} ({origin}); rename the file")
    global loading
    loading = True
    before, _loaded[path.stem] = registrations, digest  # already now, as its import asks the registries for names
    problem = None
    try:
        importlib.import_module(path.stem)
    except FedloomError as error:  # as for the name of a known method
        problem = str(error)
    except (Exception, SystemExit) as error:  # whatever a foreign file does when it is imported
        problem = f"it cannot be imported ({' '.join(f'{type(error).__name__}: {error}'.split())})"
    finally:
        loading = False
    if problem is None and registrations == before:
        problem = "it registers nothing; put @fm.register above your method, @METRICS.register(name) above your metric"
    if problem is not None:
        del _loaded[path.stem]
        sys.modules.pop(path.stem, None)
        raise ConfigError(f"plug-in {file}: {problem}")
    os.environ[_VARIABLE] = json.dumps([*dict.fromkeys([*_inherited(), str(path)])])


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _inherited() -> list[str]:
    return [*json.loads(os.environ.get(_VARIABLE) or "[]")]  # JSON, as a path may hold any separator


def loaded_plugins() -> dict[str, str]:
    """Return the SHA-256 of each plug-in by the name of its module, in a worker process those of its parent."""
    for file in _inherited():
        if Path(file).stem not in _loaded:
            load_plugin(file)
    return dict(_loaded)


def sources_of(plugins: Mapping[str, str]) -> dict[str, str]:
    """Return the text of loaded plug-ins by the name of their files, for an app that carries them."""
    files = [Path(str(sys.modules[name].__file__)) for name in plugins]
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def with_plugins(values: Mapping[str, Any], folder: Path = Path()) -> dict[str, Any]:
    """Load the files that a config's key `plugins` lists, relative to `folder`, and return the config with the SHA-256
    of all loaded plug-ins. Hashes, as a run folder has them, load nothing: its files are data."""
    listed = values.get("plugins")
    if isinstance(listed, Mapping):
        return dict(values)
    if not isinstance(listed, list | tuple | None):
        raise ConfigError(f"plugins = {short_repr(listed)}: need a list of Python files, as [mine.py]")
    for file in listed or ():
        load_plugin(folder / expand_home(str(file)))
    loaded = loaded_plugins()
    return {**values, "plugins": loaded} if loaded else {key: values[key] for key in values if key != "plugins"}


def require_loaded(plugins: Any) -> None:
    """Raise `ConfigError` unless the `plugins` of a config, hashes by name or None, are loaded as they were."""
    for name, digest in (plugins if isinstance(plugins, Mapping) else {}).items():
        if (loaded := loaded_plugins().get(name)) != digest:
            state = "is not loaded" if loaded is None else "has changed since this config was stored"
            raise ConfigError(f"plugins.{name}: the file {state}; `fedloom --plugin FILE ...` loads the right one")
