"""Feature skew: how clients' features of one class differ, and whether equal features have equal labels."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from fedloom.core.errors import ConfigError
from fedloom.core.trees import Tree
from fedloom.data.scenario import Scenario
from fedloom.data.views import evenly_spaced
from fedloom.diagnosis.label_profile import Floats, Interval
from fedloom.nets.net import Net

MOST_CLIENTS, SAMPLES = 20, 100  # compared clients, and samples of each
_PERMUTATIONS = 50
_DIMENSIONS = 50  # principal components on which classifiers work
_FOLDS = 2
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FeatureProfile:
    """How the clients' features, scaled to unit variance, differ. clients: ids of the compared clients [K], at most 20,
    evenly spaced among those with samples. samples: number of samples that were looked at, at most 100 of each client.
    class_distance: mean over classes and pairs of clients of the distance of their class means, in standard deviations
    within a class, less what finite samples explain; with the interval of 50 random dealings that keep every client's
    labels. NaN where no two clients share a class with two samples each. label_gaps: for each client [K], the accuracy
    on its samples of a logistic regression of the label that was trained on them (two-fold), less that of one trained
    on all other clients; both weigh classes by the client's shares. Above 0, equal features have other labels, or only
    own data teach them. NaN where it has fewer than two samples of each of two classes."""

    clients: tuple[int, ...]
    samples: int
    class_distance: Interval
    label_gaps: Floats

    @property
    def mean_label_gap(self) -> float:
        """The mean of `label_gaps` over the clients that have one; NaN if none has."""
        known = self.label_gaps[~np.isnan(self.label_gaps)]
        return float(known.mean()) if len(known) else float("nan")


def profile_of_scenario(scenario: Scenario, net: Net, tree: Tree, seed: int = 0) -> FeatureProfile:
    """Profile the features that a net with the weights `tree` has of the clients' training samples; they are pooled, so
    it is for simulations. Raises `ConfigError` for a net without features, or features that are not finite."""
    if not net.classifier_block:
        raise ConfigError("this model has no head, so it has no features: profile its labels alone")
    if scenario.train_set.multi:
        raise ConfigError("features are compared within classes, and samples have several labels")
    owners = np.flatnonzero(scenario.train.sizes)
    compared = evenly_spaced(owners, MOST_CLIENTS)
    rows = [evenly_spaced(scenario.train[int(client)], SAMPLES) for client in compared]
    if not rows:
        raise ConfigError("no client has training samples, so there is nothing to compare")
    with torch.no_grad():
        parts = [
            net.functional.features(tree, scenario.train_set.gather(part)).double()
            for part in torch.from_numpy(np.concatenate(rows)).split(500)  # type: ignore[no-untyped-call]
        ]
    features = torch.cat(parts).flatten(1).numpy()
    if bad := int((~np.isfinite(features)).any(1).sum()):
        raise ConfigError(f"those of {bad:,} of {len(features):,} samples are not finite, as of a run that diverged")
    labels = scenario.train_set.y.numpy()[np.concatenate(rows)]
    clients = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    return feature_profile(features, labels, clients, tuple(compared.tolist()), seed)


def feature_profile(
    features: Floats, labels: Labels, clients: Labels, ids: Sequence[int], seed: int = 0
) -> FeatureProfile:
    """Profile features [n, d] with labels [n] of clients [n] that are numbered from 0 to K - 1.
    clients: the position of each sample's client in `ids`. seed: of the random dealings and folds."""
    spread = features.std(0)
    scaled = (features - features.mean(0)) / np.where(spread > 0, spread, 1)
    reduced = scaled
    if min(scaled.shape) > _DIMENSIONS:
        # Logistic regressions on thousands of features would take minutes and fit any noise.
        reduced = PCA(_DIMENSIONS, svd_solver="randomized", random_state=seed).fit_transform(scaled)
    pairs = _class_distances(scaled, labels, clients, len(ids))
    rng, drawn = np.random.default_rng(seed), []
    for _ in range(_PERMUTATIONS):
        dealt = clients.copy()
        # Dealing within each class keeps every client's labels, so only features can differ.
        for label in np.unique(labels):
            members = np.flatnonzero(labels == label)
            dealt[members] = clients[rng.permutation(members)]
        drawn.append(_mean(_class_distances(scaled, labels, dealt, len(ids))))
    low, high = np.nanquantile(drawn, [0.025, 0.975]) if not np.isnan(drawn).all() else (np.nan, np.nan)
    return FeatureProfile(
        clients=tuple(ids),
        samples=len(features),
        class_distance=Interval(_mean(pairs), float(low), float(high)),
        label_gaps=np.array([_label_gap(reduced, labels, clients == client, seed) for client in range(len(ids))]),
    )


def _mean(pairs: Floats) -> float:
    values = pairs[np.triu_indices(len(pairs), 1)]
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def _class_distances(features: Floats, labels: Labels, clients: Labels, count: int) -> Floats:
    """Mean over common classes of the scaled distance of two clients' class means [K, K]."""
    sums, numbers = np.zeros((count, count)), np.zeros((count, count))
    for label in np.unique(labels):
        of_class = labels == label
        x, owners = features[of_class], clients[of_class]
        sizes = np.bincount(owners, minlength=count)
        holders = np.flatnonzero(sizes >= 2)
        if len(holders) < 2:
            continue
        means = np.stack([x[owners == holder].mean(0) for holder in holders])
        variances = np.array([x[owners == holder].var(0, ddof=1).sum() for holder in holders])
        within = np.average(variances, weights=sizes[holders] - 1)
        for (i, first), (j, second) in combinations(enumerate(holders), 2):
            # Means of finite samples differ by chance; without this term, few samples would look like skew.
            noise = variances[i] / sizes[first] + variances[j] / sizes[second]
            squared = ((means[i] - means[j]) ** 2).sum() - noise
            scaled = np.sqrt(max(squared, 0.0) / within) if within > 0 else 0.0
            sums[first, second] += scaled
            sums[second, first] += scaled
            numbers[first, second] += 1
            numbers[second, first] += 1
    distances = np.where(numbers > 0, sums / np.maximum(numbers, 1), np.nan)
    np.fill_diagonal(distances, 0)
    return distances


def _cross_validated(x: Floats, y: Labels, folds: StratifiedKFold) -> Labels:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # an accuracy after 200 steps is as good
        predicted: NDArray[np.int64] = np.asarray(cross_val_predict(_classifier(), x, y, cv=folds), dtype=np.int64)
    return predicted


def _label_gap(features: Floats, labels: Labels, own: NDArray[np.bool_], seed: int) -> float:
    """Accuracy of a classifier of a client's own samples, less that of one of all others' samples."""
    x, y, others = features[own], labels[own], ~own
    counts = np.bincount(y)
    usable = np.isin(y, np.flatnonzero(counts >= _FOLDS))
    if len(np.unique(y[usable])) < 2 or len(np.unique(labels[others])) < 2:
        return float("nan")
    x, y = x[usable], y[usable]
    known = np.isin(labels[others], np.unique(y))
    if len(np.unique(labels[others][known])) < 2:
        return float("nan")
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    weights = dict(zip(*np.unique(y, return_counts=True), strict=True))
    train_y = labels[others][known]
    totals = dict(zip(*np.unique(train_y, return_counts=True), strict=True))
    # Foreign samples weigh as the client's classes do, or another label mix would look like another meaning of labels.
    sample_weights = np.array([weights[label] / totals[label] for label in train_y.tolist()])
    sample_weights *= len(train_y) / sample_weights.sum()
    own_accuracy = float((_cross_validated(x, y, folds) == y).mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        foreign = _classifier().fit(features[others][known], train_y, sample_weight=sample_weights)
    return own_accuracy - float((foreign.predict(x) == y).mean())


def _classifier() -> Any:
    return LogisticRegression(C=0.1, max_iter=200)
