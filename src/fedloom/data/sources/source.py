"""A source: where real samples come from, with its own split into training and test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

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

    Subclasses register with `@source("name")`. Loading touches no network and is done once per scenario.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: ClassVar[str] = "lenet5"
    """The model that the demo and the docs pair with this source."""

    def load(self) -> Splits:
        """Read the data. Raises `DataError` that names the file and what is wrong."""
        raise TypeError(f"{type(self).__name__} defines no load()")


def source(name: str) -> Callable[[type[Source]], type[Source]]:
    """Class decorator: register a source under `name`."""
    return SOURCES.register(name)
