"""The setting in which a table was measured, in words, and what is said of CIFAR's images."""

from __future__ import annotations

from fedloom.papers.measurements import Measurement
from fedloom.papers.recipe import Recipe

JPEG = "The images of CIFAR were JPEG files of quality 95 in all runs of this table, not the original pixels."


def setting_of(recipe: Recipe, values: list[Measurement]) -> str:
    """What differs from the recipe, or "the paper's own"."""
    if values[0].changed:
        return values[0].changed
    return "the paper's own" + (", CIFAR from JPEG files of quality 95" if has_cifar(recipe, columns(values)) else "")


def columns(values: list[Measurement]) -> set[str]:
    """The columns in which something was measured."""
    return {value.column for value in values}


def has_cifar(recipe: Recipe, names: set[str]) -> bool:
    """Whether one of these columns, or of the panels of a figure, has CIFAR's images."""
    settings = {name for name, keys in recipe.table.columns.items() if names & {name, keys.get("panel")}}
    sources = {cell.config.scenario.source for cell in recipe.study().cells if cell.setting in settings}
    return any(name.startswith("cifar") for name in sources)
