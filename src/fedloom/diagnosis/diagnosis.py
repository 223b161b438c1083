"""The diagnosis of a federation: how heterogeneous its data are, before a run and after one."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedloom.core.errors import ConfigError
from fedloom.core.files import without_nan
from fedloom.data.scenario import Scenario
from fedloom.diagnosis.feature_profile import FeatureProfile, profile_of_scenario
from fedloom.diagnosis.label_profile import Interval, LabelProfile, label_profile
from fedloom.nets.net import Net, tree_of
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.export.modules import config_of
from fedloom.runs.export.run_at_checkpoint import Memory
from fedloom.runs.export.trained import of_result
from fedloom.runs.setup import Setup
from fedloom.runs.storage.run_data import RunData

COUNTS, FEATURES = "each client's class counts", "features of single samples"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The skew of a federation's data.
    name: name of the scenario. class_names: of the C classes. labels: label and quantity skew, from counts. untrained:
    feature skew under the first weights; None where the model has no features. trained: feature skew under the weights
    of a finished run; None without a run. notes: what could not be computed, and why."""

    name: str
    class_names: tuple[str, ...]
    labels: LabelProfile
    untrained: FeatureProfile | None = None
    trained: FeatureProfile | None = None
    notes: tuple[str, ...] = ()

    @property
    def profiles(self) -> dict[str, FeatureProfile]:
        """The feature profiles that could be computed, by "untrained" and "trained"."""
        both = {"untrained": self.untrained, "trained": self.trained}
        return {when: profile for when, profile in both.items() if profile is not None}

    def facts(self) -> dict[str, Any]:
        """All values as JSON values; undefined ones are None."""
        labels = self.labels
        return {
            "name": self.name,
            "classes": list(self.class_names),
            "clients": list(labels.clients),
            "left_out": labels.left_out,
            "empty_clients": labels.empty_clients,
            "label_skew": {kind: _interval(interval) for kind, interval in labels.distances.items()},
            "hellinger": labels.hellinger.round(6).tolist(),
            "hellinger_to_pool": labels.to_pool.round(6).tolist(),
            "effective_classes": labels.effective_classes.round(6).tolist(),
            "sizes": labels.sizes.tolist(),
            **{key: getattr(labels, key) for key in ("size_gini", "size_ratio", "tail_ratio", "tail_gini")},
            "absent_classes": list(labels.absent_classes),
            "few_shot_clients": list(labels.few_shot),
            "groups": labels.groups.tolist(),
            "features": {when: _features(profile) for when, profile in self.profiles.items()},
            "rows": [list(row) for row in self.rows()],
            "sentences": self.sentences(),
            "notes": list(self.notes),
        }

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The values in words: measure, value, 95 % interval under random dealing, data that the server needs."""
        labels, sizes = self.labels, self.labels.sizes
        effective = f"{np.median(labels.effective_classes):.1f} of {labels.classes} (median client)"
        groups = f"{len(set(labels.groups.tolist()))} of {len(labels.clients)} clients"
        few = f"{len(labels.few_shot)} of {len(labels.clients)}"
        rows = [
            *((_DISTANCE_NAMES[kind], f"{i.value:.3f}", _range(i), COUNTS) for kind, i in labels.distances.items()),
            ("effective classes", effective, "", COUNTS),
            ("groups of similar clients", groups, "", COUNTS),
            ("samples of a client", f"{sizes.min():,} to {sizes.max():,}, Gini {labels.size_gini:.2f}", "", "sizes"),
            ("few-shot clients", few, "", COUNTS),
            ("long tail", f"rho {labels.tail_ratio:.1f}, Gini {labels.tail_gini:.2f}", "", "class totals"),
        ]
        for when, profile in self.profiles.items():
            distance = profile.class_distance
            rows += [
                (f"feature skew ({when} net)", _number(distance.value), _range(distance), FEATURES),
                (f"own data know the labels better by ({when})", _number(profile.mean_label_gap), "", FEATURES),
            ]
        return rows

    def sentences(self) -> list[str]:
        """The meaning of the values, one sentence each."""
        labels, hellinger = self.labels, self.labels.distances["hellinger"]
        if len(labels.clients) == 1:
            texts = ["one client has samples, so nothing differs between clients"]
        elif hellinger.looks_iid:
            texts = ["labels differ no more than random dealing explains"]
        else:
            skew = f"label skew is {strength(hellinger.value)} (mean Hellinger distance {hellinger.value:.2f}, "
            texts = [f"{skew}{hellinger.low:.2f} to {hellinger.high:.2f} in random dealings)"]
        for when, profile in self.profiles.items():
            if not math.isnan(profile.class_distance.value):
                word = "no more than" if profile.class_distance.looks_iid else "more than"
                texts.append(
                    f"features of one class differ between clients {word} random dealing explains ({when} net)"
                )
        if labels.absent_classes:
            texts.append(f"no client holds: {', '.join(self.class_names[label] for label in labels.absent_classes)}")
        if labels.empty_clients:
            texts.append(f"{labels.empty_clients} clients have no samples and are left out")
        if labels.left_out:
            texts.append(f"{len(labels.clients)} evenly spaced clients are compared, {labels.left_out} are not")
        return texts


_DISTANCE_NAMES = {
    "total_variation": "label skew: total variation",
    "jensen_shannon": "label skew: Jensen-Shannon",
    "hellinger": "label skew: Hellinger",
}


def strength(hellinger: float) -> str:
    """Name the band of a mean Hellinger distance between clients; the bands are quarters of its range, our choice.

    >>> [strength(value) for value in (0.1, 0.3, 0.6, 0.9)]
    ['light', 'moderate', 'strong', 'extreme']
    """
    return ("light", "moderate", "strong", "extreme")[min(3, int(hellinger * 4))]


def diagnose_scenario(
    scenario: Scenario, net: Net | None = None, trained: Net | None = None, seed: int = 0, notes: tuple[str, ...] = ()
) -> Diagnosis:
    """Diagnose the skew of a scenario's training data. Raises `ConfigError` if no client has samples.
    net: the network with its first weights, whose features are compared; None compares labels alone. trained: the
    network with the weights of a finished run. seed: of random dealings. notes: known reasons for missing values."""
    if scenario.remote:
        raise ConfigError(
            f"{scenario.name}: its data lie on nodes; diagnose each node's data there, or pass class counts"
        )
    profiles: dict[str, FeatureProfile] = {}
    reasons = list(notes)
    for when, weights in (("untrained", net), ("trained", trained)):
        if weights is not None:
            try:
                profiles[when] = profile_of_scenario(scenario, weights, tree_of(weights), seed)
            except ConfigError as error:  # labels are compared without a net as well
                reasons.append(f"no features of the {when} net: {error}")
    labels = label_profile(scenario.class_counts(), seed)
    names = tuple(map(str, scenario.class_names))
    return Diagnosis(scenario.name, names, labels, **profiles, notes=tuple(reasons))


def diagnose_config(config: RunConfig) -> Diagnosis:
    """Diagnose the data that a config describes, with the features of its untrained model."""
    scenario = config.scenario.build(config.seed)
    net, notes = _first_net(config, scenario)
    return diagnose_scenario(scenario, net, seed=config.seed, notes=notes)


def diagnose_result(result: RunData) -> Diagnosis:
    """Diagnose the data of a finished run, with the features of its model before and after training."""
    # A run in memory has what no config holds: a scenario or models that were passed as objects.
    memory = result.memory or Memory(config_of(result.config, None))
    config = memory.config
    scenario = memory.scenario or config.scenario.build(config.seed)
    net, notes = _first_net(config, scenario)
    trained: Net | None = None
    try:
        model = of_result(result).module
        trained = model if isinstance(model, Net) else None
        notes += () if isinstance(model, Net) else ("the trained model is not a single net with a head: no features",)
    except ConfigError as error:
        notes += (f"no features of a trained net: {error}",)
    return diagnose_scenario(scenario, net, trained, config.seed, notes)


def _first_net(config: RunConfig, scenario: Scenario) -> tuple[Net | None, tuple[str, ...]]:
    """The first client's network before training; None with a reason where it has several nets or no features."""
    setup = Setup.from_config(config, scenario.train_set.input_shape, scenario.num_classes, scenario.clients)
    net = setup.nets[0]
    if setup.method.spec.nets:
        return None, (f"{config.method} trains several nets at a client, so their features are not compared",)
    return net, () if len(setup.nets) == 1 else ("clients have several networks: features are those of the first",)


def _interval(interval: Interval) -> Mapping[str, Any]:
    values: dict[str, Any] = without_nan(asdict(interval))
    return values | {"looks_iid": None if values["value"] is None else interval.looks_iid}


def _features(profile: FeatureProfile) -> Mapping[str, Any]:
    return {
        "clients": list(profile.clients),
        "samples": profile.samples,
        "class_distance": _interval(profile.class_distance),
        "label_gaps": without_nan(profile.label_gaps.tolist()),
        **without_nan({"mean_label_gap": profile.mean_label_gap}),
    }


def _number(value: float) -> str:
    return "not defined" if math.isnan(value) else f"{value:.3f}"


def _range(interval: Interval) -> str:
    return "" if math.isnan(interval.low) else f"{interval.low:.3f} to {interval.high:.3f}"
