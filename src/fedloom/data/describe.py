"""A scenario in plain values: what is shown before training, and kept beside every run."""

from __future__ import annotations

from math import isinf
from typing import Any

from fedloom.data.scenario import Scenario
from fedloom.data.statistics import feature_shift, label_skew

PICTURED_CLIENTS = 200


def describe_scenario(scenario: Scenario) -> dict[str, Any]:
    """Who holds what: class counts (and domains) of the first clients, skew figures of all. Values fit into JSON."""
    data = scenario.train_set
    skew = label_skew(scenario.train, data.y.numpy(), scenario.num_classes)
    return {
        "name": scenario.name,
        "clients": scenario.clients,
        "classes": list(data.classes),
        "class_counts": scenario.class_counts(PICTURED_CLIENTS).tolist(),
        "domains": list(data.domains),
        "domain_counts": scenario.domain_counts(PICTURED_CLIENTS).tolist() if data.domain is not None else [],
        "feature_shift": feature_shift(data),
        "draws": scenario.draws,
        "acceptance": scenario.acceptance,
        "total_variation": skew.total_variation,
        "classes_per_client": skew.classes_per_client,
        "imbalance": None if isinf(skew.imbalance) else skew.imbalance,
        "size_ratio": None if isinf(skew.size_ratio) else skew.size_ratio,
        "empty_clients": len(skew.empty_clients),
        "empty_classes": list(skew.empty_classes),
        "train_samples": len(scenario.train.order),
        "val_samples": len(scenario.val.order),
        "test_samples": len(scenario.test_set),
    }
