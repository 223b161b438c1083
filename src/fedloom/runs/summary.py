"""The summary of a finished run: the numbers that summary.json holds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.core.text import higher_is_better
from fedloom.engine import Federation, Worker
from fedloom.engine.choose import engine_name
from fedloom.engine.device import device_name
from fedloom.engine.flops import flops_of
from fedloom.evaluation import METRICS
from fedloom.evaluation.metrics import SHOWN
from fedloom.evaluation.metrics.calibration import DECISION
from fedloom.evaluation.protocols import Majority, majority
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.nets.user_model import error_line
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.export.modules import decision_at
from fedloom.runs.protocol_tests import ProtocolTests
from fedloom.runs.storage import log
from fedloom.runs.storage.data_record import peak_memory_mb
from fedloom.runs.storage.log import Row, accuracies, curve, of_protocol, total_over_rounds, value_at_selected_round
from fedloom.runs.storage.run_data import SECONDS


def summarise(
    config: RunConfig,
    federation: Federation,
    worker: Worker,
    rows: Sequence[Row],
    tests: ProtocolTests,
    zero_shot_note: str | None = None,
) -> dict[str, Any]:
    """Return the numbers of a run by its `config`, from the `rows` of all rounds: setting, scores of the main protocol
    of its `tests` and of each, costs (`worker` has timed the `federation`), the method's figures, attack, newcomers."""
    return {
        "method": config.method,
        "preset": config.preset,
        "model": config.model_name(),
        "source": federation.scenario.name,
        "seed": config.seed,
        "rounds": federation.round,
        "clients": federation.scenario.clients,
        "select": config.evaluation.select,
        **scores_of(config, federation, rows, tests),
        **_costs(federation, worker, rows),
        "figures": dict(federation.method.figures(federation.server, federation.server_context())),
        **newcomer_numbers(federation, rows, zero_shot_note),
        "engine": engine_name(federation.engine, config.engine),
        "engine_reason": federation.engine.reason,
        "device": device_name(worker.device),
    }


def scores_of(config: RunConfig, federation: Federation, rows: Sequence[Row], tests: ProtocolTests) -> dict[str, Any]:
    """Return the scores of a federation, from the `rows` of its `tests`, with those of each protocol in "protocols"."""
    by_protocol = {
        protocol: {
            **_scores(config, of_protocol(rows, protocol)),
            "metrics": _metrics(config, of_protocol(rows, protocol), tests.own_metrics(protocol))
            | _baselines(baseline),
            "details": tests.details.get(protocol, {}),
            **tests.intervals(protocol),
            **_attack(config, federation, of_protocol(rows, protocol)),
        }
        for protocol, baseline in tests.baselines().items()
    }
    chosen = decision_at(rows, config) if config.evaluation.decision else None
    decision = {"decision": chosen and chosen.model_dump()} if config.evaluation.decision else {}
    several = {"protocols": by_protocol, "not_offered": tests.not_offered} if config.evaluation.protocols else {}
    return {"protocol": tests.main, **by_protocol[tests.main], **several, **decision, **_directions(config)}


def degenerate(rows: Sequence[Row], diagnostics: Mapping[str, Diagnostic]) -> list[str]:
    """Return the messages of `diagnostics` (by code); of those before a resume only the codes."""
    codes = {r["name"].partition("/")[2] for r in rows if r["name"].startswith("degenerate/")}
    codes |= diagnostics.keys()
    return [diagnostics[c].message if c in diagnostics else c for c in sorted(codes)]


def _scores(config: RunConfig, rows: Sequence[Row]) -> dict[str, Any]:
    accuracy_by_selection = accuracies(rows, config.evaluation.last_k, config.evaluation.criterion())
    _, losses = curve(rows, "loss", "test")
    return {
        "accuracy": accuracy_by_selection[config.evaluation.select],
        **{f"{selection}_accuracy": accuracy for selection, accuracy in accuracy_by_selection.items()},
        # None says that the run diverged (`has_diverged`), because JSON has no NaN.
        "test_loss": losses[-1] if math.isfinite(losses[-1]) else None,
    }


def _metrics(config: RunConfig, rows: Sequence[Row], own_metrics: Sequence[str]) -> dict[str, Any]:
    """The shown, own and configured metrics at the selected round; None where not defined. Few-shot measures none."""
    evaluation = config.evaluation
    recorded = {row["name"] for row in rows}  # not all of them, where samples have several labels
    usual = [name for name in SHOWN if name in recorded]
    shown = (*usual, *own_metrics, *evaluation.metrics, *(DECISION if evaluation.decision else ()))
    names = () if evaluation.protocol == "few-shot" else dict.fromkeys(shown)
    rule = evaluation.select, evaluation.last_k, evaluation.criterion()
    values = {name: value_at_selected_round(rows, name, *rule) for name in names}
    return {name: value if value is not None and math.isfinite(value) else None for name, value in values.items()}


def _directions(config: RunConfig) -> dict[str, dict[str, bool]]:
    """Return whether higher is better for each metric from a plug-in, which readers of the folder may not have."""
    names = dict.fromkeys((*config.evaluation.metrics, config.evaluation.select_by))
    directions = {name: METRICS.get(name).higher_is_better for name in names if higher_is_better(name) is None}
    others = {name: higher for name, higher in directions.items() if higher is not None}
    return {"higher_is_better": others} if others else {}


def _baselines(baseline: Majority | None) -> dict[str, float]:
    """Return the accuracy of always predicting the most frequent class: of all training data, and of each client's."""
    values = {} if baseline is None else {"majority_global": baseline.everywhere, "majority_own": baseline.own}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _attack(config: RunConfig, federation: Federation, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the attack and its effect, empty without one. success: None if one run cannot show it."""
    scenario, evaluation = federation.scenario, config.evaluation
    if scenario.attack is None or not scenario.bad:
        return {}
    rule, attack = (evaluation.select, evaluation.last_k, evaluation.criterion()), scenario.attack
    measured = {
        "success": value_at_selected_round(rows, "attack_success", *rule),
        "honest_accuracy": value_at_selected_round(rows, "accuracy_honest", *rule),
    }
    return {"attack": {"name": attack.kind, **attack.model_dump(), "clients": list(scenario.bad), **measured}}


def newcomer_numbers(federation: Federation, rows: Sequence[Row], zero_shot_note: str | None) -> dict[str, Any]:
    """Return the measures (`rows`) on clients of a federation that never trained, and who was not tested."""
    scenario, by_service, tested = federation.scenario, dict[str, dict[str, float]](), set[int]()
    for row in rows:
        if row["split"] == log.NEWCOMERS and row["client"] is not None:
            tested.add(row["client"])
        elif row["split"] == log.NEWCOMERS and row["protocol"] is not None:
            by_service.setdefault(row["protocol"], {})[row["name"]] = row["value"]
    if not scenario.newcomer_ids:
        return {}
    missing = [client for client in scenario.newcomer_ids if client not in tested]
    newcomers: dict[str, Any] = {"clients": list(scenario.newcomer_ids), "zero_shot_note": zero_shot_note}
    newcomers["tests"] = by_service
    baseline = None if scenario.newcomers is None else majority(scenario.newcomers, "local")
    if baseline is not None and not math.isnan(baseline.own):
        newcomers["majority_own"] = baseline.own
    return {"newcomers": newcomers | ({"not_tested": missing} if missing else {})}


def _costs(federation: Federation, worker: Worker, rows: Sequence[Row]) -> dict[str, Any]:
    seconds = {name: round(total_over_rounds(rows, f"seconds_{name}"), 3) for name in SECONDS}
    # The total of a round is logged before its checkpoint, whose time is therefore added here.
    seconds["total"] = round(seconds["total"] + seconds["checkpoint"], 3)
    samples, late = (total_over_rounds(rows, name) for name in ("samples", "late"))
    virtual = {"virtual_seconds": total_over_rounds(rows, "virtual_seconds"), "late": int(late)}
    return {
        **{name: int(total_over_rounds(rows, name)) for name in ("bytes_up", "bytes_down", "samples")},
        **_flops(federation, worker, rows),
        "samples_per_second": round(samples / max(seconds["train"], 1e-9), 1),
        "seconds": seconds,
        **(virtual if federation.clock else {}),
        "peak_memory_mb": peak_memory_mb(),
    }


def _flops(federation: Federation, worker: Worker, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the operations of the run, or why they were not counted: a finished run must not fail over a count."""
    held, closing, opening = (_by_group(rows, f"samples_{name}/") for name in ("held", "closing", "opening"))
    adapted = total_over_rounds(rows, "samples_adapted")
    try:
        return {"flops": flops_of(federation, worker, held, closing, opening, adapted)}
    except Exception as error:
        return {"flops": None, "flops_note": f"operations are not counted: {error_line(error)}"}


def _by_group(rows: Sequence[Row], prefix: str) -> dict[int, float]:
    """Training samples of all participants of all rounds, by group of architectures."""
    names = dict.fromkeys(row["name"] for row in rows if row["name"].startswith(prefix))
    return {int(name.removeprefix(prefix)): total_over_rounds(rows, name) for name in names}
