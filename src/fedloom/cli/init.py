"""The command `init`: a first config for a user's data."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedloom.cli.shared import AsJson, echo, print_json, say


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
