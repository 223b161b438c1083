"""Few-shot evaluation: can a backbone tell classes apart that it never saw, from a handful of samples each?

An episode draws `ways` classes of the test set and, of each, `shots` support and `queries` query samples. ProtoNet
(Snell et al. 2017, arXiv 1703.05175) gives a query the class of the nearest prototype, the mean of its support
features, by squared Euclidean distance. Nothing is trained."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import ConfigError, DataError
from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.nets.loaded_net import LoadedNet, Predictor

# Episodes whose distances are computed together: 64 of 5 x 20 features of 512 float64 are 26 MB.
_TOGETHER = 64


@dataclass(frozen=True, slots=True)
class EpisodeShape:
    """The size of a few-shot test. Defaults: 600 episodes of 5-way 5-shot with 15 queries a class."""

    ways: int = 5
    shots: int = 5
    queries: int = 15
    episodes: int = 600


@dataclass(frozen=True, slots=True)
class Episodes:
    """Positions in a test set, int64: `support` [E, ways, shots] and `query` [E, ways, queries]."""

    support: Tensor
    query: Tensor


@dataclass(frozen=True, slots=True)
class FewShotScores:
    """The result of the protocol few-shot, with the methods of `Scores` that a run's rows need.
    mean: accuracy over `n` episodes in [0, 1]. interval: half the width of its 95 % interval, 1.96 s / sqrt(n), with s
    the sample standard deviation over episodes. loss: mean cross-entropy in nats of softmax(-squared distance)."""

    mean: float
    interval: float
    n: int
    loss: float
    split: str = "test"

    def client_values(self) -> dict[str, dict[int, float]]:
        """None: the server's model is tested once."""
        return {}

    def values(self) -> dict[str, float]:
        return {"accuracy": self.mean, "loss": self.loss, "accuracy_interval": self.interval, "episodes": self.n}


def episodes(labels: Tensor, shape: EpisodeShape, rng: np.random.Generator, groups: Tensor | None = None) -> Episodes:
    """Draw episodes from labels [n]: classes and samples without replacement within an episode, whose support and
    queries have no group [n] in common.
    Returns row numbers of the support [E, ways, shots] and the queries [E, ways, queries]. Raises `ConfigError` for a
    `shape` that makes no test, `DataError` if there are too few classes, or samples of a class."""
    ways, samples_per_way = shape.ways, shape.shots + shape.queries
    if ways < 2 or shape.shots < 1 or shape.queries < 1 or shape.episodes < 2:
        raise ConfigError(
            f"few-shot episodes: {ways} ways, {shape.shots} shots, {shape.queries} queries, {shape.episodes} episodes; "
            "need at least 2 ways, 1 shot, 1 query and 2 episodes"
        )
    labels = labels.cpu()
    held, counts = np.unique(labels.numpy(), return_counts=True)
    if len(held) < ways:
        raise DataError(f"few-shot episodes of {ways} classes: the test set holds {len(held)}; lower evaluation.ways")
    if counts.min() < samples_per_way:
        raise DataError(
            f"few-shot episodes: class {held[counts.argmin()]} has {counts.min()} test samples; {shape.shots} shots "
            f"and {shape.queries} queries need {samples_per_way}; lower evaluation.queries or evaluation.shots"
        )
    # Stable: the default sort may order equal labels differently on CPUs with other vector instructions.
    members = np.split(np.argsort(labels.numpy(), kind="stable"), np.cumsum(counts)[:-1])
    drawn = np.empty((shape.episodes, ways, samples_per_way), np.int64)
    for episode in drawn:
        for position, chosen in zip(episode, rng.choice(len(held), ways, replace=False), strict=True):
            position[:] = members[chosen][rng.choice(counts[chosen], samples_per_way, replace=False)]
        if groups is not None:
            _part_groups(episode, shape, labels.numpy(), groups.cpu().numpy(), rng)
    sample_ids = torch.from_numpy(drawn)
    return Episodes(sample_ids[..., : shape.shots].contiguous(), sample_ids[..., shape.shots :].contiguous())


_TRIES = 100


def _part_groups(
    episode: np.ndarray, shape: EpisodeShape, labels: np.ndarray, groups: np.ndarray, rng: np.random.Generator
) -> None:
    """Draw the samples of an episode [ways, shots + queries] again, of the same classes, with whole groups in its
    support or its queries. Raises `DataError` if that fails a hundred times."""
    rows = [np.flatnonzero(labels == label) for label in labels[episode[:, 0]]]
    ids = np.unique(groups[np.concatenate(rows)])
    for _ in range(_TRIES):
        supports = rng.random(len(ids)) < shape.shots / (shape.shots + shape.queries)
        sides = [(of[supports[np.searchsorted(ids, groups[of])]], of) for of in rows]
        drawn = [(rng.permutation(side)[: shape.shots], rng.permutation(np.setdiff1d(of, side))) for side, of in sides]
        if all(len(support) == shape.shots and len(query) >= shape.queries for support, query in drawn):
            episode[:] = [np.concatenate([support, query[: shape.queries]]) for support, query in drawn]
            return
    raise DataError(
        f"few-shot episodes: {len(ids)} test groups of {len(rows)} classes cannot give {shape.shots} shots and "
        f"{shape.queries} queries of other groups; lower evaluation.queries or evaluation.shots"
    )


def few_shot_accuracy(
    features: Callable[[Tensor], Tensor], data: Dataset, drawn: Episodes, *, batch: int = 256
) -> FewShotScores:
    """ProtoNet on `drawn` episodes of `data`, whose samples x [B, ...] `features` maps to z [B, d]. Features are
    computed once, and in float64: the sum of squares loses digits where they are far from zero and near each other."""
    parts = torch.split(torch.arange(len(data)), batch)
    with torch.no_grad():
        z = torch.cat([features(data.gather(part)).cpu().double() for part in parts])
    (count, ways, _), queries = drawn.support.shape, drawn.query.shape[2]
    truth = torch.arange(ways).repeat_interleave(queries)  # [ways * queries]
    rights, losses = [], []
    for support, query in zip(*(torch.split(t, _TOGETHER) for t in (drawn.support, drawn.query)), strict=True):
        prototypes = z[support].mean(2)  # [e, ways, d]
        points = z[query.flatten(1)]  # [e, ways * queries, d]
        # -|q - p|^2 without |q|^2, which is the same for all classes of a query
        scores = torch.baddbmm(prototypes.square().sum(2).unsqueeze(1), points, prototypes.mT, beta=-1, alpha=2)
        rights.append((scores.argmax(2) == truth).double().mean(1))
        losses.append(-scores.log_softmax(2)[:, torch.arange(len(truth)), truth].mean(1))
    accuracy = torch.cat(rights)
    interval = 1.96 * float(accuracy.std(correction=1)) / count**0.5
    return FewShotScores(float(accuracy.mean()), interval, count, float(torch.cat(losses).mean()))


class FewShotEvaluator:
    """The protocol few-shot: the features of the server's model, on episodes of the global test set.
    The episodes are drawn once from `streams`, so that all rounds, and all methods at one seed, face the same ones.
    Raises as `episodes`."""

    model_kind = "global"
    splits = ("test",)

    def __init__(
        self, live: LoadedNet, scenario: Scenario, shape: EpisodeShape, streams: Streams, *, batch: int
    ) -> None:
        if not live.net.classifier_block:
            raise ConfigError("evaluation.protocol = 'few-shot': tests features, and this model has no head to cut at")
        if scenario.test_set.multi:
            raise ConfigError(
                "evaluation.protocol = 'few-shot': an episode draws samples of one class each, and these have several "
                "labels; take another protocol, e.g. global/global"
            )
        self.live, self.data, self.batch = live, scenario.test_set, batch
        self.episodes = episodes(self.data.y, shape, streams.numpy("episodes"), self.data.group)

    def scores(self, split: str, predictors: Iterator[tuple[int, dict[str, Predictor]]]) -> FewShotScores:
        """Test on a split. `predictors` yields (-1, the server's predictors)."""
        _, offered = next(predictors)
        self.check(offered)
        self.live.load(offered[self.model_kind].tree)
        net = self.live.net.eval()
        return replace(few_shot_accuracy(net.features, self.data, self.episodes, batch=self.batch), split=split)

    def check(self, offered: dict[str, Predictor]) -> None:
        """Raise `ConfigError` unless the server's predictor is among those offered."""
        if self.model_kind not in offered:
            problem = "tests the server's model, and this method has none; use personal/global or personal/local"
            raise ConfigError(f"evaluation.protocol = 'few-shot': {problem}")
