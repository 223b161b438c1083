"""The keys by which finished runs may be arranged in a pivot. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.results.group import Group
from fedloom.results.row_names import row_names
from fedloom.results.table import settings_of

NAMED = ("method", "setting", "preset", "protocol", "select")
_SEED = ("seed", "seeds")


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return the last word of each key, "alpha" of "scenario.alpha"; the whole key where another one ends alike.

    Args:
        keys: whole names of keys, such as "scenario.alpha".

    Example:
        >>> short_keys(["scenario.alpha", "fedprox.mu", "moon.mu"])
        {'scenario.alpha': 'alpha', 'fedprox.mu': 'fedprox.mu', 'moon.mu': 'moon.mu'}
    """
    last = {key: key.rpartition(".")[2] for key in keys}
    return {key: key if list(last.values()).count(word) > 1 else word for key, word in last.items()}


class PivotKeys:
    """The values of all keys by which groups may be arranged."""

    def __init__(self, groups: Sequence[Group]) -> None:
        names = row_names([group.row for group in groups])
        self.methods = [name.method for name in names]
        self.values: list[dict[str, str]] = []
        for group, name in zip(groups, names, strict=True):
            row = group.row
            named = {"method": name.method, "setting": name.setting or "–", "preset": row["preset"]}
            named |= {"protocol": row["protocol"], "select": row["select"]}
            self.values.append({**settings_of(group.results[0]), **named})
        self._own = [f"{group.row['method']}." for group in groups]
        self._tuned = [set(group.row["tuned"]) for group in groups]

    def find(self, name: str) -> str:
        """Return the whole name of a key. Raises `ConfigError` for an unknown or ambiguous one."""
        if name in _SEED:
            raise ConfigError("seed: each cell is a mean over seeds; n in --cells says over how many")
        every = dict.fromkeys(key for values in self.values for key in values)
        if name in every:
            return name
        whole = [key for key in every if key.rpartition(".")[2] == name]
        if len(whole) > 1:
            whole = [key for key in whole if len(self._values_of(key)) > 1] or whole
        if len(whole) > 1:
            raise ConfigError(f"{short_repr(name)}: say which key is meant: {', '.join(whole)}")
        if whole:
            return whole[0]
        varying = {key for key in every if len(self._values_of(key)) > 1}
        known = {*NAMED, *varying, *(key.rpartition(".")[2] for key in varying)}
        raise ConfigError(f"{short_repr(name)}: no run has this key; {suggest_name(name, known)}")

    def arranged(
        self, rows: Sequence[str], columns: Sequence[str]
    ) -> dict[tuple[tuple[str, ...], tuple[str, ...]], int]:
        """Return the group of each pair of row and column. Raises `ConfigError` for two groups in one cell."""
        at: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
        for index, values in enumerate(self.values):
            pair = tuple(values.get(key, "–") for key in rows), tuple(values.get(key, "–") for key in columns)
            first = at.setdefault(pair, index)
            if first != index:
                named = short_keys((*rows, *columns))
                where = ", ".join(f"{name} {values.get(key, '–')}" for key, name in named.items())
                key = self._varying(first, index)
                both = f"{self.values[first].get(key, '–')} and {values.get(key, '–')}"
                raise ConfigError(
                    f"two values in a cell ({where}): {key} still varies ({both}); add it to --rows or --columns, or "
                    "name fewer folders"
                )
        return at

    def places(self, rows: Sequence[str], columns: Sequence[str]) -> list[tuple[str, ...]]:
        """Return for each group the part of a pivot where its methods stand: its values but those that name methods.

        Args:
            rows: whole names of the keys of the rows.
            columns: whole names of the keys of the columns.
        """
        named = [
            [key for key in (*rows, *columns) if key not in ("method", "preset") and not key.startswith(own)]
            for own in self._own
        ]
        return [tuple(values.get(key, "–") for key in keys) for values, keys in zip(self.values, named, strict=True)]

    def _varying(self, first: int, second: int) -> str:
        """Return the key that best says how two groups differ: no option of a method, if another key differs."""
        ours, theirs = self.values[first], self.values[second]
        apart = ("optimizer.", self._own[first], self._own[second])
        keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
        named = [key for key in ("method", "protocol", "select", "preset") if key in keys]
        tuned = self._tuned[first] | self._tuned[second]
        plain = [key for key in keys if key not in NAMED and not key.startswith((*apart, "evaluation."))]
        return next(iter([*named, *(key for key in plain if key not in tuned), *keys]), "setting")

    def _values_of(self, key: str) -> set[str | None]:
        return {values.get(key) for values in self.values}
