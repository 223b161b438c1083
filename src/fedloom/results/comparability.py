"""The one rule that says which rows of a table are compared, and the names of rows. Needs no torch.

Two rows compare if they were tested in one protocol, at a round selected by one rule, and in one setting: all config
keys are equal, also absent ones. Apart are the seed, the options of the optimiser and of the method itself, and keys
that were tuned for both. Settings that a study names differently stay apart."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from fedloom.core.text import listed, lists_by_key
from fedloom.results.group import ResultRow

OWN_COLUMNS = frozenset({"method", "preset", "evaluation.protocol", "evaluation.select"})
"""Config keys that are columns of the table and therefore no keys of a row's setting."""

_TUNED = "tuned"


def own_prefixes(method: str) -> tuple[str, str]:
    """Return how the keys begin that are options of a method or of the optimiser, and may differ between rows."""
    return f"{method}.", "optimizer."


def is_own(key: str, row: ResultRow) -> bool:
    """Whether a config key is an option of the row's method or of the optimiser, in which compared rows may differ."""
    return key.startswith(own_prefixes(row["method"]))


def setting_keys(row: ResultRow) -> dict[str, str]:
    """Return the keys of the row's setting, of those in which the rows of its table differ; a tuned one is "tuned"."""
    return {
        key: _TUNED if key in row["tuned"] else value for key, value in row["setting"].items() if not is_own(key, row)
    }


def key_words(keys: Mapping[str, str]) -> str:
    """Return keys by their last word with their values: "alpha=0.1, rounds=3"."""
    return ", ".join(_words(keys))


def telling(keys: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return those of `keys` that tell it apart from all `others`: the keys whose values differ and, only where these
    do not suffice, those that the others lack, as a partition that others do not have brings all its options."""
    differing = {key: value for key, value in keys.items() if any(other.get(key) != value for other in others)}
    valued = {key: value for key, value in differing.items() if any(other.get(key, value) != value for other in others)}
    suffices = all(any(other.get(key) != value for key, value in valued.items()) for other in others)
    return valued if valued and suffices else differing


def _words(keys: Mapping[str, str]) -> list[str]:
    return [f"{key.rpartition('.')[2]}={value}" for key, value in keys.items()]


def same_setting(row: ResultRow, other: ResultRow) -> bool:
    """Whether two rows are of one setting."""
    names = {cell[0] for cell in (row["cell"], other["cell"]) if cell is not None}
    return len(names) < 2 and setting_keys(row) == setting_keys(other)


def comparable(row: ResultRow, other: ResultRow) -> bool:
    """Whether the accuracies of two rows may be compared."""
    return (row["protocol"], row["select"]) == (other["protocol"], other["select"]) and same_setting(row, other)


def context_numbers(rows: Sequence[ResultRow]) -> list[int]:
    """Return a number for each row; those with equal numbers compare."""
    return _numbers(rows, comparable)


def _numbers(rows: Sequence[ResultRow], equivalent: Callable[[ResultRow, ResultRow], bool]) -> list[int]:
    """Number the classes of equivalent rows from 0 in the order of first appearance."""
    firsts: list[ResultRow] = []
    numbers = []
    for row in rows:
        number = next((number for number, first in enumerate(firsts) if equivalent(row, first)), len(firsts))
        if number == len(firsts):
            firsts.append(row)
        numbers.append(number)
    return numbers


def different_keys(row: ResultRow, other: ResultRow) -> str:
    """Return the keys in which two rows differ, with their values, but the methods' own and those tuned for both.

    Empty if there are none."""
    tuned = set(row["tuned"]) & set(other["tuned"])
    # Options of the optimiser stay, unlike in `is_own`: another learning rate may explain a difference.
    apart = (f"{row['method']}.", f"{other['method']}.")
    ours, theirs = (
        {key: value for key, value in keys.items() if key not in tuned and not key.startswith(apart)}
        for keys in (row["setting"], other["setting"])
    )
    keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    return listed(f"{key} ({ours.get(key, 'none')} against {theirs.get(key, 'none')})" for key in keys)


def run_identity(row: ResultRow) -> Hashable:
    """Return a key that two rows share exactly if they show the same runs under two names."""
    setting = tuple(sorted(row["setting"].items()))
    return row["method"], row["preset"], row["protocol"], row["select"], setting, tuple(row["seeds"])


def same_runs(row: ResultRow, other: ResultRow) -> bool:
    """Whether two rows show the same runs under two names."""
    return run_identity(row) == run_identity(other)


def same_runs_notes(rows: Sequence[ResultRow]) -> list[str]:
    """Return a sentence that names the rows of the same runs; none without such rows."""
    labels_by_run = lists_by_key((run_identity(row), row["label"]) for row in rows)
    repeated = [listed(labels) for labels in labels_by_run.values() if len(labels) > 1]
    why = "The same runs, because their configs are equal; a comparison counts them once"
    return [f"{why}: {'; '.join(repeated)}"] if repeated else []


@dataclass(frozen=True, slots=True)
class RowName:
    """The names of a row: its method, as its study names it, and its setting; empty for the only one."""

    method: str
    setting: str


def row_names(rows: Sequence[ResultRow]) -> list[RowName]:
    """Return the names of each row. Rows of one setting have one name of it, and rows of two settings have two.

    A study's names come first, with the keys that differ where one name stands for several settings. Otherwise options
    of method and optimiser go to the method's name where a setting has several, and other keys to the setting's."""
    numbers = _numbers(rows, same_setting)
    members = lists_by_key(zip(numbers, rows, strict=True))
    keys = {number: setting_keys(settled[0]) for number, settled in members.items()}
    words = {
        number: _setting_words(settled, [other for at, other in keys.items() if at != number])
        for number, settled in members.items()
    }
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
    """Return each row's words for what tells apart settings, protocols and selections; equal words compare."""
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
        own = _words({key: value for key, value in _own_values(row).items() if key in differing})
        own = [words.removeprefix("preset=") for words in own]
    return f"{label} ({', '.join(own)})" if own else label


def _setting_words(rows: Sequence[ResultRow], others: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the words that name the setting of these rows: those of the study that all of them share, else the keys
    that tell it apart from `others`."""
    named = [
        [row["cell"][0], *(words for words in _cell_words(row["cell"][1])[1] if words not in _own_words(row))]
        for row in rows
        if row["cell"]
    ]
    if named:
        return [word for word in named[0] if word and all(word in words for words in named)]
    keys = telling(setting_keys(rows[0]), others) if others else setting_keys(rows[0])
    words = key_words({key: value for key, value in keys.items() if key not in rows[0]["tuned"]})
    return [words] if words else []


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
            words[-1] += f",{piece}"  # a comma within a value, such as a list
    return label, words


def _own_values(row: ResultRow) -> dict[str, str]:
    """Return what the method's name tells: its preset, its own options, and tuned keys, which are no setting."""
    told = {key: value for key, value in row["setting"].items() if is_own(key, row) or key in row["tuned"]}
    return {"preset": row["preset"]} | told


def _own_words(row: ResultRow) -> set[str]:
    return {*_words(_own_values(row))} - {f"preset={row['preset']}"}
