"""Sentences on the threshold of a run and on the intervals of its last test."""

import math
from collections.abc import Mapping
from typing import Any

from fedloom.core.text import value_text


def risk_sentences(numbers: Mapping[str, Any]) -> list[str]:
    """Say which threshold a run chose, and the intervals of its metrics; empty where none were asked for."""
    sentences, decision, intervals = list[str](), numbers.get("decision"), numbers.get("intervals")
    if decision:
        rule, label = decision["rule"], decision["label"]
        words = rule if isinstance(rule, str) else " ".join(f"{name} {level:g}" for name, level in rule.items())
        sentences.append(
            f"Samples are taken for {label} from log odds {decision['threshold']:.4g} on, a probability "
            f"of {50 + 50 * math.tanh(decision['threshold'] / 2):.3g} %. The rule is {words}, on validation samples "
            f"after round {decision['round']}: {decision['positives']:,} of {label}, {decision['negatives']:,} others."
        )
    elif "decision" in numbers:
        sentences.append("No threshold was chosen: it needs validation samples of the class and of others.")
    if intervals and not intervals["groups"]:
        sentences.append("No intervals: they need scores of single samples, which never leave a node.")
    elif intervals:
        ends = {name: (v.get("low"), v.get("high")) for name, v in intervals["values"].items()}
        bounds = {name: pair for name, pair in ends.items() if None not in pair}
        texts = [f"{k} {value_text(k, low, 1)} to {value_text(k, high, 1)}" for k, (low, high) in bounds.items()]
        none = ", ".join(name for name in intervals["values"] if name not in bounds)
        no_spread = "always the same" if intervals["draws"] else "known from single samples alone"
        sentences.append(
            f"{100 * intervals['level']:g} % intervals of the test after the last round: {', '.join(texts) or 'none'}. "
            + (f"By {intervals['draws']:,} draws of" if intervals["draws"] else "By a linear approximation over")
            + f" {intervals['groups']:,} {intervals['by']}s within clients, {intervals['method']}."
            + (" Too narrow where several rows belong to one person." if intervals["by"] == "row" else "")
            + (f" No interval of {none}: not defined, or {no_spread}." if none else "")
        )
    return sentences
