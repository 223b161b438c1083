"""The commands `config`, which explains the keys, and `init`, which writes a first config for a user's data."""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedloom.cli.shared import AsJson, echo, print_json, say
from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError


def config(
    key: Annotated[
        str | None, typer.Argument(help="A key or a section, e.g. optimizer.lr, optimizer or lr; by default all.")
    ] = None,
    as_json: AsJson = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a config, for editors that check YAML files.")
    ] = False,
) -> None:
    """Explain the keys of a config: default, range or choices, and meaning."""
    from fedloom.cli.terminal import print_grid
    from fedloom.runs.config.reference import config_keys, config_schema, keys_by_part, matching_keys

    if schema:
        if key is not None:
            raise ConfigError(f"config {key} --schema: the schema describes a whole config; leave out the key")
        print_json(config_schema())
        return
    keys = config_keys() if key is None else matching_keys(key)
    if as_json:
        print_json({"keys": [dataclasses.asdict(config_key) for config_key in keys]})
        return
    console, columns = console_of(False), ("key", "default", "values", "meaning")
    for part, keys_of_part in keys_by_part(keys).items():
        if part:
            console.print(f"[bold]{part}[/]")
        print_grid(console, columns, [(k.path, k.default_text, k.values, k.meaning) for k in keys_of_part])


def init(
    data: Annotated[
        str | None,
        typer.Option("--from", help="A .csv, .parquet or .npz, a folder of images, a built-in set, or owner/name."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The config to write; by default named after the data.")] = None,
    label: Annotated[str | None, typer.Option(help="The column of a table that holds the class.")] = None,
    owner: Annotated[str | None, typer.Option(help="The column that says which client owns a row, or none.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a commented config for your data, with settings to start from."""
    asks = data is None and sys.stdin.isatty() and not as_json
    if data is None and not asks:
        raise ConfigError(
            "name your data: fedloom init --from FILE.csv, a folder of images, or a name of `fedloom datasets`"
        )
    if out is not None:
        _refuse_existing(out)
    data = data or typer.prompt("Your data (a file, a folder, a built-in set, or owner/name on the hub)", err=True)

    from fedloom.runs.config.first_config.first_config import first_config

    first = first_config(data, label, owner, _ask if asks else None)
    path = out or Path(f"{first.draft.name}.yaml")
    _refuse_existing(path)
    text = first.text(str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8", errors="backslashreplace") as stream:  # never overwrites a file
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
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path}: it exists, and `init` overwrites nothing; name another file with --out")


def _ask(question: str, choices: Sequence[str], default: str) -> str:
    answer: str = typer.prompt(f"{question} ({', '.join(choices)})", default=default, err=True)
    return answer
