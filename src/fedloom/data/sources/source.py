"""A source: where real samples come from, with its own split into training and test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from fedloom.core.registry import Registry
from fedloom.data.dataset import Dataset

SOURCES: Registry[type[Source]] = Registry("source", home="fedloom.data.sources")


@dataclass(frozen=True, slots=True)
class Splits:
    """A source's training set and its official test set (or the fixed one that the source's text states)."""

    train: Dataset
    test: Dataset


class Source(BaseModel):
    """Base of all sources: its fields are its config keys, `load()` reads the data.

    Subclasses register with `@source("name")`. Loading is done once per scenario. `offline` promises that the network
    is not touched; it changes nothing but for the source `hf`, the only one that ever does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: ClassVar[str] = ""
    """The name it is registered under."""
    model: ClassVar[str] = "lenet5"
    """The model that the demo and the docs pair with this source."""

    offline: bool = Field(False, exclude=True)

    def load(self) -> Splits:
        """Read the data. Raises `DataError` that names the file and what is wrong."""
        raise TypeError(f"{type(self).__name__} defines no load()")

    def files(self) -> Sequence[Path]:
        """The files that `load` reads. Raises `DataError` that says what is missing and where it comes from."""
        return []


def source(name: str) -> Callable[[type[Source]], type[Source]]:
    """Class decorator: register a source under `name`."""

    def enter(made: type[Source]) -> type[Source]:
        made.kind = name
        return SOURCES.register(name)(made)

    return enter
