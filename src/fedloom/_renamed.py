"""Names of the documented Python API that have changed. An old name fails with an error that says the new one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

# By module or class: {old name: new name}.
RENAMED: Mapping[str, Mapping[str, str]] = {
    "fedloom.export.trained.Trained": {"card": "metadata", "own": "user_model"},
    "fedloom.methods": {"About": "Citation", "Finding": "Diagnostic", "Frozen": "FunctionalNet"},
    "fedloom.nets.Net": {"frozen": "functional"},
    "fedloom.methods.Sent": {"each": "per_client", "change": "form='change'"},
    "fedloom.methods.Method": {"about": "citation", "degeneracies": "diagnostics"},
    "fedloom.papers.cost": {"cost": "run_cost"},
    "fedloom.papers.recipe": {"find": "find_recipe"},
    "fedloom.studies.plan": {"Study": "StudyPlan"},
    "fedloom.results.paired.Paired": {
        "one": "label",
        "other": "reference",
        "difference": "outcome.mean",
        "low": "outcome.low",
        "high": "outcome.high",
        "seen": "outcome.word",
    },
    "fedloom.papers.verdicts": {
        "judged": "judge_value",
        "order": "fedloom.papers.orders.rank_agreement",
        "order_judged": "fedloom.papers.orders.judge_order",
        "rank_agreement": "fedloom.papers.orders.rank_agreement",
        "judge_order": "fedloom.papers.orders.judge_order",
        "NEAR": "MARGIN",
    },
}


def missing_attribute(owner: str, name: str) -> AttributeError:
    """The error for the unknown attribute `name` of `owner`, which names the attribute's new name if it was renamed."""
    renamed = RENAMED.get(owner, {}).get(name)
    hint = f"; it is now called {renamed!r}" if renamed else ""
    return AttributeError(f"{owner!r} has no attribute {name!r}{hint}")


def refuse_old_arguments(owner: str, kind: C) -> C:
    """Let the constructor of `kind` name the new name of an argument that was renamed. Returns `kind`."""
    init: Any = vars(kind)["__init__"]

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs.keys() & RENAMED[owner].keys():
            new_name = RENAMED[owner][name]
            raise TypeError(f"{kind.__name__} has no argument {name!r}; it is now called {new_name!r}")
        init(self, *args, **kwargs)

    setattr(kind, "__init__", checked)  # noqa: B010 (a type checker does not allow the assignment)
    return kind
