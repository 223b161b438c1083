"""What leaves a client, for every method: made from what methods declare (`Spec.sends`), never written by hand."""

from __future__ import annotations

from dataclasses import dataclass

from fedloom.methods import METHODS

# What the facts of a node's letters tell beside the method's own upload, by the key of the letter (`wire.py`).
REPORTED_FACTS = {
    "when it joins": {
        "token": "a random word by which its disk is known",
        "samples": "how many training samples it has",
        "classes": "the class names that it knows",
        "moments": "once, of each measured column where no scale is agreed on: mean and squared distances from it",
    },
    "with an upload": {
        "steps": "optimiser steps",
        "samples": "samples that it went through",
        "seconds": "how long it took",
        "terms": "the mean of each term of its loss",
        "norms": "how strongly each term pulls, in a few rounds",
        "notes": "what its engine reports",
        "kept": "whether it keeps a private state",
    },
    "with a test": {
        "results": "correct predictions, summed loss, and number of its test samples",
        "samples": "samples that it adapted a model to",
    },
}

INDIRECTLY = "indirectly: the last layer"
BODY = "perhaps: the body's weights"
_WITH_HEAD = {"P", "W", "H", "Q", "X"}  # symbols of traffic that hold a classifier's weights


@dataclass(frozen=True, slots=True)
class Privacy:
    """Where the uploads of one method can reveal data of a client.

    sends: names of the upload entries. labels: those that tell a client's label mix directly. head: trained weights
    with a classifier head are among them, and their changes follow the class counts. per_client: entries that the
    server reads client by client, so that no secure sum can replace them.
    """

    method: str
    sends: tuple[str, ...]
    labels: tuple[str, ...]
    head: bool
    per_client: tuple[str, ...]

    @property
    def tells(self) -> str:
        """How what leaves a client tells of its labels, in words."""
        ways = [f"directly: {', '.join(self.labels)}"] if self.labels else []
        ways += [INDIRECTLY] if self.head else []
        return "; ".join(ways) or (BODY if self.sends else "nothing is sent")

    @property
    def secure_sums(self) -> bool:
        """Whether the server needs sums alone."""
        return not self.per_client and bool(self.sends)


def privacy_of(method: str) -> Privacy:
    """What leaves a client of `method` with its default options. Raises `ConfigError` for an unknown method."""
    kind = METHODS.get(method)
    sends = kind.configured("sound", {}).spec.sends
    return Privacy(
        method,
        tuple(sends),
        tuple(name for name, sent in sends.items() if sent.labels),
        bool(sends) if kind.citation is None else bool(kind.citation.up.keys() & _WITH_HEAD),
        tuple(name for name, sent in sends.items() if sent.per_client),
    )


def reported_facts_table() -> str:
    """The table of what nodes tell beside uploads in Markdown, for the same page."""
    rows = ["| a node tells | key | what it is |", "|" + "---|" * 3]
    rows += [f"| {when} | {key} | {what} |" for when, facts in REPORTED_FACTS.items() for key, what in facts.items()]
    return "\n".join(rows) + "\n"


def table() -> str:
    """The table of all methods in Markdown: what the page on deployment shows."""
    rows = ["| method | leaves a client | tells of its labels | a secure sum would do |", "|" + "---|" * 4]
    for name in METHODS.names():
        found = privacy_of(name)
        refused = f"no: {', '.join(found.per_client)}" if found.per_client else "nothing is sent"
        sums = "yes" if found.secure_sums else refused
        cells = [name, ", ".join(found.sends) or "nothing", found.tells, sums]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"
