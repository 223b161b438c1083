"""Names that fit into the room of a figure. Needs no matplotlib."""

from __future__ import annotations

from collections.abc import Sequence


def shortened(name: str, letters: float) -> str:
    """Return as much of a name as fits into so many letters.

    Args:
        name: the name.
        letters: how many it may have; at least two are used.

    Example:
        >>> shortened("fedprox (mu=0.01)", 10)
        'fedprox (…'
    """
    room = max(int(letters), 2)
    return name if len(name) <= room else f"{name[: room - 1]}…"


def shortened_names(names: Sequence[str], letters: float) -> list[str]:
    """Return names shortened so that different ones stay different.

    They are cut at their ends, or in the middle where that would make two of them alike, as names often differ at their
    ends alone. Where the middle would, too, all have up to twice the letters, or their numbers if that does not help.

    Args:
        names: the names.
        letters: how many each may have.

    Example:
        >>> shortened_names(["fedprox (mu=0.1)", "fedprox (mu=1.0)", "fedavg"], 10)
        ['fedpr…0.1)', 'fedpr…1.0)', 'fedavg']
    """
    room = max(int(letters), 3)
    numbers = {name: f"… {k}" for k, name in enumerate(dict.fromkeys(names), start=1)}
    ways = [
        [shortened(name, room) for name in names],
        *([_without_middle(name, wider) for name in names] for wider in range(room, 2 * room + 1)),
    ]
    numbered = [f"{name[: max(room - len(numbers[name]), 1)]}{numbers[name]}" for name in names]
    return next((cut for cut in ways if len(set(cut)) == len(set(names))), numbered)


def _without_middle(name: str, letters: int) -> str:
    return (
        name if len(name) <= letters else f"{name[: letters // 2]}…{name[len(name) - (letters - 1 - letters // 2) :]}"
    )
