"""Names that differ only in how they are written: "Yes" and "yes", "1" and "1.0", "F" and "f"."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

_SHORT = {"y": "yes", "n": "no", "t": "true"}
_LISTED = 3  # groups in a note


def folded(name: str) -> str:
    """Return a name without case, accents, full-width letters, repeated spaces, trailing dots; a number as its value.

    Example:
        >>> folded(" Ｙｅｓ. "), folded("1.0"), folded("Café  au lait")
        ('yes', '1', 'cafe au lait')
    """
    letters = unicodedata.normalize("NFKD", name.casefold().replace("\u2212", "-"))
    plain = " ".join("".join(letter for letter in letters if not unicodedata.combining(letter)).split()).rstrip(". ")
    try:
        return str(int(plain)) if plain.removeprefix("-").isdecimal() else f"{float(plain):.15g}"
    except ValueError:
        return _SHORT.get(plain, plain) or name


def near_twins(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return groups of different names that look like spellings of one name."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(folded(name), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def twin_of(name: str, names: Sequence[str]) -> str | None:
    """Return the one of `names` that looks like another spelling of `name`, or None."""
    spelling = folded(name)
    return next((candidate for candidate in names if folded(candidate) == spelling), None)


def twins_note(origin: str, role: str, counts: Mapping[str, int]) -> list[str]:
    """Return a note on similar names, or nothing.

    Args:
        origin: name of the set in messages.
        role: what the names are: "classes", ...
        counts: samples by name.
    """
    groups = near_twins(counts)
    if not groups:
        return []
    listed = "; ".join(" and ".join(f"'{name}' ({counts[name]:,})" for name in group) for group in groups[:_LISTED])
    more = f" and {len(groups) - _LISTED} more" if len(groups) > _LISTED else ""
    return [
        f"{origin}: {role} look alike and count as different: {listed}{more}; write them alike if they are the same"
    ]
