"""The commands `config`, which explains every key, and `init`, which writes a first config for a user's data."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloom.cli.shared import AsJson, echo, print_json, say
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


def init(
    data: Annotated[
        str | None,
        typer.Option("--from", help="A .csv, .parquet or .npz, a folder of pictures, a built-in set, or owner/name."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The config to write; without it the data's name with .yaml.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="A table's column of the class.")] = None,
    owner: Annotated[str | None, typer.Option(help="A table's column of the rows' owner, or none.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a commented config for your data, with settings to begin with."""
    from fedloom.core.errors import ConfigError

    asks = data is None and sys.stdin.isatty() and not as_json
    if data is None and not asks:
        raise ConfigError(
            "name your data: fedloom init --from FILE.csv, a folder of pictures, or a name of `fedloom datasets`"
        )
    if out is not None:
        _refuse_existing(out)
    data = data or typer.prompt("Your data (a file, a folder, a built-in set, or owner/name on the hub)", err=True)

    from fedloom.runs.config.first_config.first_config import first_config

    first = first_config(data, label, owner, _asked if asks else None)
    path = out or Path(f"{first.draft.name}.yaml")
    _refuse_existing(path)
    text = first.text(str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8", errors="backslashreplace") as stream:  # never over a file
            stream.write(text)
    except FileExistsError:
        _refuse_existing(path)
    for note in first.scenario.notes:
        say(note)
    if as_json:
        print_json({"config": str(path), "clients": first.scenario.clients, "classes": list(first.facts.classes)})
        return
    scenario, classes = first.config.scenario, len(first.facts.classes)
    echo(f"{path}: {scenario.source}, {classes} classes, {first.scenario.clients} clients ({scenario.partition})")
    typed = shlex.quote(str(path))
    echo(f"next: fedloom inspect {typed}, then fedloom run {typed}")


def _refuse_existing(path: Path) -> None:
    """Raise `ConfigError` if there is something at `path`, which is never overwritten."""
    from fedloom.core.errors import ConfigError

    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path}: exists, and is never overwritten; name another file with --out")


def _asked(question: str, choices: Sequence[str], default: str) -> str:
    answer: str = typer.prompt(f"{question} ({', '.join(choices)})", default=default, err=True)
    return answer
