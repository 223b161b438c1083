"""A source: where real samples come from, with its own split into training and test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)

from fedloom.core.errors import DataError
from fedloom.core.files import expand_if_path
from fedloom.core.registry import Registry
from fedloom.data.dataset import Dataset

SOURCES: Registry[type[Source]] = Registry("source", home="fedloom.data.sources")

SourceType = TypeVar("SourceType", bound="Source")


@dataclass(frozen=True, slots=True)
class Splits:
    """A source's training set and its official test set (or the fixed one that the source's text states).

    owned: domains are owners, so that each becomes a client unless another partition is asked for. measured: the
    features of a table that are measurements. They are standardised when the scenario is made, by what clients train on
    (`fedloom.data.assemble.make_scenario`): only then is it known what validation and test samples are. notes: one
    sentence for each thing that was left out (counted) or that looks unlike what the user meant; shown once.
    """

    train: Dataset
    test: Dataset
    domains_are_owners: bool = False
    numeric_features: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def owner_count(self) -> int:
        """How many owners hold training samples; 0 where domains are none."""
        return (
            len(np.unique(self.train.domain.numpy()))
            if self.domains_are_owners and self.train.domain is not None
            else 0
        )


class Source(BaseModel):
    """Base of all sources: its fields are its config keys, `load()` reads the data.

    Subclasses register with `@source("name")`. Loading is done once per scenario.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: ClassVar[str] = ""
    """The name it is registered under."""
    model: ClassVar[str] = "lenet5"
    """The model that the demo and the docs pair with this source."""
    keys_added_later: ClassVar[frozenset[str]] = frozenset()
    """Keys of this class that runs of earlier versions do not know; bases name theirs. At their default they are not
    written, so that these runs keep their fingerprint and resume."""

    offline: bool = Field(
        False,
        exclude=True,
        description="Whether the network may not be used. It only matters for the source `hf`; no other source "
        "uses the network.",
    )

    _home = field_validator("*")(expand_if_path)

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        later = {key for kind in type(self).__mro__ for key in vars(kind).get("keys_added_later", ())}
        unset = {key for key in later if getattr(self, key) == fields[key].default}
        return {key: value for key, value in serialize(self).items() if key not in unset}

    def reading_keys(self) -> dict[str, Any]:
        """The keys with which new samples are read as this source reads its own (`fedloom predict`)."""
        return {}

    def load(self) -> Splits:
        """Read the data. Raises `DataError` that names the file and what is wrong."""
        raise TypeError(f"{type(self).__name__} defines no load()")

    def files(self) -> Sequence[Path]:
        """The files that `load` reads. Raises `DataError` that says what is missing and where it comes from."""
        return []


def configure_source(kind: type[SourceType], **keys: Any) -> SourceType:
    """A source from keys given in Python. Raises `DataError` with one line for a key that is wrong."""
    try:
        return kind(**keys)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or kind.kind
        raise DataError(f"{where} = {first['input']!r:.80}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def source(name: str) -> Callable[[type[Source]], type[Source]]:
    """Class decorator: register a source under `name`."""

    def enter(made: type[Source]) -> type[Source]:
        made.kind = name
        return SOURCES.register(name)(made)

    return enter
