"""Commands that list the parts of fedloom (`methods`, `models`, `datasets`, `scenarios`), and `config`, on its keys."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.cli.shared import AsJson, print_json, print_lines
from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError, check_choice
from fedloom.core.registry import Registry

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from fedloom.methods.catalogue import Entry


def models(name: Annotated[str | None, typer.Argument()] = None, as_json: AsJson = False) -> None:
    """List the networks, or show one with its shape and options."""
    from fedloom.nets import MODELS
    from fedloom.nets.blocks import model_options

    _show("model", MODELS, name, as_json, lambda key, _: _keys_and_meanings(model_options(key)))


def datasets(name: Annotated[str | None, typer.Argument()] = None, as_json: AsJson = False) -> None:
    """List the data sources, or show one with its config keys."""
    from fedloom.data import SOURCES

    def facts(_: str, source: Any) -> dict[str, Any]:
        return {**_keys_and_meanings(source.model_fields), "model": source.model}

    _show("dataset", SOURCES, name, as_json, facts)


def scenarios(
    name: Annotated[str | None, typer.Argument(help="One of them; its first words are enough.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the ready configs: one for each setting of the papers' tables, and the demo's."""
    from fedloom.cli.terminal import print_grid
    from fedloom.runs.config.reference import find_ready, ready_configs

    if name is not None:
        config = find_ready(name)
        if as_json:
            from fedloom.core.files import parse_yaml

            print_json({"name": config.name, "path": str(config.path), "config": parse_yaml(config.text)})
        else:
            print_lines(f"# {config.path}\n{config.text.rstrip()}")
        return
    ready = ready_configs()
    if as_json:
        print_json({r.name: {"summary": r.summary, "path": str(r.path)} for r in ready})
    else:
        print_grid(console_of(False), ("scenario", "description"), [(r.name, r.summary) for r in ready])


def config(key: str | None = None, as_json: AsJson = False, schema: bool = False) -> None:
    """Explain the keys of a config: default, range or choices, and meaning."""
    from fedloom.cli.terminal import print_grid
    from fedloom.runs.config.reference import config_keys, config_schema, matching_keys

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
    for part, keys_of_part in groupby(keys, lambda config_key: config_key.part):  # as `config_keys` lists them
        if part:
            console.print(f"[bold]{part}[/]")
        print_grid(console, columns, [(k.path, k.default_text, k.values, k.meaning) for k in keys_of_part])


def _keys_and_meanings(fields: "Mapping[str, FieldInfo]") -> dict[str, dict[str, Any]]:
    """Return the default (None if required) and the description of each key."""
    keys = {name: None if field.is_required() else field.default for name, field in fields.items()}
    return {"keys": keys, "meanings": {name: field.description for name, field in fields.items()}}


def _show(
    noun: str, registry: Registry[Any], name: str | None, as_json: bool, facts: Callable[[str, Any], dict[str, Any]]
) -> None:
    """Print a list of a registry's entries, or one entry by `name` with its `facts`."""
    from fedloom.cli.terminal import print_grid

    if name is None:
        summaries = {key: (entry.__doc__ or "").strip().split("\n")[0] for key, entry in registry}
        if as_json:
            print_json({key: {"summary": summaries[key], **facts(key, entry)} for key, entry in registry})
        else:
            print_grid(console_of(False), (noun, "description"), [*summaries.items()])
        return
    entry = registry.get(name)
    text = inspect.cleandoc(entry.__doc__ or "")
    if as_json:
        print_json({"name": name, "text": text, **facts(name, entry)})
        return
    print_lines(text)
    for title, values in facts(name, entry).items():
        if values:
            console_of(False).print(f"\n[bold]{title}[/]")
            texts = [f"{key}: {value}" for key, value in values.items()] if isinstance(values, dict) else [values]
            print_lines(*(f"  {text}" for text in texts))


_Filter = Callable[["Entry"], bool]


def methods(
    name: Annotated[str | None, typer.Argument(help="One of them, or one in wrappers: fedprox+dw.")] = None,
    global_: Annotated[bool, typer.Option("--global", help="That train a global model.")] = False,
    personal: Annotated[bool, typer.Option("--personal", help="That train a model for each client.")] = False,
    any_architecture: Annotated[bool, typer.Option("--any-architecture", help="That allow different nets.")] = False,
    stateless: Annotated[bool, typer.Option("--stateless", help="Whose clients keep nothing between rounds.")] = False,
    secure_sum: Annotated[bool, typer.Option("--secure-sum", help="Whose server only needs sums.")] = False,
    stacks: Annotated[bool, typer.Option("--stacks", help="That can train many clients in one stack.")] = False,
    several_labels: Annotated[bool, typer.Option("--several-labels", help="For samples with several labels.")] = False,
    takes: Annotated[str | None, typer.Option(help="That a wrapper accepts, e.g. krum.")] = None,
    compared_in: Annotated[str | None, typer.Option(help="That a paper compares, e.g. feddw.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the federated methods, or show one with its equations, options, presets and sources."""
    possible_filters: list[tuple[bool, _Filter]] = [
        (global_, lambda method: "global" in method.abilities.predicts),
        (personal, lambda method: "personal" in method.abilities.predicts),
        (any_architecture, lambda method: method.abilities.any_architecture),
        (stateless, lambda method: method.citation is not None and not method.citation.state),
        (secure_sum, lambda method: method.abilities.secure_sum),
        (stacks, lambda method: method.abilities.unstackable is None),
        (several_labels, lambda method: method.abilities.single_label is None),
        (takes is not None, lambda method: method.wrappers.get(str(takes), "") is None),
        (compared_in is not None, lambda method: compared_in in method.compared_in),
    ]
    filters = [flag for is_set, flag in possible_filters if is_set]
    if name is not None:
        if filters:
            raise ConfigError(f"methods {name}: filters apply to the list of all methods; leave them out")
        _show_method(name, as_json)
    else:
        _show_methods(filters, takes, compared_in, as_json)


def _show_methods(filters: Sequence[_Filter], takes: str | None, compared_in: str | None, as_json: bool) -> None:
    from fedloom.cli.terminal import print_catalogue
    from fedloom.methods import METHODS, WRAPPERS
    from fedloom.methods.catalogue import entries
    from fedloom.methods.contract.citation import papers

    if takes is not None:
        WRAPPERS.get(takes)  # raises an error with the nearest name
    if compared_in is not None:
        check_choice("--compared-in", compared_in, [*papers()])
    matching = [entry for entry in entries() if all(accepts(entry) for accepts in filters)]
    if as_json:
        print_json({entry.name: _summary(entry) | _options(METHODS.get(entry.name)) for entry in matching})
        return
    if not matching:
        print_lines("no method matches all filters")
        return
    # Trying each wrapper on each method takes seconds, so only the page of a method lists the wrappers that accept it.
    facts = [(entry.name, entry.facts(full=False)) for entry in matching]
    print_catalogue(console_of(False), "method", facts)
    print_lines(
        "  yields: the models that the protocols model/data test, e.g. personal by personal/local",
        "  down, up, client keeps: `fedloom methods NAME` explains the formulas, and lists its wrappers",
        f"  wrappers: {', '.join(WRAPPERS.names())}; --takes WRAPPER lists the methods that one accepts",
    )


def _show_method(name: str, as_json: bool) -> None:
    from fedloom.cli.terminal import print_grid
    from fedloom.evaluation.protocols import offered_protocols
    from fedloom.methods import METHODS
    from fedloom.methods.catalogue import entry, our_choices, set_by
    from fedloom.methods.contract.citation import traffic_symbols

    kind, description = METHODS.get(name), entry(name)
    text, choices = inspect.cleandoc(kind.__doc__ or ""), our_choices(kind)
    facts = {**_summary(description), **_options(kind), "our_choice": choices}
    if as_json:
        print_json({"name": name, "text": text, **facts})
        return
    console, citation = console_of(False), description.citation
    offered = offered_protocols(description.abilities.predicts)
    print_lines(text)
    pairs = [(key, value) for key, value in description.facts().items() if value and key != "idea"]
    if citation:
        used = dict.fromkeys([*citation.down, *citation.up, *citation.state])
        pairs += [(f"({symbol})", traffic_symbols()[symbol]) for symbol in used]
        sources = [("source", citation.source), ("released code", citation.code or "none, or not read")]
        pairs = [pair for pair in sources if pair[1]] + pairs
    pairs.append(("protocols", f"{', '.join(offered)} (evaluation.protocols)"))
    pairs += [(f"not +{wrapper}", why) for wrapper, why in description.wrappers.items() if why]
    pairs += [(f"+{wrapper}, batch norm", why) for wrapper, why in description.without_batch_norm.items()]
    pairs.append(("our choice", choices or "none noted"))
    if citation:
        pairs += [("departures", citation.departures)] if citation.departures else []
        pairs += [("released code differs", citation.released_code)] if citation.released_code else []
    print_grid(console, (name, "description"), pairs)
    rows = [
        (key, str(field.default), _values(set_by(kind, key)), field.description or "")
        for key, field in kind.Options.model_fields.items()
    ]
    if rows:
        print_grid(console, ("option", "default", "set by presets", "meaning"), rows)
    presets = [
        (preset, _values(options) or "the defaults", _values(kind.settings.get(preset, {})))
        for preset, options in kind.presets.items()
    ]
    print_grid(console, ("preset", "options", "defaults for the config"), presets)


def _summary(description: "Entry") -> dict[str, Any]:
    from fedloom.evaluation.protocols import offered_protocols

    citation = description.citation
    return {
        "summary": f"{description.title}: {description.idea}",
        "source": citation.source if citation else None,
        "code": citation.code if citation else None,
        "departures": citation.departures if citation else "",
        "released_code": citation.released_code if citation else "",
        "protocols": list(offered_protocols(description.abilities.predicts)),
        **{key.replace(" ", "_"): value for key, value in description.facts().items()},
    }


def _options(kind: Any) -> dict[str, Any]:
    defaults = {name: field.default for name, field in kind.Options.model_fields.items()}
    presets = {name: dict(values) for name, values in kind.presets.items()}
    return {"options": defaults, "presets": presets, "settings": dict(kind.settings)}


def _values(values: Any) -> str:
    from fedloom.core.text import flat

    return ", ".join(f"{key} {value}" for key, value in flat(values))
