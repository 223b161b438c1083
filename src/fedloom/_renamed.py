"""Names of the documented Python API that have changed. An old name fails with an error that says the new one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

# By module or class: {old name: new name}.
RENAMED: Mapping[str, Mapping[str, str]] = {
    "fedloom.core.errors": {"nearest": "suggest_name", "shown": "short_repr"},
    "fedloom.core.errors.UnknownKeyError": {"saying": "message_with"},
    "fedloom.data.Dataset": {"first": "head", "only": "take"},
    "fedloom.data.Views": {
        "by_owner": "from_owners",
        "even": "split_evenly",
        "mapped": "renumber",
        "of": "from_lists",
    },
    "fedloom.data.attacks.Attack": {
        "aims": "target_classes",
        "among": "add_to",
        "fewest": "min_bad",
        "idle": "why_idle",
        "poisoned": "poison",
    },
    "fedloom.data.attacks.UploadAttack": {"forged": "forge_upload", "lie": "forge_change"},
    "fedloom.data.attacks.upload_attacks.AttackRound": {"left": "unchanged"},
    "fedloom.data.sources.cached.CachedSource": {"keys": "cache_keys", "only_at_load": "uncached_keys"},
    "fedloom.data.sources.cached.ImageSource": {"scaled": "normalised"},
    "fedloom.engine.client": {"Done": "JobResult"},
    "fedloom.engine.client.Worker": {
        "adapted": "adapt",
        "batches": "sampler.batches_per_epoch",
        "begun": "begin",
        "draws": "sampler.generators",
        "ended": "end",
        "epoch": "sampler.batches",
        "gathered": "sampler.gather",
        "live_of": "net_of_client",
        "local": "local_training",
        "order": "sampler.epoch_order",
        "twin": "copy",
    },
    "fedloom.engine.round_report.RoundReport": {
        "closing": "closing_samples_by_group",
        "findings": "diagnostics",
        "held": "samples_by_group",
    },
    "fedloom.engine.serial.Serial": {"loses": "may_drop_clients"},
    "fedloom.engine.states": {"States": "ClientStates"},
    "fedloom.evaluation": {"Tested": "MetricStates"},
    "fedloom.evaluation.fewshot.FewShotScores": {"clients": "client_values"},
    "fedloom.evaluation.protocols.Evaluator": {
        "away": "tests_on_clients",
        "joined": "scores",
        "of_client": "states",
        "of_clients": "scores",
        "of_server": "states",
    },
    "fedloom.export.trained.Trained": {"card": "metadata", "own": "user_model"},
    "fedloom.methods": {"About": "Citation", "Finding": "Diagnostic", "Frozen": "FunctionalNet"},
    "fedloom.methods.Method": {"about": "citation", "degeneracies": "diagnostics"},
    "fedloom.methods.Sent": {"each": "per_client", "change": "form='change'"},
    "fedloom.nets.Net": {"frozen": "functional", "plain": "original_module", "within": "kernel_context"},
    "fedloom.papers.compared_values.ComparedValue": {
        "missed": "missed_seeds",
        "ranked": "rank_value",
        "run": "was_run",
    },
    "fedloom.papers.cost": {"cost": "run_cost"},
    "fedloom.papers.recipe": {"find": "find_recipe"},
    "fedloom.papers.recipe.Recipe": {
        "beyond": "changing",
        "open": "choices",
        "over": "baseline_of",
        "says": "scale_text",
        "undrawn": "not_drawn",
    },
    "fedloom.papers.recipe.Table": {
        "beside": "predictor_rows",
        "facts": "why_not_run",
        "further": "client_panels",
        "only": "own_rows",
        "open": "choices",
        "over": "row_overrides",
        "says": "reduction",
    },
    "fedloom.papers.verdicts": {
        "judged": "judge_value",
        "order": "fedloom.papers.orders.rank_agreement",
        "order_judged": "fedloom.papers.orders.judge_order",
        "rank_agreement": "fedloom.papers.orders.rank_agreement",
        "judge_order": "fedloom.papers.orders.judge_order",
        "NEAR": "MARGIN",
    },
    "fedloom.results.paired.Paired": {
        "one": "label",
        "other": "reference",
        "difference": "outcome.mean",
        "low": "outcome.low",
        "high": "outcome.high",
        "seen": "outcome.word",
    },
    "fedloom.studies.outcome.Outcome": {"left": "remaining"},
    "fedloom.studies.plan": {"Study": "StudyPlan"},
    "fedloom.studies.study_folder.StudyFolder": {"held": "is_locked", "taken": "cell_lock"},
}


def missing_attribute(owner: str, name: str) -> AttributeError:
    """The error for the unknown attribute `name` of `owner`, which names the attribute's new name if it was renamed."""
    renamed = RENAMED.get(owner, {}).get(name)
    hint = f"; it is now called {renamed!r}" if renamed else ""
    return AttributeError(f"{owner!r} has no attribute {name!r}{hint}")


class _OldName:
    """Stands for an old name in a class; reading it raises the error that has the new name."""

    def __init__(self, owner: str, name: str) -> None:
        self.owner, self._name = owner, name

    def __get__(self, instance: object, kind: type | None = None) -> Any:
        raise missing_attribute(self.owner, self._name)


def tell_new_names(owner: str) -> Callable[[C], C]:
    """Return a class decorator: reading an old name of an object, or of the class, says the new name."""

    def decorate(kind: C) -> C:
        for name in RENAMED[owner]:
            setattr(kind, name, _OldName(owner, name))
        lookup = getattr(kind, "__getattr__", None)
        if lookup is None:
            return kind

        # That of a model or a module is asked after the names above, and would raise an error of its own.
        def __getattr__(self: Any, name: str) -> Any:
            try:
                return lookup(self, name)
            except AttributeError:
                if name not in RENAMED[owner]:
                    raise
            raise missing_attribute(owner, name)

        setattr(kind, "__getattr__", __getattr__)  # noqa: B010 (a type checker shall know that other names do not exist)
        return kind

    return decorate


def refuse_old_hooks(kind: type) -> None:
    """Raise `TypeError` if a class overrides a hook by the old name that a base has told: nobody would call it."""
    for name in vars(kind):
        for base in kind.__mro__[1:]:
            old = vars(base).get(name)
            if isinstance(old, _OldName):
                raise TypeError(f"{kind.__name__}: {missing_attribute(old.owner, name)}")


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
