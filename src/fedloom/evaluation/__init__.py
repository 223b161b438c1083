"""Floor 4: protocols and metrics. Knows no single method."""

from fedloom.evaluation.fewshot import EpisodeShape, FewShot, FewShotEvaluator, FewShotScores
from fedloom.evaluation.metrics import Tested
from fedloom.evaluation.protocols import PROTOCOLS, Evaluator, Scores

__all__ = [
    "PROTOCOLS",
    "EpisodeShape",
    "Evaluator",
    "FewShot",
    "FewShotEvaluator",
    "FewShotScores",
    "Scores",
    "Tested",
]
