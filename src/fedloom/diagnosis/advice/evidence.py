"""The measured evidence of advice: rules, rows of committed studies and traits of methods, as `rules.json` holds them.

The file is written by `python benchmarks/advice_rules.py`, and by hand never.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.diagnosis.advice.needs import Needs
from fedloom.diagnosis.diagnosis import Diagnosis

_FILE = Path(__file__).with_name("rules.json")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A setting of a committed study that resembles the user's data, and why.

    Attributes:
        setting: name, title, files and page of the setting, its baseline, and `rows`, one for each measured method. The
            points of a row are its mean difference from the baseline, None if a run of the method diverged; these rows
            come last, and before them the highest gain comes first.
        why: the figure of the user's data that led here, in words.
    """

    setting: Mapping[str, Any]
    why: str


@functools.cache
def rules() -> Mapping[str, Any]:
    """Return the content of the rules' file."""
    content: Mapping[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return content


def evidence_for(needs: Needs, diagnosis: Diagnosis) -> Evidence:
    """Return the evidence of the first rule that holds.

    Args:
        needs: resolved needs, whose goal and networks are known.
        diagnosis: the skew of the user's data.
    """
    for rule in rules()["rules"]:
        if rule["goal"] == needs.goal and (why := _why(rule, needs, diagnosis)) is not None:
            settings = rules()["settings"]
            named = (one for one in settings if (one["name"], one["goal"]) == (rule["setting"], needs.goal))
            return Evidence(next(named), why)
    raise AssertionError("the last rule of each goal always holds")


def _why(rule: Mapping[str, Any], needs: Needs, diagnosis: Diagnosis) -> str | None:
    """Return the figure that meets a rule's condition, in words; None if none does."""
    labels, features = diagnosis.labels, diagnosis.untrained
    if "nets" in rule:
        return "the clients' networks differ" if needs.nets == rule["nets"] else None
    if "tail_from" in rule:
        tail = labels.tail_ratio
        return f"a long tail: rho {tail:.1f}, from {rule['tail_from']:g}" if tail >= rule["tail_from"] else None
    if "features_from" in rule:
        distance = -1.0 if features is None else features.class_distance.value
        words = f"feature skew {distance:.2f}, from {rule['features_from']:g}"
        return words if distance >= rule["features_from"] else None
    skew, least = labels.distances["hellinger"].value, rule.get("label_skew_from")
    if least is None:
        return f"label skew {skew:.2f} (mean Hellinger distance), below the thresholds of stronger skews"
    return f"label skew {skew:.2f} (mean Hellinger distance), from {least:g}" if skew >= least else None
