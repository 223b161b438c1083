"""Write `src/fedloom/keys.pyi`, the types of all config keys for editors and type checkers: python -m tests.typed_keys

They follow from the pydantic models and from the registries, and `test_typed_keys.py` compares the file with them."""

import keyword
import re
import textwrap
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

import fedloom
from fedloom.core.registry import Registry
from fedloom.data import PARTITIONS, SOURCES
from fedloom.diagnosis.evidence import Needs
from fedloom.methods import METHODS
from fedloom.runs.config.keys import fields_of
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.scenario_config import ScenarioConfig

FILE = Path(fedloom.__file__).with_name("keys.pyi")
# Shorter forms that validators accept beside the annotated types, by dotted key.
SHORT_FORMS = {
    "optimizer": "str",
    "engine": "str",
    "drift": "bool",
    "scenario.attack": "str",
    "scenario.held_out": "Sequence[int]",
    "scenario.group": "_Section",
    "scenario.public": "_Section",
    "evaluation.metrics": "Sequence[str | type[Metric] | Callable[..., Any]]",
    "evaluation.decision.label": "int",
    "scenario.classes": "Sequence[str | int]",
}
PARAMETERS = {"method", "scenario", "model"}  # of the functions, beside their keywords
# Keys of a comparison that are the same for all its runs.
SHARED = {"checkpoint", "engine", "flower", "options"}
_HEAD = '''\
"""Types of config keys, written by tests/typed_keys.py from the models that check them at run time."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from fedloom.evaluation.metric import Metric

_Section: TypeAlias = Mapping[str, Any]
'''


def text() -> str:
    """Return the content of the file."""
    classes: dict[str, list[str]] = {}
    run = {name: field for name, field in RunConfig.model_fields.items() if name not in PARAMETERS}
    options = {name: _options_of(name) for name in _built_in(METHODS)}
    run_keys = list(_entries(run, "", classes))
    method_keys = [
        (name, _class(kind.__qualname__.replace(".", ""), kind, name, classes), "") for name, kind in options.items()
    ]
    _add(classes, "RunKeys", [*run_keys, *method_keys], "Keys of a run's config, except method, scenario and model.")
    several = [
        (name, kind if name in SHARED else _several(kind), description)
        for name, kind, description in [*run_keys, *method_keys]
    ]
    _add(classes, "CompareKeys", several, "The same keys for several runs: each may be a list of values to compare.")
    scenario: dict[str, tuple[str, str]] = {}
    parts = [registry.get(name) for registry in (SOURCES, PARTITIONS) for name in _built_in(registry)]
    for model in (ScenarioConfig, *parts):
        for name, kind, description in _entries(fields_of(model), "scenario", classes):
            before = scenario.get(name, ("", ""))
            scenario[name] = _union([*_members(before[0]), *_members(kind)]), before[1] or description
    scenario.pop("source")
    entries = [(name, *of_key) for name, of_key in scenario.items()]
    _add(classes, "ScenarioKeys", entries, "Keys of a scenario: those of all, and of the sources and partitions.")
    _class("NeedsKeys", Needs, "needs", classes)
    return _HEAD + "".join("\n" + "\n".join(lines) + "\n" for lines in classes.values())


def _built_in(registry: Registry[Any]) -> list[str]:
    return [name for name, entry in registry if entry.__module__.startswith("fedloom.")]


def _options_of(method: str) -> type[BaseModel]:
    kind = METHODS.get(method)
    return type(kind.configured(next(iter(kind.presets), "sound"), {}).options)


def _class(name: str, model: Any, path: str, classes: dict[str, list[str]]) -> str:
    """Add the `TypedDict` of a model and return its name; a section without keys is any mapping."""
    fields = fields_of(model)
    if not fields:
        return "_Section"
    if name not in classes:
        classes[name] = []  # before the sections inside
        _add(classes, name, list(_entries(fields, path, classes)), "")
    return name


def _add(classes: dict[str, list[str]], name: str, entries: list[tuple[str, str, str]], docstring: str) -> None:
    if all(key.isidentifier() and not keyword.iskeyword(key) for key, *_ in entries):
        lines = [f"class {name}(TypedDict, total=False):"] + ([f'    """{docstring}"""'] if docstring else [])
        for key, kind, description in entries:
            lines += [f"    {key}: {kind}", *_docstring(description)]
    else:  # as `class`, which no class can declare
        lines = [f"{name} = TypedDict(", f'    "{name}",', "    {"]
        lines += [*(f'        "{key}": {kind},' for key, kind, _ in entries), "    },", "    total=False,", ")"]
    classes.pop(name, None)  # after the sections inside
    classes[name] = lines


def _docstring(description: str) -> list[str]:
    plain = " ".join(description.split()).replace("\\", "\\\\")
    wrapped = textwrap.wrap(f'"""{plain}"""', 116, break_long_words=False, break_on_hyphens=False)
    return [f"    {line}" for line in wrapped] if plain else []


def _entries(fields: Mapping[str, Any], path: str, classes: dict[str, list[str]]) -> Iterator[tuple[str, str, str]]:
    for name, field in fields.items():
        key = f"{path}.{name}" if path else name
        kind = _union([*_members(_text(field.annotation, key, classes)), *_members(SHORT_FORMS.get(key, ""))])
        yield name, kind, field.description or ""


def _text(annotation: Any, key: str, classes: dict[str, list[str]]) -> str:
    """Return an annotation as it is written in a stub."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _text(inner[0], key, classes)
    if origin in (Union, types.UnionType):
        return _union([_text(kind, key, classes) for kind in inner])
    if origin is Literal:
        return f"Literal[{', '.join(_quoted(value) for value in inner)}]"
    if origin in (tuple, list):
        return f"Sequence[{_union([_text(kind, key, classes) for kind in inner if kind is not Ellipsis])}]"
    if origin is dict:
        # A mapping to values of one type is no mapping to a union with it, unless the values are covariant.
        keys, values = (_text(kind, key, classes) for kind in inner)
        return f"Mapping[{keys}, {values}]"
    if annotation in (str, int, float, bool):
        return str(annotation.__name__)
    if annotation is type(None):
        return "None"
    if annotation is Path:
        return "Path | str"
    if fields_of(annotation):
        return _class(f"{re.sub('(Config|Spec)$', '', annotation.__name__)}Keys", annotation, key, classes)
    return "Any"


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _members(kind: str) -> list[str]:
    """Split a union at its outer bars."""
    return [part for part in re.split(r" \| (?![^\[]*\])", kind) if part]


def _union(kinds: list[str]) -> str:
    names = dict.fromkeys(member for kind in kinds for member in _members(kind))
    if "float" in names:
        names.pop("int", None)  # every int is a float to type checkers
    last = ["None"] if "None" in names else []
    return " | ".join([*(name for name in names if name != "None"), *last])


def _several(kind: str) -> str:
    return _union([*_members(kind), f"Sequence[{kind}]"])


if __name__ == "__main__":
    FILE.write_text(text())
