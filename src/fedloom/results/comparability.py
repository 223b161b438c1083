"""The one rule that says which rows of a table are compared. Needs no torch.

Two rows compare if they were tested in one protocol, at a round selected by one rule, and in one setting: all config
keys are equal, also absent ones. Apart are the seed, the options of the optimiser and of the method itself, and keys
that were tuned for both. Settings that a study names differently stay apart.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from fedloom.core.text import listed
from fedloom.results.group import ResultRow

OWN_COLUMNS = frozenset({"method", "preset", "evaluation.protocol", "evaluation.select"})
"""Config keys that a row has in columns of their own, and not among the keys of its setting."""

_TUNED = "tuned"


def own_prefixes(method: str) -> tuple[str, str]:
    """Return how the keys begin that are options of a method or of the optimiser, and may differ between rows.

    Args:
        method: the name of the method.
    """
    return f"{method}.", "optimizer."


def is_own(key: str, row: ResultRow) -> bool:
    """Whether a key is an option of the row's method or of the optimiser, which may differ between rows that compare.

    Args:
        key: a config key, such as "optimizer.lr".
        row: the row that has it.
    """
    return key.startswith(own_prefixes(row["method"]))


def setting_keys(row: ResultRow) -> dict[str, str]:
    """Return the keys of the row's setting, of those in which the rows of its table differ; a tuned one is "tuned".

    Args:
        row: a row of a table.
    """
    return {
        key: _TUNED if key in row["tuned"] else value for key, value in row["setting"].items() if not is_own(key, row)
    }


def key_words(keys: Mapping[str, str]) -> str:
    """Return keys by their last word with their values: "alpha=0.1, rounds=3".

    Args:
        keys: values by key.
    """
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in keys.items())


def same_setting(row: ResultRow, other: ResultRow) -> bool:
    """Whether two rows are of one setting.

    Args:
        row: a row of a table.
        other: another row of it.
    """
    names = {cell[0] for cell in (row["cell"], other["cell"]) if cell is not None}
    return len(names) < 2 and setting_keys(row) == setting_keys(other)


def comparable(row: ResultRow, other: ResultRow) -> bool:
    """Whether the accuracies of two rows may be compared.

    Args:
        row: a row of a table.
        other: another row of it.
    """
    return (row["protocol"], row["select"]) == (other["protocol"], other["select"]) and same_setting(row, other)


def setting_numbers(rows: Sequence[ResultRow]) -> list[int]:
    """Return the number of each row's setting, from 0 in the order of first appearance.

    Args:
        rows: the rows of a table.
    """
    return _numbers(rows, same_setting)


def context_numbers(rows: Sequence[ResultRow]) -> list[int]:
    """Return a number for each row; those with equal numbers compare.

    Args:
        rows: the rows of a table.
    """
    return _numbers(rows, comparable)


def _numbers(rows: Sequence[ResultRow], alike: Callable[[ResultRow, ResultRow], bool]) -> list[int]:
    firsts: list[ResultRow] = []
    numbers = []
    for row in rows:
        number = next((number for number, first in enumerate(firsts) if alike(row, first)), len(firsts))
        if number == len(firsts):
            firsts.append(row)
        numbers.append(number)
    return numbers


def different_keys(row: ResultRow, other: ResultRow) -> str:
    """Return the keys in which two rows differ, with their values, but the methods' own and those tuned for both.

    Empty if there are none.

    Args:
        row: a row of a table.
        other: another row of it.
    """
    tuned = set(row["tuned"]) & set(other["tuned"])
    apart = (f"{row['method']}.", f"{other['method']}.")
    ours, theirs = (
        {key: value for key, value in keys.items() if key not in tuned and not key.startswith(apart)}
        for keys in (row["setting"], other["setting"])
    )
    return _differences(ours, theirs)


def different_settings(row: ResultRow, other: ResultRow) -> str:
    """Return the keys in which the settings of two rows differ, with their values; empty if they do not.

    Args:
        row: a row of a table.
        other: another row of it.
    """
    return _differences(setting_keys(row), setting_keys(other))


def _differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    return listed(f"{key} ({ours.get(key, 'none')} against {theirs.get(key, 'none')})" for key in keys)


def run_identity(row: ResultRow) -> Hashable:
    """Return what is equal for two rows exactly if they show the same runs under two names.

    Args:
        row: a row of a table.
    """
    setting = tuple(sorted(row["setting"].items()))
    return row["method"], row["preset"], row["protocol"], row["select"], setting, tuple(row["seeds"])


def same_runs(row: ResultRow, other: ResultRow) -> bool:
    """Whether two rows show the same runs under two names.

    Args:
        row: a row of a table.
        other: another row of it.
    """
    return run_identity(row) == run_identity(other)


def same_runs_notes(rows: Sequence[ResultRow]) -> list[str]:
    """Return a sentence that names the rows of the same runs; none without such rows.

    Args:
        rows: the rows of a table.
    """
    labels_by_run: dict[Hashable, list[str]] = {}
    for row in rows:
        labels_by_run.setdefault(run_identity(row), []).append(row["label"])
    repeated = [listed(labels) for labels in labels_by_run.values() if len(labels) > 1]
    why = "The same runs, because their configs are equal; a comparison counts them once"
    return [f"{why}: {'; '.join(repeated)}"] if repeated else []
