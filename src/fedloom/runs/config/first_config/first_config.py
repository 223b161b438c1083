"""Make a first config for a user's data: read them, choose settings, try them, and write them with comments."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import yaml

from fedloom.core.errors import ConfigError, printable
from fedloom.core.process_settings import reproducible_settings
from fedloom.data import Scenario
from fedloom.data.sources.source import SOURCES, Splits, configure_source
from fedloom.runs.config.first_config.choices import Choice, DataFacts, as_values, partitions, section_choices, settings
from fedloom.runs.config.first_config.draft import Ask, SourceDraft, draft_source
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.setup import Setup

_WIDTH = 100  # of comments


@dataclass(frozen=True, slots=True)
class FirstConfig:
    """A config for a user's data. draft: how the data are read. choices: all keys with their reasons."""

    draft: SourceDraft
    choices: tuple[Choice, ...]
    config: RunConfig
    scenario: Scenario
    facts: DataFacts

    def text(self, file: str) -> str:
        """Return the config as YAML with comments, for a file of this name."""
        facts, name = self.facts, printable(shlex.quote(file))
        head = (
            f"A first config for your data, written by fedloom init: {facts.rows:,} training samples of "
            f"{len(facts.classes)} classes. Comments say why each value was chosen; change what you know better."
        )
        commands = (
            f"fedloom inspect {name}    # who holds what, before any training",
            f"fedloom run {name}",
            f"fedloom compare {name} --methods fedavg,fedprox,scaffold --seeds 3",
        )
        lines = [*_comment(head, ""), *(f"#   {command}" for command in commands)]
        for section, choices in groupby(self.choices, key=lambda choice: choice.section):
            indent = "  " if section else ""
            lines += ["", *([f"{section}:"] if section else [])]
            for choice in choices:
                lines += [*_comment(choice.reason, indent), f"{indent}{choice.key}: {_yaml(choice.value)}"]
        return "\n".join(lines) + "\n"


def first_config(data: str, label: str | None = None, owner: str | None = None, ask: Ask | None = None) -> FirstConfig:
    """Return a config for data that a user names, which was tried up to the first step of training.

    Args:
        data: a path of a table, arrays, texts or pictures; the name of a built-in set; or owner/name on the hub.
        label: the column of the class of a table; None chooses it.
        owner: the column of the owner of its rows; None chooses it, "none" takes none.
        ask: asks about the columns of a table; None asks nobody.

    Raises `ConfigError` or `DataError`, one line that says what to do, for data that cannot be read or dealt.
    """
    draft = draft_source(data, label, owner, ask)
    keys = {key: value for key, value in draft.keys.items() if key != "source"}
    splits = configure_source(SOURCES.get(draft.keys["source"]), **keys).load()
    facts = DataFacts.of(splits, data)
    source = section_choices(draft.keys, draft.reasons)
    dealt, scenario = _dealt(source, facts, splits)
    sizes = [size for size in scenario.train.sizes.tolist() if size]
    chosen = settings(facts, scenario.clients, min(sizes))
    choices = (*source, *dealt, *_in_sections(chosen))
    config = parse(as_values(choices))
    with reproducible_settings():
        setup = Setup.from_config(config, facts.shape, len(facts.classes), scenario.clients)
        setup.worker(config, scenario.train_set)
        setup.diagnostics(config, scenario.train_set)
    return FirstConfig(draft, choices, config, scenario, facts)


def _dealt(source: Sequence[Choice], facts: DataFacts, splits: Splits) -> tuple[list[Choice], Scenario]:
    """Return the first partition that can deal the data, and the dealt scenario."""
    *first, last = partitions(facts)
    for choices in first:
        try:
            return choices, _scenario([*source, *choices], splits)
        except ConfigError:
            continue  # too few samples for this partition; the last one raises its own error
    return last, _scenario([*source, *last], splits)


def _scenario(choices: Sequence[Choice], splits: Splits) -> Scenario:
    config = parse({"method": "fedavg", **as_values(choices)})
    return config.scenario.build(config.seed, splits)


def _in_sections(choices: Sequence[Choice]) -> list[Choice]:
    """Return choices with those of the top level first, so that each section is written once."""
    return sorted(choices, key=lambda choice: choice.section != "")


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(printable(text), _WIDTH, break_long_words=False)]


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=2**20)
    return text.removesuffix("\n").removesuffix("\n...")
