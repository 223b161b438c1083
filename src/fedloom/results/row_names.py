"""Split what tells rows of a table apart into the name of a method and that of a setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedloom.results.table import ResultRow


@dataclass(frozen=True, slots=True)
class RowName:
    """The names of a row: its method, as its study names it, and its setting; empty for the only one."""

    method: str
    setting: str


def row_names(rows: Sequence[ResultRow]) -> list[RowName]:
    """Return the names of each row. Rows of one method in several settings have one method name.

    A study's own names are taken where there are any. Otherwise options of a method and of the optimiser belong to the
    method's name where a setting has several of them, and all other keys to the setting's.

    Example:
        >>> row_names([])
        []
    """
    settings = [_setting(row) for row in rows]
    kinds = [
        (row["method"], setting, row["protocol"], row["select"]) for row, setting in zip(rows, settings, strict=True)
    ]
    differing: dict[str, set[str]] = {}
    for row, kind in zip(rows, kinds, strict=True):
        siblings = [sibling for sibling, other_kind in zip(rows, kinds, strict=True) if other_kind == kind]
        for key, value in _own_values(row).items():
            if any(_own_values(sibling).get(key) != value for sibling in siblings):
                differing.setdefault(row["method"], set()).add(key)
    return [
        RowName(_method(row, differing.get(row["method"], set())), setting)
        for row, setting in zip(rows, settings, strict=True)
    ]


def panel_titles(rows: Sequence[ResultRow], names: Sequence[RowName]) -> list[str]:
    """Return for each row the words that tell apart settings, protocols and selections; rows with equal words compare.

    Empty words mean that all rows compare.
    """
    contexts = [
        (name.setting, row["protocol"], f"select {row['select']}") for row, name in zip(rows, names, strict=True)
    ]
    varying = [len(set(column)) > 1 for column in zip(*contexts, strict=True)]
    return [
        " · ".join(word for word, varies in zip(context, varying, strict=True) if varies and word)
        for context in contexts
    ]


def _method(row: ResultRow, differing: set[str]) -> str:
    if row["cell"]:
        label, point = _cell_words(row["cell"][1])
        own = [words for words in point if words in _own_words(row)]
    else:
        label = row["method"]
        own = [f"{key.rpartition('.')[2]}={value}" for key, value in _own_values(row).items() if key in differing]
        own = [words.removeprefix("preset=") for words in own]
    return f"{label} ({', '.join(own)})" if own else label


def _setting(row: ResultRow) -> str:
    if row["cell"]:
        setting, name = row["cell"]
        point = [words for words in _cell_words(name)[1] if words not in _own_words(row)]
        return ", ".join(filter(None, (setting, *point)))
    shared = {key: value for key, value in row["setting"].items() if not _is_own(key, row)}
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in shared.items())


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
    return {"preset": row["preset"]} | {key: value for key, value in row["setting"].items() if _is_own(key, row)}


def _own_words(row: ResultRow) -> set[str]:
    return {f"{key.rpartition('.')[2]}={value}" for key, value in row["setting"].items() if _is_own(key, row)}


def _is_own(key: str, row: ResultRow) -> bool:
    """Whether a key is an option of the row's method or optimiser, or was tuned, so that it is no setting."""
    return key.startswith((f"{row['method']}.", "optimizer.")) or key in row["tuned"]
