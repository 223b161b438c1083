"""Split what tells rows of a table apart into the name of a method and that of a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedloom.results.comparability import is_own, key_words, setting_keys, setting_numbers
from fedloom.results.group import ResultRow


@dataclass(frozen=True, slots=True)
class RowName:
    """The names of a row: its method, as its study names it, and its setting; empty for the only one."""

    method: str
    setting: str


def row_names(rows: Sequence[ResultRow]) -> list[RowName]:
    """Return the names of each row. Rows of one setting have one name of it, and rows of two settings have two.

    A study's own names are taken where there are any, with the keys that differ where one name stands for several
    settings. Otherwise options of a method and of the optimiser belong to the method's name where a setting has several
    of them, and all other keys to the setting's.

    Args:
        rows: the rows of a table.

    Example:
        >>> row_names([])
        []
    """
    numbers = setting_numbers(rows)
    members: dict[int, list[ResultRow]] = {}
    for number, row in zip(numbers, rows, strict=True):
        members.setdefault(number, []).append(row)
    words = {number: _setting_words(settled) for number, settled in members.items()}
    settings = _told_apart({number: ", ".join(words[number]) for number in words}, members)
    kinds = [(row["method"], number, row["protocol"], row["select"]) for row, number in zip(rows, numbers, strict=True)]
    differing: dict[str, set[str]] = {}
    for row, kind in zip(rows, kinds, strict=True):
        siblings = [sibling for sibling, other_kind in zip(rows, kinds, strict=True) if other_kind == kind]
        for key, value in _own_values(row).items():
            if any(_own_values(sibling).get(key) != value for sibling in siblings):
                differing.setdefault(row["method"], set()).add(key)
    return [
        RowName(_method(row, differing.get(row["method"], set()), words[number]), settings[number])
        for row, number in zip(rows, numbers, strict=True)
    ]


def panel_titles(rows: Sequence[ResultRow], names: Sequence[RowName]) -> list[str]:
    """Return for each row the words that tell apart settings, protocols and selections; rows with equal words compare.

    Empty words mean that all rows compare.

    Args:
        rows: the rows of a table.
        names: the names of each row.
    """
    contexts = [
        (name.setting, row["protocol"], f"select {row['select']}") for row, name in zip(rows, names, strict=True)
    ]
    varying = [len(set(column)) > 1 for column in zip(*contexts, strict=True)]
    return [
        " · ".join(word for word, varies in zip(context, varying, strict=True) if varies and word)
        for context in contexts
    ]


def _method(row: ResultRow, differing: set[str], setting_words: Sequence[str]) -> str:
    if row["cell"]:
        label, point = _cell_words(row["cell"][1])
        own = [words for words in point if words in _own_words(row) or words not in setting_words]
    else:
        label = row["method"]
        own = [f"{key.rpartition('.')[2]}={value}" for key, value in _own_values(row).items() if key in differing]
        own = [words.removeprefix("preset=") for words in own]
    return f"{label} ({', '.join(own)})" if own else label


def _setting_words(rows: Sequence[ResultRow]) -> list[str]:
    """Return the words that name the setting of these rows: those of the study that all of them share, else keys."""
    named = [
        [row["cell"][0], *(words for words in _cell_words(row["cell"][1])[1] if words not in _own_words(row))]
        for row in rows
        if row["cell"]
    ]
    if named:
        return [word for word in named[0] if word and all(word in words for words in named)]
    return [words for words in [key_words(_untuned(rows[0]))] if words]


def _told_apart(names: Mapping[int, str], members: Mapping[int, Sequence[ResultRow]]) -> dict[int, str]:
    """Add the keys that differ to each name that stands for several settings."""
    told: dict[int, str] = {}
    for number, name in names.items():
        namesakes = [setting_keys(members[other][0]) for other, other_name in names.items() if other_name == name]
        keys = {key for setting in namesakes for key in setting}
        varying = {key for key in keys if len({setting.get(key) for setting in namesakes}) > 1}
        differing = {key: value for key, value in setting_keys(members[number][0]).items() if key in varying}
        if len({key.rpartition(".")[2] for key in varying}) < len(varying):  # two keys have one last word
            words = ", ".join(f"{key}={value}" for key, value in differing.items())
        else:
            words = key_words(differing)
        told[number] = ", ".join(filter(None, (name, words)))
    return told


def _untuned(row: ResultRow) -> dict[str, str]:
    return {key: value for key, value in setting_keys(row).items() if key not in row["tuned"]}


def _cell_words(name: str) -> tuple[str, list[str]]:
    """Split the row's name in a study into its label and its listed values: "fedavg/alpha=0.1,lr=1"."""
    label, _, point = name.rpartition("/")
    if not label or "=" not in point:
        return name, []
    words: list[str] = []
    for piece in point.split(","):
        if "=" in piece:
            words.append(piece)
        else:
            words[-1] += f",{piece}"
    return label, words


def _own_values(row: ResultRow) -> dict[str, str]:
    return {"preset": row["preset"]} | {key: value for key, value in row["setting"].items() if _is_told(key, row)}


def _own_words(row: ResultRow) -> set[str]:
    return {f"{key.rpartition('.')[2]}={value}" for key, value in row["setting"].items() if _is_told(key, row)}


def _is_told(key: str, row: ResultRow) -> bool:
    """Whether a key is told in the method's name: an option of its own, or tuned, so that it is no setting."""
    return is_own(key, row) or key in row["tuned"]
