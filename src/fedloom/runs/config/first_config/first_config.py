"""Make a first config for a user's data: read them, choose settings, try them, and write them with comments."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import yaml

from fedloom.core.errors import ConfigError, DataError, printable
from fedloom.core.process_settings import reproducible_settings
from fedloom.data import Scenario
from fedloom.data.sources.source import SOURCES, Splits, configure_source
from fedloom.runs.config.first_config.draft import SourceDraft, draft_source
from fedloom.runs.config.first_config.tables import Ask
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.setup import Setup

_ROWS_OF_CLIENT = 50
_MAX_CLIENTS = 10
_ALL_TAKE_PART = 20  # with more clients, some of them take part in a round
_LARGE_SET = 20_000
_RARE = 0.5  # of the share that a class has if all are equally large


@dataclass(frozen=True, slots=True)
class Choice:
    """A key of a section ("" for the top level) with its value, and why; an empty reason writes no comment."""

    section: str
    key: str
    value: Any
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DataFacts:
    """Facts of data on which the settings depend.

    rows: training samples. counts: of each class. shape: of a sample. tokens: whether samples are token ids. owners:
    with training samples; 0 if the data know none. domains: of the data, where they are no owners.
    """

    rows: int
    counts: tuple[int, ...]
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    tokens: bool
    owners: int
    domains: int

    @classmethod
    def of(cls, splits: Splits, name: str) -> DataFacts:
        """Return the facts of loaded data. Raises `DataError` for data of a single class."""
        train = splits.train
        counts = torch.bincount(train.y, minlength=train.num_classes).tolist()
        held = [class_name for class_name, count in zip(train.classes, counts, strict=True) if count]
        if len(held) < 2:
            others = ", ".join(class_name for class_name in train.classes if class_name not in held)[:100]
            more = f", and more samples of {others}: all that there are are kept for tests" if others else ""
            raise DataError(
                f"{name}: all training samples are of one class ({', '.join(held)}); need two classes or more{more}"
            )
        return cls(
            rows=len(train),
            counts=tuple(counts),
            classes=tuple(train.classes),
            shape=tuple(train.input_shape),
            tokens=train.x.dtype == torch.int64,
            owners=splits.owner_count,
            domains=0 if splits.domains_are_owners else len(train.domains),
        )

    @property
    def has_rare_class(self) -> bool:
        """Whether accuracy says little about the rarest class."""
        return min(self.counts) * len(self.counts) < _RARE * self.rows


def partitions(facts: DataFacts) -> list[list[Choice]]:
    """Return the choices of the partition, the best first; a later one is for data that an earlier one cannot deal."""
    if facts.owners >= 2:
        reason = f"each of the {facts.owners:,} owners is a client, as in the federation that you simulate"
        return [[Choice("scenario", "partition", "natural", reason)]]
    if facts.domains >= 2:
        reason = f"the data come from {facts.domains} domains: each client sees one"
        clients = Choice("scenario", "clients", facts.domains, "one for each domain")
        return [[Choice("scenario", "partition", "domains", reason), clients]]
    count = max(2, min(_MAX_CLIENTS, facts.rows // _ROWS_OF_CLIENT))
    sizes = f"{facts.rows:,} training samples, about {facts.rows // count:,} each"
    clients = Choice("scenario", "clients", count, sizes)
    dirichlet = [
        Choice("scenario", "partition", "dirichlet", "no owners are known: clients get unequal mixes of the classes"),
        Choice("scenario", "alpha", 0.5, "smaller is more unequal: 0.1 is hard, 100 nearly equal"),
        clients,
    ]
    few = "no owners are known, and a class has too few samples for unequal mixes: equal shares at random"
    return [dirichlet, [Choice("scenario", "partition", "iid", few), clients]]


def settings(facts: DataFacts, clients: int, smallest_client: int) -> list[Choice]:
    """Return the choices of model, training and evaluation for this number of clients, the smallest of which with data
    has `smallest_client` training samples."""
    share = 1.0 if clients <= _ALL_TAKE_PART else max(0.01, round(_MAX_CLIENTS / clients, 2))
    whom = "all clients in every round" if share == 1 else f"{clients:,} clients: some in a round"
    batch = 32 if smallest_client >= 32 else 16 if smallest_client >= 16 else 8
    why_batch = "" if batch == 32 else f"the smallest client has {smallest_client} samples"
    if facts.tokens:
        optimizer, why_optimizer = {"name": "adam", "lr": 0.001}, "texts train better with Adam"
    else:
        optimizer, why_optimizer = {"name": "sgd", "lr": 0.05, "momentum": 0.9}, "lower lr if the loss rises"
    local, tested = ("local", "each owner's own") if facts.owners >= 2 else ("global", "all")
    metrics, why_metrics = list[str](), "balanced accuracy and macro F1 are recorded anyway"
    if facts.has_rare_class:
        rarest = facts.classes[facts.counts.index(min(facts.counts))]
        rare = f"class {rarest} is rare ({100 * min(facts.counts) / facts.rows:.1f} % of the training samples)"
        metrics, why_metrics = ["auroc"], f"{rare}: accuracy hides it; {why_metrics}"
    else:
        why_metrics += "; add auroc, brier and others here"
    why_protocol = f"the server's model on {tested} test samples; personal methods need personal/local"
    return [
        Choice("", "method", "fedavg", "begin with the plain method; compare others with `fedloom compare`"),
        Choice("", "model", *_model(facts)),
        Choice("", "rounds", 30, "look at the curve in the report: train on while it rises"),
        Choice("", "participation", share, whom),
        Choice("", "local_epochs", 2, "passes over a client's data in a round; more save traffic, and drift further"),
        Choice("", "batch_size", batch, why_batch),
        Choice("", "optimizer", optimizer, why_optimizer),
        Choice("evaluation", "protocol", f"global/{local}", why_protocol),
        Choice("evaluation", "select", "last", "the last round's test; best_val needs scenario.val above 0"),
        Choice("evaluation", "metrics", metrics, why_metrics),
        Choice("", "seed", 0, "repeat with other seeds before you believe a difference"),
    ]


def _model(facts: DataFacts) -> tuple[str, str]:
    """Return the network for this kind and size of input, and why."""
    own = "docs/how-to/own-model.md says how to take your own"
    if facts.tokens:
        return "bilstm", f"texts: a small recurrent network; {own}"
    if len(facts.shape) != 3:
        return "mlp", f"rows of numbers: one hidden layer of 200; logistic is simpler; {own}"
    side = min(facts.shape[1:])
    if side < 12:
        return "digits-cnn", f"pictures of {side} pixels: two small convolutions"
    if side <= 32 and facts.rows < _LARGE_SET and len(facts.classes) <= 20:
        why = "small pictures, few samples and classes: LeNet-5 trains in seconds; resnet8 is stronger"
        return "lenet5", f"{why}; {own}"
    return "resnet8", f"pictures of {side} pixels: a small ResNet; lenet5 is quicker; {own}"


def as_values(choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the config that choices make, as nested plain values."""
    values: dict[str, Any] = {}
    for choice in choices:
        section = values.setdefault(choice.section, {}) if choice.section else values
        section[choice.key] = choice.value
    return values


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

    The arguments are those of `draft_source`: data, label, owner, ask. Raises `ConfigError` or `DataError`, one line
    that says what to do, for data that cannot be read or dealt.
    """
    draft = draft_source(data, label, owner, ask)
    keys = {key: value for key, value in draft.keys.items() if key != "source"}
    splits = configure_source(SOURCES.get(draft.keys["source"]), **keys).load()
    facts = DataFacts.of(splits, data)
    source = [Choice("scenario", key, value, draft.reasons.get(key, "")) for key, value in draft.keys.items()]
    dealt, scenario = _dealt(source, facts, splits)
    sizes = [size for size in scenario.train.sizes.tolist() if size]
    chosen = settings(facts, scenario.clients, min(sizes))
    # keys of the top level first, so that each section is written once
    choices = (*source, *dealt, *sorted(chosen, key=lambda choice: choice.section != ""))
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


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(printable(text), _WIDTH, break_long_words=False)]


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=2**20)
    return text.removesuffix("\n").removesuffix("\n...")
