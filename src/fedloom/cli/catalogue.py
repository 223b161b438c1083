"""Commands that list what there is: `models`, `datasets`, `scenarios`; `methods` has a file of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.cli.shared import AsJson, print_json
from fedloom.core.console import console_of
from fedloom.core.registry import Registry

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_Facts = Callable[[str, Any], dict[str, Any]]  # of an entry by name


def models(name: Annotated[str | None, typer.Argument()] = None, as_json: AsJson = False) -> None:
    """The networks, or one of them with its shape and its options."""
    from fedloom.nets import MODELS

    if name is None:
        _show_list("model", MODELS, as_json, _facts_of_model)
    else:
        _show_entry(MODELS, name, as_json, _facts_of_model)


def datasets(name: Annotated[str | None, typer.Argument()] = None, as_json: AsJson = False) -> None:
    """The data sources, or one of them with its config keys."""
    from fedloom.data import SOURCES

    if name is None:
        _show_list("dataset", SOURCES, as_json, _facts_of_source)
    else:
        _show_entry(SOURCES, name, as_json, _facts_of_source)


def _facts_of_model(name: str, factory: Any) -> dict[str, Any]:
    from fedloom.nets.blocks import model_options

    return _keys_and_meanings(model_options(name))


def _facts_of_source(name: str, source: Any) -> dict[str, Any]:
    return {**_keys_and_meanings(source.model_fields), "model": source.model}


def scenarios(
    name: Annotated[str | None, typer.Argument(help="One of them; the words it starts with are enough.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ready configs: one for every setting of the papers' tables, and the demo's."""
    from fedloom.cli.terminal import print_listing
    from fedloom.runs.config.reference import find_ready, ready_configs

    if name is not None:
        config = find_ready(name)
        if as_json:
            from fedloom.core.safe_yaml import parse_yaml

            print_json({"name": config.name, "path": str(config.path), "config": parse_yaml(config.text)})
        else:
            console_of(as_json).print(f"# {config.path}\n{config.text.rstrip()}", markup=False, soft_wrap=True)
        return
    ready = ready_configs()
    if as_json:
        print_json({r.name: {"summary": r.summary, "path": str(r.path)} for r in ready})
    else:
        print_listing(console_of(as_json), "scenario", [(r.name, r.summary) for r in ready])


def _keys_and_meanings(fields: Mapping[str, FieldInfo]) -> dict[str, dict[str, Any]]:
    """The default of every key, None for one that is required, and its description."""
    keys = {name: None if field.is_required() else field.default for name, field in fields.items()}
    return {"keys": keys, "meanings": {name: field.description for name, field in fields.items()}}


def _show_list(noun: str, registry: Registry[Any], as_json: bool, facts: _Facts) -> None:
    from fedloom.cli.terminal import print_listing

    entries: dict[str, dict[str, Any]] = {
        name: {"summary": (entry.__doc__ or "").strip().split("\n")[0], **facts(name, entry)}
        for name, entry in registry
    }
    if as_json:
        print_json(entries)
    else:
        print_listing(console_of(as_json), noun, [(name, entry["summary"]) for name, entry in entries.items()])


def _show_entry(registry: Registry[Any], name: str, as_json: bool, facts: _Facts) -> None:
    entry = registry.get(name)
    text = inspect.cleandoc(entry.__doc__ or "")
    if as_json:
        print_json({"name": name, "text": text, **facts(name, entry)})
        return
    console = console_of(as_json)
    console.print(text, markup=False, soft_wrap=True)
    for title, values in facts(name, entry).items():
        if not values:
            continue
        console.print(f"\n[bold]{title}[/]")
        pairs = values.items() if isinstance(values, dict) else [("", values)]
        for key, value in pairs:
            console.print(f"  {key}: {value}" if key else f"  {value}", markup=False, soft_wrap=True)
