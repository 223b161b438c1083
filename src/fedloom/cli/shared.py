"""Options, ways of reading configs and ways of printing that several commands share."""

import codecs
import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import click
import typer

from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError, RunFolderError, UnknownKeyError, nearest_name, printable, suggest_name
from fedloom.core.files import expand_home, json_text, package_table
from fedloom.core.synonyms import meant_by

if TYPE_CHECKING:
    from fedloom.runs.config.run_config import RunConfig

Overrides = Annotated[list[str] | None, typer.Argument(help="key=value on top of the config, e.g. rounds=10.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain run folders at any depth.")]
Config = Annotated[Path, typer.Argument(help="A YAML config, or the name of a ready one (fedloom scenarios).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else, on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result without progress.")]
FromRound = Annotated[
    int | None, typer.Option(min=1, help="Delete everything after this round's checkpoint, and continue from there.")
]

TEXTS = package_table(Path(__file__).with_name("help.toml"))

_HOME = re.compile(r"~[\w.-]*(/|$)")
_OPTIONS = {
    "existing='fresh'": "--fresh",
    "existing='resume'": "--resume",
    "out=...": "--out",
    "label='diagnosis'": "--label",
}
_ASCII = {"±": "+-", "…": "...", "·": ".", "░": ":", "▒": "+", "▓": "*", "█": "#", "×": "x"}


def described(command: Callable[..., None], section: str) -> Callable[..., None]:
    """Return a command with options by their texts in a `section` of help.toml, for parameters whose annotation is a
    plain type. A flag has no --no-... unless it is named."""
    texts: Mapping[str, Any] = TEXTS["every command"] | TEXTS.get(section, {})
    hints = get_type_hints(command, include_extras=True)
    plain = [name for name, hint in hints.items() if name in texts and not hasattr(hint, "__metadata__")]
    for name in plain:
        keywords = {"help": texts[name]} if isinstance(texts[name], str) else dict(texts[name])
        flags = [f"--{name.replace('_', '-')}"] if hints[name] is bool else []
        kind: Any = typer.Argument if keywords.pop("argument", False) else typer.Option
        option = kind(*keywords.pop("names", flags), **keywords)
        command.__annotations__[name] = Annotated[hints[name], option]
    return command


def say(line: str) -> None:
    """Print one line for a person, on stderr, with the options of a command for the arguments of Python."""
    for argument, option in _OPTIONS.items():
        line = line.replace(argument, option)
    print(printable(line), file=sys.stderr)


def print_json(value: Any) -> None:
    """Print one JSON object on stdout; numbers that are not finite become null."""
    print(json_text(value, default=lambda of: asdict(of) if is_dataclass(of) and not isinstance(of, type) else str(of)))


def print_lines(*lines: str) -> None:
    """Print lines on stdout without markup, and without cutting or wrapping them."""
    console = console_of(False)
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def make_printable(stream: Any) -> None:
    """Replace characters that a stream cannot encode: our signs by ASCII, all others by escapes."""
    if not isinstance(stream, io.TextIOWrapper):
        return
    # A UTF-8 stream that is not strict, as stderr or stdout in the C locale, copes with names that are no text.
    if stream.errors == "strict" or not codecs.lookup(stream.encoding).name.startswith("utf"):
        codecs.register_error("fedloom.ascii", _in_ascii)
        stream.reconfigure(errors="fedloom.ascii")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(_ASCII.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in signs), error.end


def rewind_run(run: Path, round_: int) -> str:
    """Take a run back to the checkpoint of a round, and return a sentence about the checkpoints that were deleted."""
    from fedloom.runs.storage.checkpoint import rewind

    deleted = rewind(run, round_)
    later = f"checkpoints of rounds {', '.join(map(str, deleted))} are deleted" if deleted else "it is the newest one"
    return f"{run} goes on from round {round_}: {later}"


def overrides_with_options(overrides: Sequence[str] | None, **options: int | None) -> list[str]:
    """Return the overrides with those `options` that are not None. Raises `ConfigError` for a key that is set in both
    ways, and for an option of the command written as a key."""
    all_overrides = list(overrides or ())
    refuse_options(all_overrides)
    for key, value in options.items():
        if value is not None:
            if repeated := [override for override in all_overrides if override.partition("=")[0] == key]:
                raise ConfigError(f"--{key} {value} and {repeated[0]}: give one of them")
            all_overrides.append(f"{key}={value}")
    return all_overrides


def refuse_options(overrides: Sequence[str], further_keys: Collection[str] = ()) -> None:
    """Raise `ConfigError` for an override that is an option of the command, and no key of a config."""
    from fedloom.runs.config.run_config import RunConfig

    context = click.get_current_context(silent=True)
    if context is None:
        return
    keys = {*RunConfig.model_fields, *further_keys}
    names = [(name, parameter) for parameter in context.command.params for name in parameter.opts]
    options = {name.removeprefix("--"): parameter for name, parameter in names if name.startswith("--")}
    for override in overrides:
        key, _, value = override.partition("=")
        if key in options and key not in keys:
            usage = f"--{key}" if getattr(options[key], "is_flag", False) else f"--{key} {value}"
            raise ConfigError(f"{override}: {key} is an option of `{context.command_path}`; write {usage}")


def usage_problem(error: click.UsageError) -> str:
    """Return what is wrong with a command line, with the word that means the same here instead of click's guess."""
    text = error.format_message().rstrip(".")
    unknown = re.match(r"No such (command|option):? '?([\w-]+)", text)
    if error.ctx is None or unknown is None:
        is_data = text.startswith("Got unexpected extra") and error.ctx is not None and error.ctx.info_name == "init"
        return f"{text}; your data are --from FILE" if is_data else text
    (kind, typed), command = unknown.groups(), error.ctx.command
    word = typed.lstrip("-").replace("-", "_")
    if kind == "command":
        names = command.list_commands(error.ctx) if isinstance(command, click.Group) else []
        hint = meant_by("command", word)
        if not hint or ("'" in hint and not any(f"'{name}'" in hint for name in names)):
            hint = suggest_name(typed, names)
        return f"no such command {typed}: {hint}"
    from fedloom.runs.config.keys import sections_by_key, with_hint_across_sections
    from fedloom.runs.config.run_config import RunConfig

    near = nearest_name(typed, [name for parameter in command.params for name in parameter.opts if len(name) > 2])
    hint = "" if word in RunConfig.model_fields else meant_by("key", word)
    if near and (not hint or hint.endswith("?")):
        hint = f"did you mean '{near}'?"
    elif not hint or hint.endswith("?"):
        takes_keys = any(parameter.name == "overrides" for parameter in command.params)
        sections = sections_by_key(RunConfig, "fedavg") if takes_keys else {}
        known_key = with_hint_across_sections(UnknownKeyError("", word, RunConfig.model_fields), sections, "fedavg")
        hint = f"did you mean '{word}'?" if word in RunConfig.model_fields else str(known_key).partition(": ")[2]
        hint = re.sub(r"'([\w.]+)'", r"'\1=VALUE'", hint) if takes_keys and not hint.startswith("known") else ""
    return f"no such option {typed}{hint and f': {hint}'}"


def note_unused_options(overrides: Sequence[str] | None, methods: Collection[str]) -> None:
    """Report overrides that set options of methods that do not run."""
    from fedloom.runs.config import run_config

    typed = (override.partition("=") for override in overrides or ())
    run_config.note_unused_options((key for key, _, value in typed if value != "null"), methods, say)


def expand_home_in(argument: str) -> str:
    """Expand ~ at the start of an argument, also after --option=, where shells leave it."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return option + equals + str(expand_home(value)) if _HOME.match(value) else argument


def config_path(config: Path) -> Path:
    """Return the path of a config, which may be one of the package's."""
    from fedloom.runs.config.reference import find_config

    path = find_config(config)
    if path != config and config.suffix:  # the user meant a file, and should know that another one is read
        say(f"{config} is the ready config {path}")
    return path


def parse_config(config: Path, overrides: Sequence[str] | None, **options: int | None) -> "RunConfig":
    """Read a config with overrides, and with those `options` that are not None."""
    from fedloom.runs.config.run_config import load, parse

    return parse(load(config_path(config), overrides_with_options(overrides, **options)))


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Create a folder within the block, and remove it again, with parents created for it, if it is still empty."""
    # Deepest first, because rmdir removes empty folders only.
    new = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = "a file is in the way" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
            raise RunFolderError(f"{folder}: cannot be written ({why}); choose another place with --out") from None
        yield
    finally:
        for path in new:
            with contextlib.suppress(OSError):  # not empty, or never created
                path.rmdir()
