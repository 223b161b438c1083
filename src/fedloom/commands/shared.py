"""Words and ways of printing that several commands share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedloom.core.files import json_text

Overrides = Annotated[list[str] | None, typer.Argument(help="key=value on top of the config, e.g. rounds=10.")]
Config = Annotated[Path, typer.Argument(help="A YAML config; configs/ holds ready ones.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders with run folders somewhere below.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else, on stdout.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete what the run folder holds and train again.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time; one per core unless said otherwise.")]


def say(line: str) -> None:
    """One line for a person, on stderr."""
    print(line, file=sys.stderr)


def print_json(value: Any) -> None:
    """One JSON object on stdout; numbers that are not finite become null."""
    print(json_text(value, default=str))


def console_of(as_json: bool) -> Console:
    """Where tables and progress go: stderr if stdout is reserved for JSON."""
    return Console(stderr=as_json, highlight=False)
