"""The two tables of the page on privacy, made from the code when the site is built."""

from __future__ import annotations

from fedloom.flower.privacy import REPORTED_FACTS, privacy_of
from fedloom.methods import METHODS


def reported_facts_table() -> str:
    """Return a Markdown table of the facts that every node reports, whatever its method."""
    rows = ["| a node tells | key | meaning |", "|---|---|---|"]
    rows += [
        f"| {when} | {key} | {meaning} |" for when, facts in REPORTED_FACTS.items() for key, meaning in facts.items()
    ]
    return "\n".join(rows)


def methods_table() -> str:
    """Return a Markdown table of all methods whose clients keep their data."""
    rows = ["| method | leaves a client | tells of its labels | a secure sum would do |", "|---|---|---|---|"]
    for name, kind in METHODS:
        if kind.spec.pooled:
            continue
        privacy = privacy_of(name)
        per_client = f"no: {', '.join(privacy.per_client)}" if privacy.per_client else "nothing is sent"
        secure_sum = "yes" if privacy.secure_sums else per_client
        cells = (name, ", ".join(privacy.sends) or "nothing", privacy.label_disclosure, secure_sum)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
