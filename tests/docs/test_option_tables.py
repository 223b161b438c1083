"""The tables of options on the methods' pages state the values that presets have in the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedloom.methods.contract.method import METHODS

PAGES = Path(__file__).parents[2] / "docs" / "methods"
WORDS = {"none": None, "true": True, "false": False}


def tables(page: str) -> list[list[list[str]]]:
    """The tables of a page whose first column is "key", as rows of cells."""
    blocks = re.findall(r"^\| key \|.*\n(?:\|.*\n)+", (PAGES / page).read_text(encoding="utf-8"), re.MULTILINE)
    split = [[re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()] for block in blocks]
    return [[[cell.strip() for cell in row] for row in rows] for rows in split]


def value(text: str) -> Any:
    """The value that a cell states; text where it is no number or word of JSON."""
    text = text.strip("`").strip()
    if text in WORDS:
        return WORDS[text]
    if numbers := re.fullmatch(r"\[(.+)\]", text):
        return tuple(map(value, numbers[1].split(",")))
    try:
        return float(text.replace(" ", ""))
    except ValueError:
        return text


def stated(name: str) -> dict[str, dict[str, Any]]:
    """The values that the page states, by option and preset; "default" is the value without a preset's change."""
    values: dict[str, dict[str, Any]] = {}
    for header, _, *rows in tables(f"{name}.md"):
        columns = [re.findall(r"`(\w+)`", cell) or [cell] for cell in header[1:-1]]
        for row in rows:
            options = [key.rpartition(".")[2] for key in re.findall(r"`([\w.]+)`", row[0])]
            for presets, cell in zip(columns, row[1:-1], strict=True):
                text = cell or row[1]  # an empty cell repeats the first column
                cells = text.split(", ") if text.count(", ") + 1 == len(options) else [text] * len(options)
                for option, entry in zip(options, cells, strict=True):
                    values.setdefault(option, {}).update({preset: value(entry) for preset in presets})
    return values


@pytest.mark.parametrize("name", [name for name in METHODS.names() if METHODS.get(name).Options.model_fields])
def test_the_page_states_the_values_of_the_code(name: str) -> None:
    kind, by_option = METHODS.get(name), stated(name)
    assert set(by_option) == set(kind.Options.model_fields)
    for option, by_preset in by_option.items():
        default = kind.Options.model_fields[option].default
        for preset, options in kind.presets.items():
            if preset not in by_preset and preset not in ("paper", "authors", "sound"):
                continue  # the page says in a sentence what the preset of a comparing paper sets
            of_code = None if options.get(option, default) == "none" else options.get(option, default)
            of_page = by_preset.get(preset, by_preset.get("default", by_preset.get("paper")))
            if isinstance(of_page, str) and of_code is None:  # "the run's model"
                continue
            assert of_page == of_code, f"{option}, preset {preset}: the page has {of_page}, the code {of_code}"
