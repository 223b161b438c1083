"""Floor 4: protocols and metrics. Knows no single method."""

from typing import TYPE_CHECKING

from fedloom._renamed import missing_attribute
from fedloom.evaluation.fewshot import EpisodeShape, FewShot, FewShotEvaluator, FewShotScores
from fedloom.evaluation.metric import METRICS, Metric, MetricStates, Predictions
from fedloom.evaluation.protocols import PROTOCOLS, Evaluator
from fedloom.evaluation.scores import Scores

__all__ = [
    "METRICS",
    "PROTOCOLS",
    "EpisodeShape",
    "Evaluator",
    "FewShot",
    "FewShotEvaluator",
    "FewShotScores",
    "Metric",
    "MetricStates",
    "Predictions",
    "Scores",
]

if not TYPE_CHECKING:  # a type checker shall know that other names do not exist

    def __getattr__(name: str) -> object:
        raise missing_attribute(__name__, name)
