"""The evaluation protocols: which model is tested, on whose data (`fedloom help metrics` lists them). None of them is
"the" accuracy: where clients are tested, or their models, it is the unweighted mean over clients.

`personal/others` is the foreign accuracy: that of client k's model is the unweighted mean of its accuracies on the
samples of each other client; `accuracy_by_sample` weighs every sample the same. With more than 100 clients, they are
tested on 2,000 of all test samples, drawn once. `few-shot` (`evaluation/fewshot.py`) tests features on new classes.

All N clients are tested, sampled or not, after aggregation. A client without samples in the split is left out of the
mean, and `clients` says how many were in it; `<metric>_clients` says how many a metric is defined for, where they
differ. `accuracy_pooled` weighs every sample the same. Where clients misbehave, `accuracy_honest` is the mean over the
others, and `attack_success` the share of samples, on the data of the others, that are classified as the attack wants.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.core.trees import sent_to
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.evaluation.metric import Groups, Metric, MetricStates, Predictions, Scores, details_of_clients
from fedloom.evaluation.metrics import Accuracy, metric_kinds
from fedloom.evaluation.metrics.basic import DomainAccuracy, OwnerAccuracy, SampleScores
from fedloom.nets.loaded_net import LoadedNet, Predictor

PROTOCOLS = ("global/global", "global/local", "personal/global", "personal/local", "personal/others")
_ALL_OTHERS, _SAMPLED_OTHERS = 100, 2000  # clients whose test samples are all used; samples for more clients
_BATCHES_OF_COPY = 64
_BATCHES_OF_SLICE = 4  # enough work to be worth a message to another process


def offered_protocols(models: Collection[str]) -> tuple[str, ...]:
    """Return the protocols that test one of these models, "global" or "personal"."""
    return tuple(protocol for protocol in PROTOCOLS if protocol.partition("/")[0] in models)


def no_model_error(method: str, protocol: str) -> ConfigError:
    """Return the error for a method that has no model of the kind that the protocol tests."""
    kind = protocol.partition("/")[0]
    other = "personal" if kind == "global" else "global"
    remedy = f"use {other}/global or {other}/local"
    return ConfigError(f"evaluation.protocol = '{protocol}': {method} has no {kind} model; {remedy}")


class Evaluator:
    """Tests predictors on a scenario. `splits` can be tested; `own_metrics` are those that the protocol adds.

    A test of the server's model on the whole test set is cut into slices of whole batches, which engines may run on
    several workers. Neither slices nor batches depend on the engine, so every engine finds the same bits.

    Args:
        scenario: the clients and their data.
        protocol: which model is tested on whose data, as "personal/local".
        batch: samples that are tested at a time.
        also: further predictors of the method to test in the same way, e.g. Fed-CO2's "online" and "offline".
        metrics: names in `METRICS`, in addition to those that are always computed.
        scores_mib: memory for the scores of one model, in MiB; metrics that need more count them in bins.
        keep_scores: whether tests also have a state with the scores of single samples, for `intervals`.

    Raises `ConfigError` if the test set has other classes than were trained, and for tests on others' data where fewer
    than two clients have test samples."""

    def __init__(
        self,
        scenario: Scenario,
        protocol: str,
        *,
        batch: int,
        also: Sequence[str] = (),
        metrics: Sequence[str] = (),
        scores_mib: float = 64,
        keep_scores: bool = False,
    ) -> None:
        if scenario.test_set.classes != scenario.train_set.classes:
            problem = f"the test set of {scenario.name} has other classes than its training set; use few-shot"
            raise ConfigError(f"evaluation.protocol = '{protocol}': {problem}")
        self.scenario, self.batch = scenario, batch
        self.model_kind, self.data_kind = protocol.split("/")
        self.also = tuple(name for name in dict.fromkeys(also) if name != self.model_kind)
        self.names = (self.model_kind, *self.also)
        attack = scenario.attack if scenario.bad else None
        self.targets = None if attack is None else attack.target_classes(scenario.num_classes)
        self.metrics: dict[str, type[Metric]] = metric_kinds(metrics, scenario.train_set.multi)
        self.own_metrics: tuple[str, ...] = ()
        if self.data_kind == "others":
            if scenario.train_set.multi:
                raise ConfigError(f"evaluation.protocol = '{protocol}': counts one label a sample; take personal/local")
            self.metrics |= {"accuracy": OwnerAccuracy, "accuracy_by_sample": Accuracy}
            self.own_metrics = ("accuracy_by_sample",)
            if not scenario.remote and int((scenario.test.sizes > 0).sum()) < 2:
                raise ConfigError(
                    f"evaluation.protocol = '{protocol}': {scenario.name} has fewer than two clients with test "
                    "samples, so there are no others' data; take personal/local"
                )
        # metrics are counted on the CPU, and each copy makes the host wait for the device
        self.batches_per_copy = 1 if scenario.test_set.y.device.type == "cpu" else _BATCHES_OF_COPY
        # no metric: it has no value
        self._kinds = self.metrics | ({SampleScores.key: SampleScores} if keep_scores else {})
        self._by_domain = DomainAccuracy in self.metrics.values()
        tested = [scenario.test_set, *([scenario.train_set] if len(scenario.val.order) else [])]
        if self._by_domain and any(data.domain is None for data in tested):
            raise ConfigError(
                f"evaluation.metrics = {list(metrics)}: {scenario.name} has no domains, or only those of its test "
                "samples and not of its validation samples; leave domain_accuracy out"
            )
        self._scores_bytes = int(scores_mib * 2**20)
        self._of_scores = [name for name in metrics if self.metrics[name].needs_scores]
        self.splits = ("test", "val") if len(scenario.val.order) else ("test",)
        self._samples_of_all: dict[str, tuple[Tensor, Tensor]] = {}
        self.kept: dict[str, list[tuple[Tensor, Tensor, Tensor]]] | None = None  # indices, logits, labels of tests
        self.test_name = protocol  # by which tests are kept

    def check_selects(self, metric: str, split: Literal["val", "test"]) -> None:
        """Raise `ConfigError` if no model has a value of this metric on these samples: an AUROC needs two classes."""
        if self.scenario.remote or not self.metrics[metric].needs_scores:  # all other metrics are always defined
            return
        views, data = self._views(split), self.scenario.train_set if split == "val" else self.scenario.test_set
        labels = data.y.cpu()
        tests = map(views.tensor, range(len(views))) if self.data_kind == "local" else [self._all_indices(split)]
        if any(self._is_defined(metric, labels[indices]) for indices in tests):
            return
        samples = "validation samples" if split == "val" else "test samples"
        whose = f"each client's {samples}" if self.data_kind == "local" else f"the {samples}"
        remedy = "take accuracy or loss"
        raise ConfigError(f"evaluation.select_by = '{metric}': not defined on {whose}, which have one class; {remedy}")

    def _is_defined(self, metric: str, labels: Tensor) -> bool:
        """Whether a metric is a number for a model that gives all classes the same score."""
        if not len(labels):
            return False
        guess = Predictions(torch.zeros(len(labels), self.scenario.num_classes), labels)
        return not math.isnan(self.metrics[metric].new(guess).compute())

    def drawn_again(self, samples: SampleScores, rows: Tensor) -> MetricStates:
        """The states of tested samples [n], each as often as `rows` [m] name it, as those of one model."""
        indices, data = samples.indices[rows], self.scenario.test_set
        owners = Groups(torch.from_numpy(self.scenario.test.owner_of(len(data)))[indices], self.scenario.clients)
        further = self.targets, self._scores_bytes, owners, self._domains(data, indices)
        return MetricStates.new(Predictions(samples.logits[rows], data.y[indices].cpu(), *further), self.metrics)

    def slices(self, split: str) -> int:
        """The number of slices in which the server's model is tested; 0 if it is tested on each client's samples."""
        if self.data_kind == "local":
            return 0
        if self.scenario.test_set.y.device.type != "cpu":
            return 1  # there is one worker, and it would copy the weights to the device for each slice
        return max(1, -(-len(self._all_indices(split)) // (self.batch * _BATCHES_OF_SLICE)))

    def states(
        self, live: LoadedNet, predictor: Predictor, client: int, split: str, bins: Tensor | None = None
    ) -> MetricStates:
        """The metric states of one test of a split, with the predictor's weights in the net `live`.
        `client` is whose test it is; -1, -2, ... for the first, second, ... slice of a test of the server's model.
        bins: counts of all scores in a first test [2, C, K], which says where they need finer bins."""
        if self.data_kind == "local":
            return self._test(live, predictor, split, self._views(split).tensor(client), bins=bins)
        if self.data_kind == "others":
            indices, owners = self._of_others(client, split)
            return self._test(live, predictor, split, indices, owners)
        indices, slices = self._all_indices(split), self.slices(split)
        if client < 0 and slices > 1:
            first = (-1 - client) * self.batch * _BATCHES_OF_SLICE
            indices = indices[first : first + self.batch * _BATCHES_OF_SLICE]
        return self._test(live, predictor, split, indices, bins=bins)

    def scores(self, split: str, tested: Mapping[int, Mapping[str, MetricStates]]) -> Scores:
        """The scores of all tests of a split: metric states by client or slice (as in `states`) and predictor."""
        # Slices are numbered -1, -2, ...; the order matters, because sums of floats depend on it.
        by_predictor = {
            name: {client: tested[client][name] for client in sorted(tested, key=abs)} for name in self.names
        }
        if self.data_kind == "global" and self.model_kind == "global":  # all samples together are one set
            by_predictor = {name: {-1: MetricStates.merged(states.values())} for name, states in by_predictor.items()}
        main, *others = (self._scores(split, by_predictor[name]) for name in self.names)
        also = dict(zip(self.also, others, strict=True))
        return Scores(split, main.pooled, main.clients, self.metrics, also, self.scenario.bad, main.client_details)

    def tests_on_clients(self, split: str) -> bool:
        """Whether clients do the tests: of personal models, or on samples that only they can read."""
        return self.model_kind == "personal" or (self.scenario.remote and (self.data_kind == "local" or split == "val"))

    def total(self, client: int, split: str) -> int:
        """Samples on which the personal models of a client are tested."""
        if self.data_kind == "global":
            return len(self.scenario.test_set) if split == "test" else len(self.scenario.val.order)
        return len(self._of_others(client, split)[0]) if self.data_kind == "others" else len(self._views(split)[client])

    def names_in(self, offered: Collection[str]) -> list[str]:
        """The predictors that are tested, without those of `also` that only the model of another protocol offers."""
        return [name for name in self.names if name == self.model_kind or name in offered]

    def leave_to_others(self, offered: Collection[str]) -> None:
        """Leave out of `also` the predictors that are not offered here: another protocol of the run tests them."""
        self.names = tuple(self.names_in(offered))
        self.also = self.names[1:]

    def pick(self, offered: dict[str, Predictor], name: str) -> Predictor:
        """The predictor called `name`. Raises `ConfigError` if it is not among those offered."""
        if name in offered:
            return offered[name]
        if name != self.model_kind:
            raise ConfigError(f"evaluation.also = '{name}': the method offers {', '.join(sorted(offered))}")
        raise no_model_error("the method", f"{self.model_kind}/{self.data_kind}")

    def example_states(self, bins: Tensor | None = None) -> MetricStates:
        """Metric states of a made-up sample, with the types and shapes of all states. bins: as in `states`."""
        logits, first = torch.zeros(1, self.scenario.num_classes), torch.zeros(1, dtype=torch.int64)
        owners, domains = Groups(first, self.scenario.clients), self._domains(self.scenario.test_set, first)
        labels = torch.zeros_like(logits, dtype=torch.int64) if self.scenario.train_set.multi else first
        predictions = Predictions(logits, labels, self.targets, self._scores_bytes, owners, domains, first, bins)
        states = MetricStates.new(predictions, self._kinds)
        return (states if self.model_kind == "global" else states.of_one_model()).portable()

    def check(self, offered: dict[str, Predictor]) -> None:
        """Raise `ConfigError` without test samples, or where tested predictors are not offered, or lack scores."""
        tested = len(self.scenario.test_set) if self.data_kind == "global" else int(self.scenario.test.sizes.sum())
        if not (tested or self.scenario.remote):
            raise ConfigError(
                f"evaluation.protocol = '{self.model_kind}/{self.data_kind}': {self.scenario.name} has no test "
                "samples; raise scenario.split.test, or list test samples in the partition file"
            )
        for name in self.names:
            if self.scenario.train_set.multi and (self.pick(offered, name).labels_only or name == "nearest"):
                raise ConfigError(f"evaluation.also = '{name}': it names one class, and samples have several labels")
            if self.pick(offered, name).labels_only and self._of_scores:
                problem = f"need scores, and the method's {name} predictor gives classes alone; leave them out"
                raise ConfigError(f"evaluation.metrics = {self._of_scores}: {problem}")

    def _views(self, split: str) -> Views:
        return self.scenario.test if split == "test" else self.scenario.val

    def _of_others(self, client: int, split: str) -> tuple[Tensor, Tensor]:
        """The indices [n] of all other clients' samples, and their holders, the same for all methods and seeds."""
        if split not in self._samples_of_all:
            views = self._views(split)
            order, holders = views.order, views.holders()
            if len(views) > _ALL_OTHERS and len(order) > _SAMPLED_OTHERS:
                chosen = Streams(0).numpy("others").choice(len(order), _SAMPLED_OTHERS, replace=False)
                order, holders = order[np.sort(chosen)], holders[np.sort(chosen)]
            self._samples_of_all[split] = torch.from_numpy(order), torch.from_numpy(holders)
        indices, owners = self._samples_of_all[split]
        foreign = owners != client
        return indices[foreign], owners[foreign]

    def _domains(self, data: Dataset, indices: Tensor) -> Groups | None:
        """The domains of samples, where a metric asks for them."""
        return Groups(data.domain[indices], len(data.domains)) if self._by_domain and data.domain is not None else None

    def _all_indices(self, split: str) -> Tensor:
        if split == "val":
            return torch.from_numpy(self.scenario.val.order)
        return torch.arange(len(self.scenario.test_set))

    def _scores(self, split: str, states: dict[int, MetricStates]) -> Scores:
        if -1 in states:
            return Scores(split, states[-1], {}, self.metrics)
        pooled = MetricStates.merged(s if self.model_kind == "global" else s.poolable() for s in states.values())
        kept = details_of_clients(states) if split == "test" else {}
        reduced = {client: s.reduced() for client, s in states.items()}
        return Scores(split, pooled, reduced, self.metrics, client_details=kept)

    @torch.no_grad()
    def _test(
        self,
        live: LoadedNet,
        predictor: Predictor,
        split: str,
        indices: Tensor,
        owners: Tensor | None = None,
        bins: Tensor | None = None,
    ) -> MetricStates:
        live.net.eval()
        data = self.scenario.test_set if split == "test" else self.scenario.train_set
        states = MetricStates(0)
        copied = self.batch * self.batches_per_copy
        for first in range(0, len(indices), copied):
            block = sent_to(indices[first : first + copied], data.y.device)
            scored = [predictor.logits(live.net, data.gather(part)) for part in torch.split(block, self.batch)]
            logits = scored[0].cpu() if len(scored) == 1 else torch.cat(scored).cpu()
            labels, domains = data.y[block].cpu(), self._domains(data, block)
            if self.kept is not None and split == "test" and bins is None:
                self.kept.setdefault(self.test_name, []).append((block.cpu(), logits, labels))
            # In the same batches however many are copied at once, because sums of floats depend on their parts.
            for start in range(0, len(block), self.batch):
                rows = slice(start, start + self.batch)
                held = None if owners is None else Groups(owners[first:][rows], self.scenario.clients)
                origin = None if domains is None else Groups(domains.indices[rows].cpu(), domains.count)
                further = self._scores_bytes, held, origin, block[rows], bins
                predictions = Predictions(logits[rows], labels[rows], self.targets, *further)
                states = MetricStates.merged([states, MetricStates.new(predictions, self._kinds)])
        return states if self.model_kind == "global" else states.of_one_model()


@dataclass(frozen=True, slots=True)
class Majority:
    """Accuracies in [0, 1] of predictions without a model, on the data that a protocol tests.
    label: the most frequent class of all training data, the lowest of equal ones. everywhere: its share of the tested
    data. own: the mean share of each client's own most frequent class; NaN where the global test set is tested."""

    label: int
    everywhere: float
    own: float

    def to_beat(self, kind: str) -> float:
        """The accuracy that a model of this kind, "personal" or "global", has to exceed."""
        return self.own if kind == "personal" and not math.isnan(self.own) else self.everywhere


def majority(scenario: Scenario, where: str) -> Majority | None:
    """Return the baseline on the "global" or "local" data of a protocol; None for others, and where only nodes know
    their data. Shares on clients' data are unweighted means over the clients with test samples."""
    if scenario.remote or where not in ("global", "local") or scenario.train_set.multi:
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
    # A client without training samples has no most frequent class; argmax would name class 0.
    own = shares[np.arange(len(counts)), counts.argmax(1)][counts.sum(1) > 0]
    return Majority(label, float(shares[:, label].mean()), float(own.mean()) if len(own) else math.nan)
