"""The setting in which a table was measured, in words, and what is said of CIFAR's images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedloom.core.text import listed
from fedloom.papers.measurements import OTHER_IMAGES, Measurement
from fedloom.papers.recipe import Recipe

JPEG = (
    "The images of CIFAR were JPEG files of quality 95 in all runs of this table, not the original pixels, so these "
    "are not the paper's own data."
)
_OWN = "the paper's own"


def setting_of(values: Sequence[Measurement]) -> str:
    """Describe how the measured columns differ from the recipe, or say that the setting is the paper's own."""
    columns_by_setting: dict[str, dict[str, None]] = {}
    for value in values:
        columns_by_setting.setdefault(value.changed or _OWN, {})[value.column] = None
    if len(columns_by_setting) == 1:
        return next(iter(columns_by_setting))
    return "; ".join(f"{setting} ({listed(names)})" for setting, names in columns_by_setting.items())


def with_other_images(recipe: Recipe, values: Sequence[Measurement]) -> list[Measurement]:
    """Mark measurements on CIFAR, whose original pixels are not at hand, as those of other images."""
    return [
        replace(value, changed=OTHER_IMAGES, comparable=False)
        if value.comparable and has_cifar(recipe, {value.column})
        else value
        for value in values
    ]


def columns(values: Sequence[Measurement]) -> set[str]:
    """The columns in which something was measured."""
    return {value.column for value in values}


def has_cifar(recipe: Recipe, names: set[str]) -> bool:
    """Whether one of these columns, or of the panels of a figure, has CIFAR's images."""
    settings = {name for name, keys in recipe.table.columns.items() if names & {name, keys.get("panel")}}
    sources = {cell.config.scenario.source for cell in recipe.study().cells if cell.setting in settings}
    return any(name.startswith("cifar") for name in sources)
