"""The command `methods`: all methods as a table, or everything about one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.commands.shared import AsJson, console_of, print_json
from fedloom.core.errors import ConfigError, short_repr, suggest_name

if TYPE_CHECKING:
    from fedloom.methods.catalogue.descriptions import Entry

_Flag = Callable[["Entry"], bool]


def methods(
    name: Annotated[str | None, typer.Argument(help="One of them; also in wrappers: fedprox+dw.")] = None,
    global_: Annotated[bool, typer.Option("--global", help="With a global model.")] = False,
    personal: Annotated[bool, typer.Option("--personal", help="With a model for each client.")] = False,
    any_architecture: Annotated[bool, typer.Option("--any-architecture", help="For clients with other nets.")] = False,
    stateless: Annotated[bool, typer.Option("--stateless", help="Clients keep nothing between rounds.")] = False,
    secure_sum: Annotated[bool, typer.Option("--secure-sum", help="The server needs sums over clients alone.")] = False,
    stacks: Annotated[bool, typer.Option("--stacks", help="Clients train side by side in one stack.")] = False,
    takes: Annotated[str | None, typer.Option(help="Those that a wrapper can go around, e.g. krum.")] = None,
    compared_in: Annotated[str | None, typer.Option(help="Those that a paper compares with, e.g. feddw.")] = None,
    as_json: AsJson = False,
) -> None:
    """The federated methods, or one of them with its equations, options, presets and sources."""
    flags: list[tuple[bool, _Flag]] = [
        (global_, lambda entry: "global" in entry.abilities.predicts),
        (personal, lambda entry: "personal" in entry.abilities.predicts),
        (any_architecture, lambda entry: entry.abilities.any_architecture),
        (stateless, lambda entry: entry.about is not None and not entry.about.state),
        (secure_sum, lambda entry: entry.abilities.secure_sum),
        (stacks, lambda entry: entry.abilities.unstackable is None),
        (takes is not None, lambda entry: entry.wrappers[str(takes)] is None),
        (compared_in is not None, lambda entry: entry.about is not None and compared_in in entry.about.compared_in),
    ]
    wanted = [flag for given, flag in flags if given]
    if name is not None:
        if wanted:
            raise ConfigError(f"methods {name}: filters are for the list of all methods; leave them out")
        _one(name, as_json)
    else:
        _all(wanted, takes, compared_in, as_json)


def _all(wanted: Sequence[_Flag], takes: str | None, compared_in: str | None, as_json: bool) -> None:
    from fedloom.methods import METHODS, WRAPPERS
    from fedloom.methods.catalogue.descriptions import entries
    from fedloom.methods.contract.paper_settings import PAPERS
    from fedloom.terminal import catalogue

    if takes is not None:
        WRAPPERS.get(takes)
    if compared_in is not None and compared_in not in PAPERS:
        raise ConfigError(
            f"--compared-in {short_repr(compared_in)}: no such paper: {suggest_name(compared_in, PAPERS)}"
        )
    found = [entry for entry in entries() if all(flag(entry) for flag in wanted)]
    if as_json:
        print_json({one.name: _summary(one) | _options(METHODS.get(one.name)) for one in found})
        return
    console = console_of(as_json)
    if not found:
        console.print("no method is all that")
        return
    catalogue(console, "method", [(one.name, one.facts()) for one in found])
    words = ", ".join(WRAPPERS.names())
    console.print(f"  down, up, client keeps: `fedloom methods NAME` explains the formulas; wrappers: {words}")


def _one(name: str, as_json: bool) -> None:
    from fedloom.methods import METHODS
    from fedloom.methods.catalogue.descriptions import entry, meanings, own_choice, set_by
    from fedloom.methods.contract.citation import SYMBOLS
    from fedloom.terminal import grid, listing

    kind, one = METHODS.get(name), entry(name)
    text, ours = inspect.cleandoc(kind.__doc__ or ""), own_choice(kind)
    facts = {**_summary(one), **_options(kind), "our_choice": ours}
    if as_json:
        print_json({"name": name, "text": text, **facts})
        return
    console, about = console_of(as_json), one.about
    console.print(text, markup=False, soft_wrap=True)
    pairs = [(key, value) for key, value in one.facts().items() if value and key != "idea"]
    if about:
        used = dict.fromkeys([*about.down, *about.up, *about.state])
        pairs += [(f"({symbol})", SYMBOLS[symbol]) for symbol in used]
        sources = [("source", about.source), ("released code", about.code or "none, or none read")]
        pairs = [pair for pair in sources if pair[1]] + pairs
    pairs += [(f"not +{word}", why) for word, why in one.wrappers.items() if why]
    pairs.append(("our choice", ours or "none is noted"))
    listing(console, name, pairs)
    told = meanings(kind.Options)
    rows = [
        (key, str(field.default), _values(set_by(kind, key)), told.get(key, ""))
        for key, field in kind.Options.model_fields.items()
    ]
    if rows:
        grid(console, ("option", "default", "set by presets", "meaning"), rows)
    grid(
        console, ("preset", "options", "where a config leaves them out"), [_preset(kind, name) for name in kind.presets]
    )


def _preset(kind: Any, name: str) -> tuple[str, str, str]:
    """A row of the table of presets: its options, and what it states beside them."""
    return name, _values(kind.presets[name]) or "the defaults", _values(kind.settings.get(name, {}))


def _summary(one: Entry) -> dict[str, Any]:
    """Facts of a method for programs."""
    about = one.about
    return {
        "summary": f"{one.title}: {one.idea}",
        "source": about.source if about else None,
        "code": about.code if about else None,
        **{key.replace(" ", "_"): value for key, value in one.facts().items()},
    }


def _options(kind: Any) -> dict[str, Any]:
    defaults = {name: field.default for name, field in kind.Options.model_fields.items()}
    presets = {name: dict(values) for name, values in kind.presets.items()}
    return {"options": defaults, "presets": presets, "settings": dict(kind.settings)}


def _values(values: Any) -> str:
    from fedloom.results.table import flat

    return ", ".join(f"{key} {value}" for key, value in flat(values))
