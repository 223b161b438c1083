"""Floor 3: protocols and metrics. Knows no single method."""

from fedloom.evaluation.fewshot import FewShotEvaluator
from fedloom.evaluation.metric import METRICS, Metric, MetricStates, Predictions, Scores
from fedloom.evaluation.protocols import PROTOCOLS, Evaluator

__all__ = ["METRICS", "PROTOCOLS", "Evaluator", "FewShotEvaluator", "Metric", "MetricStates", "Predictions", "Scores"]
