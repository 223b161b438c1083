"""Label the rows of a table by the names that a study gives them, as far as these tell them apart. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedloom.results.comparability import OWN_COLUMNS, key_words, own_prefixes, setting_keys
from fedloom.results.group import Group
from fedloom.runs.storage.finished_runs import tuned_keys
from fedloom.runs.storage.run_data import RunData


def settings_agree(results: Sequence[RunData], keys: Sequence[Iterable[tuple[str, str]]]) -> bool:
    """Whether the settings that runs are said to be in are those of one study, or mean the same keys in all studies.

    Args:
        results: finished runs.
        keys: of each run, all of its config but the seed, as flat pairs.
    """
    studies = {result.folder.parent for result in results if result.folder and result.cell}
    if len(studies) < 2:
        return True
    tuned = {
        study: tuned_keys([result for result in results if result.folder and result.folder.parent == study][:1])
        for study in studies
    }
    named = set()
    for result, pairs in zip(results, keys, strict=True):
        if result.folder and result.cell:
            own, free = own_prefixes(result.numbers["method"]), OWN_COLUMNS | tuned[result.folder.parent]
            setting = frozenset((key, value) for key, value in pairs if key not in free and not key.startswith(own))
            named.add((result.cell[0], setting))
    return len({name for name, _ in named}) == len({setting for _, setting in named}) == len(named)


def without_settings(results: Sequence[RunData]) -> list[RunData]:
    """Return runs without the names of their settings, each once for each row that still differs.

    Args:
        results: finished runs, in one protocol each.
    """
    distinct: dict[object, RunData] = {}
    for number, result in enumerate(results):
        cell = result.cell and ("", result.cell[1])
        place = number if result.folder is None else (result.folder, result.numbers["protocol"], cell)
        distinct.setdefault(place, replace(result, cell=cell))
    return list(distinct.values())


def name_by_study(groups: Sequence[Group], told: bool) -> None:
    """Give groups the labels of their study instead of those made of keys.

    Rows whose labels would be equal keep those made of keys, and lose their names.

    Args:
        groups: groups of runs, whose cells are those of their runs; their rows are changed.
        told: whether labels tell the keys of the setting, because its name does not.
    """
    cells = [group.row["cell"] for group in groups]
    several = len({cell and cell[0] for cell in cells}) > 1  # whether there are several settings
    names = [_name(group, several, told) for group in groups]
    labels = [
        f"{name} ({group.row['protocol']})" if name and names.count(name) > 1 else name
        for group, name in zip(groups, names, strict=True)
    ]
    for group, label in zip(groups, labels, strict=True):
        if label and labels.count(label) == 1:
            group.row["label"] = label
        else:
            group.row["cell"] = None


def _name(group: Group, several: bool, told: bool) -> str:
    """Return the name of a group in its study, without its protocol; empty if there is none.

    several: whether there are several settings. told: whether the keys of the setting are told, as its name is not.
    """
    if group.row["cell"] is None:
        return ""
    name = "/".join(filter(None, group.row["cell"] if several else group.row["cell"][1:]))
    words = key_words(setting_keys(group.row)) if told else ""
    return f"{name} ({words})" if words else name
