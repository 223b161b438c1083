"""The majority baseline: the accuracy of always predicting the most frequent class of the training data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedloom.data.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Majority:
    """Accuracies in [0, 1] of predictions without a model, on the data that a protocol tests.

    Attributes:
        label: the most frequent class of all training data, the lowest of equal ones.
        everywhere: its share of the tested data.
        own: the share of each client's own most frequent class in its own test data, as a mean over clients with
            training data; NaN where the global test set is tested.
    """

    label: int
    everywhere: float
    own: float

    def to_beat(self, kind: str) -> float:
        """The accuracy that a model has to exceed.

        Args:
            kind: "personal", or "global" for the server's model.
        """
        return self.own if kind == "personal" and not math.isnan(self.own) else self.everywhere


def majority(scenario: Scenario, where: str) -> Majority | None:
    """Return the baseline on the data of a protocol: "global" or "local". None for others, and where only nodes know
    their data.

    Shares on clients' data are unweighted means over the clients with test samples.
    """
    if scenario.remote or where not in ("global", "local"):
        return None
    train, labels = scenario.class_counts(), scenario.test_set.y.cpu().numpy()
    label = int(train.sum(0).argmax())
    if where == "global":
        return Majority(label, float((labels == label).mean()), math.nan)
    tests = scenario.test.class_counts(labels, scenario.num_classes)
    tested = tests.sum(1) > 0
    if not tested.any():
        return Majority(label, math.nan, math.nan)
    shares, counts = tests[tested] / tests[tested].sum(1, keepdims=True), train[tested]
    own = shares[np.arange(len(counts)), counts.argmax(1)][counts.sum(1) > 0]
    return Majority(label, float(shares[:, label].mean()), float(own.mean()) if len(own) else math.nan)
