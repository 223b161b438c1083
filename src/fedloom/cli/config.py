"""The command `config`: every key of a config, with default, values and meaning."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from fedloom.cli.shared import AsJson, print_json
from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError

if TYPE_CHECKING:
    from fedloom.runs.config.reference import ConfigKey


def config(
    key: Annotated[
        str | None, typer.Argument(help="A key or a section, e.g. optimizer.lr, optimizer or lr; all unless given.")
    ] = None,
    as_json: AsJson = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a config, for editors that check YAML files.")
    ] = False,
) -> None:
    """The keys of a config: default, range or choices, and meaning."""
    from fedloom.runs.config.reference import config_keys, config_schema, matching_keys

    if schema:
        if key is not None:
            raise ConfigError(f"config {key} --schema: the schema is of a whole config; leave the key out")
        print_json(config_schema())
        return
    keys = config_keys() if key is None else matching_keys(key)
    if as_json:
        print_json({"keys": [dataclasses.asdict(config_key) for config_key in keys]})
    else:
        _print_keys(keys)


def _print_keys(keys: list[ConfigKey]) -> None:
    from fedloom.cli.terminal import print_grid
    from fedloom.runs.config.reference import keys_by_part

    console = console_of(False)
    for part, keys_of_part in keys_by_part(keys).items():
        if part:
            console.print(f"[bold]{part}[/]")
        print_grid(
            console,
            ("key", "default", "values", "meaning"),
            [(key.path, key.default_text, key.values, key.meaning) for key in keys_of_part],
        )
