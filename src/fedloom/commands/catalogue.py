"""Commands that list what there is: `models`, `datasets`, `scenarios`; `methods` has a file of its own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.commands.shared import AsJson, console_of, print_json
from fedloom.core.registry import Registry

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def models(name: Annotated[str | None, typer.Argument()] = None, as_json: AsJson = False) -> None:
    """The networks, or one of them with its shape and its options."""
    from fedloom.nets import MODELS
    from fedloom.nets.options import model_options

    options = {factory: model_options(model) for model, factory in MODELS}
    _catalogue("model", MODELS, name, as_json, lambda factory: _keys_and_meanings(options[factory]))


def datasets(name: Annotated[str | None, typer.Argument()] = None, as_json: AsJson = False) -> None:
    """The data sources, or one of them with its config keys."""
    from fedloom.data import SOURCES

    def facts(source: Any) -> dict[str, Any]:
        return {**_keys_and_meanings(source.model_fields), "model": source.model}

    _catalogue("dataset", SOURCES, name, as_json, facts)


def scenarios(
    name: Annotated[str | None, typer.Argument(help="One of them; the words it starts with are enough.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ready configs: one for every setting of the papers' tables, and the demo's."""
    from fedloom.config.ready_configs import find_ready, ready_configs
    from fedloom.terminal import print_listing

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


def _catalogue(noun: str, registry: Registry[Any], name: str | None, as_json: bool, facts: Any) -> None:
    """List all items, or show one."""
    from fedloom.terminal import print_listing

    def first_line(entry: Any) -> str:
        return (entry.__doc__ or "").strip().split("\n")[0]

    console = console_of(as_json)
    if name is None:
        if as_json:
            print_json({entry_name: {"summary": first_line(entry), **facts(entry)} for entry_name, entry in registry})
        else:
            print_listing(console, noun, [(entry_name, first_line(entry)) for entry_name, entry in registry])
        return
    entry = registry.get(name)
    text = inspect.cleandoc(entry.__doc__ or "")
    if as_json:
        print_json({"name": name, "text": text, **facts(entry)})
        return
    console.print(text, markup=False, soft_wrap=True)
    for title, values in facts(entry).items():
        if not values:
            continue
        console.print(f"\n[bold]{title}[/]")
        pairs = values.items() if isinstance(values, dict) else [("", values)]
        for key, value in pairs:
            console.print(f"  {key}: {value}" if key else f"  {value}", markup=False, soft_wrap=True)
