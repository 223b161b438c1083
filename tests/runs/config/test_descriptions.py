"""Every key of a config's sections and of the registries of data has a description that can be read alone."""

from typing import get_args

import pytest

from fedloom.data import ATTACKS, PARTITIONS, SKEWS, SOURCES
from fedloom.nets import MODELS
from fedloom.nets.blocks import model_options
from fedloom.runs.config.keys import ModelConfig, UserModelConfig, fields_of
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.scenario_config import PublicConfig, ScenarioConfig

LONGEST = 45  # words of a sentence


def sections_below(kind):
    """A section's class, and those of the sections in it."""
    yield kind
    for field in fields_of(kind).values():
        for annotation in (field.annotation, *get_args(field.annotation)):
            if fields_of(annotation):
                yield from sections_below(annotation)


KINDS = dict.fromkeys([*sections_below(RunConfig), ScenarioConfig, PublicConfig, ModelConfig, UserModelConfig])
for registry in (SOURCES, PARTITIONS, SKEWS, ATTACKS):
    KINDS |= dict.fromkeys(kind for _, kind in registry if kind.__module__.startswith("fedloom."))
KEYS = [(kind.__name__, name, fields_of(kind)[name]) for kind in KINDS for name in fields_of(kind)]
KEYS += [(model, name, option) for model in MODELS.names() for name, option in model_options(model).items()]


@pytest.mark.parametrize(("section", "name", "field"), KEYS, ids=lambda part: part if isinstance(part, str) else "")
def test_every_key_has_a_description_in_full_sentences(section, name, field):
    text = field.description
    assert text, f"{section}.{name} has no description"
    assert text[0].isupper(), text
    assert text.endswith("."), text
    assert len(text.split()) >= 3, text
    assert "  " not in text
    assert all(len(sentence.split()) <= LONGEST for sentence in text.split(". ")), text


def test_the_walk_reaches_every_section_and_registry():
    names = {f"{section}.{name}" for section, name, _ in KEYS}
    assert {"RunConfig.rounds", "OptimizerSpec.lr", "EngineChoice.workers", "FlowerConfig.max_norm"} <= names
    assert {"Dirichlet.alpha", "Csv.decimal", "LabelFlip.share", "LongTail.rho", "OwnSplit.pool"} <= names
    assert {"mlp.hidden", "bilstm.vocabulary", "resnet8.head_bias", "fedbn-alexnet.fc_norm"} <= names


@pytest.mark.parametrize(("section", "name", "field"), KEYS, ids=lambda part: part if isinstance(part, str) else "")
def test_examples_are_accepted_by_the_type(section, name, field):
    from pydantic import ConfigDict, TypeAdapter

    adapter = TypeAdapter(field.annotation, config=ConfigDict(arbitrary_types_allowed=True)) if field.examples else None
    for example in field.examples or ():
        adapter.validate_python(example)
