"""Names of the documented Python API that have changed. An old name fails with an error that says the new one."""

from __future__ import annotations

from collections.abc import Mapping

# By module or class: {old name: new name}.
RENAMED: Mapping[str, Mapping[str, str]] = {
    "fedloom.export.trained.Trained": {"card": "metadata", "own": "user_model"},
    "fedloom.methods": {"About": "Citation", "Finding": "Diagnostic", "Frozen": "FunctionalNet"},
    "fedloom.methods.Method": {"about": "citation", "degeneracies": "diagnostics"},
    "fedloom.papers.cost": {"cost": "run_cost"},
    "fedloom.papers.recipe": {"find": "find_recipe"},
    "fedloom.results.paired.Paired": {
        "one": "label",
        "other": "reference",
        "difference": "outcome.mean",
        "low": "outcome.low",
        "high": "outcome.high",
        "seen": "outcome.word",
    },
    "fedloom.papers.verdicts": {"judged": "judge_value", "order": "rank_agreement", "order_judged": "judge_order"},
}


def missing_attribute(owner: str, name: str) -> AttributeError:
    """The error for the unknown attribute `name` of `owner`, which names the attribute's new name if it was renamed."""
    renamed = RENAMED.get(owner, {}).get(name)
    hint = f"; it is now called {renamed!r}" if renamed else ""
    return AttributeError(f"{owner!r} has no attribute {name!r}{hint}")
