"""Build a `Scenario` from a source: thin, deal, split and skew, in this order."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.key_models import Keys
from fedloom.core.streams import Streams
from fedloom.data import views as splitting
from fedloom.data.attacks import Attack
from fedloom.data.dataset import IDS, Dataset, channel_moments, sets_digest
from fedloom.data.leak import group_notes, refuse_crossing_groups, repeated_samples_notes
from fedloom.data.newcomers import HeldOut, LeftOutDomain, without_newcomers
from fedloom.data.partitions.natural import Natural
from fedloom.data.partitions.partition import PARTITIONS, Dealt, Partition
from fedloom.data.scenario import Scenario, TestRows, impute_scenario, recorded_labels, with_sets
from fedloom.data.skews.skew import Skew, derive_streams
from fedloom.data.sources.source import Splits
from fedloom.data.views import Indices, Views

Tests = Literal["shares", "matched"]


class OwnSplit(Keys, extra="forbid", frozen=True, allow_inf_nan=False):
    """Every client's samples split by class into training, validation and test parts, in these proportions. Each client
    is then tested on its own part. The global test set is the union of all clients' test parts."""

    train: float = Field(gt=0, examples=[0.7])
    val: float = Field(0.0, ge=0)
    test: float = Field(gt=0, examples=[0.3])
    pool: Literal["train", "all"] = "train"

    @property
    def rows(self) -> TestRows:
        return "train" if self.pool == "train" else "train+test"


def make_scenario(
    name: str,
    splits: Splits,
    partition: Partition,
    *,
    clients: int,
    val: float,
    streams: Streams,
    split: OwnSplit | None = None,
    tests: Tests = "shares",
    skews: Sequence[Skew] = (),
    public: float | Dataset = 0.0,
    attack: Attack | None = None,
    held_out: HeldOut | None = None,
) -> Scenario:
    """Deal the samples of a source to clients.

    Args:
        name: name of the scenario.
        splits: training and test samples.
        partition: deals the training samples to N `clients`.
        val: share of each client's training samples, in [0, 1), that is held out for validation.
        streams: the root of randomness. The result depends only on its seed; each step has its own stream.
        split: replaces `val`, and takes the client's test samples from its own.
        tests: "shares" uses the partition's test views; "matched" draws test samples in each client's label mix, see
            `matched_tests`.
        skews: applied in this order; those that thin the training set come before the partition.
        public: share of the remaining samples that the server keeps, or other samples that it holds.
        attack: applied after all skews.
        held_out: clients that never train, set apart before the attack.

    Measured features of a table (`Splits.numeric_features`) are standardised last, by mean and deviation of clients'
    training samples only; so are pixels with their own moments, where clients or a domain never train. Missing cells
    (`Splits.rules`) are filled by values over the same samples. Raises `ConfigError` for more clients than samples,
    shares out of range, and partitions that cannot be made.
    """
    train, test = splits.train, splits.test
    skew_streams = derive_streams(skews, streams)
    rows = np.arange(len(train) - splits.validation, dtype=np.int64)
    left_out = None
    if splits.validation and (split is not None or (held_out is not None and held_out.domain is not None)):
        key = "split" if split is not None else "held_out.domain"
        remedy = "leave it out"
        raise ConfigError(f"scenario.{key}: {name} has validation samples of its own, which it cannot part; {remedy}")
    if held_out is not None and held_out.domain is not None:
        left_out = LeftOutDomain.of(held_out.domain, name, splits)
        rows = left_out.other_train
        partition, clients = partition.without_domain(left_out.index, clients)
    for skew, stream in zip(skews, skew_streams, strict=True):
        rows = skew.thin(train, rows, stream.numpy("thin"))
    public_share = public if isinstance(public, float) else 0.0
    public_rows = rows[:0]
    if public_share:
        rng = streams.numpy("public")
        if train.group is None:
            public_rows = rng.permutation(rows)[: math.ceil(public_share * len(rows))]
        else:
            of_rows = train.group.numpy()[rows], train.y.numpy()[rows]
            part = splitting.group_split(*of_rows, (1 - public_share, public_share), rng, reached=(0,))
            public_rows = rows[part == 1]
    rows = np.setdiff1d(rows, public_rows, assume_unique=True)
    if not 1 <= clients <= len(rows):
        need = f"need 1 to {len(rows)} clients"
        raise ConfigError(f"scenario.clients = {clients}: {name} has {len(rows)} training samples; {need}")
    if not 0 <= val < 1:
        raise ConfigError(f"scenario.val = {val}: the share held out for validation must be in [0, 1)")
    if len(rows) < len(train) and not partition.takes_thinned:
        problem = "this partition names samples of the whole source; none may be left out"
        raise ConfigError(f"scenario.skews, scenario.public, scenario.held_out.domain: {problem}")
    dealt = _deal(partition, train, _with_validation(splits), rows, clients, streams.numpy("partition"), left_out)
    if splits.validation:
        dealt = _with_given_validation(dealt, len(test), len(train) - splits.validation)
    rng = streams.numpy("split")
    if split is not None:
        whole = dealt if left_out is None else replace(dealt, test=dealt.test.renumber(left_out.other_test))
        scenario = _pooled(name, splits, whole, split, rng)
    else:
        of_others = (
            splits if left_out is None else replace(splits, test=test.take(torch.from_numpy(left_out.other_test)))
        )
        scenario = _official(name, of_others, dealt, val, rng)
    dealt_rows = np.concatenate([scenario.train.order, scenario.val.order])
    repeated = repeated_samples_notes(scenario.train_set, dealt_rows, scenario.test_set)
    if tests == "matched":
        if split is not None:
            raise ConfigError("scenario.tests = 'matched': with split, each client is tested on its own samples")
        scenario = _matched(scenario, streams.numpy("tests"))
    stored = scenario.train_set.x
    for skew, stream in zip(skews, skew_streams, strict=True):
        scenario = skew.apply(scenario, stream.numpy("apply"))
    if left_out is not None:
        alone = Dealt(Views.from_lists([left_out.train]), Views.from_lists([left_out.test]))
        rng = streams.numpy("held_out")
        newcomer = _official(name, splits, alone, val, rng)
        if split is not None:
            newcomer = _pooled(name, splits, alone, split, rng)
        scenario = left_out.add_to(scenario, newcomer)
    elif held_out is not None:
        scenario = without_newcomers(scenario, held_out.draw(scenario, streams.numpy("held_out")))
    moments = None
    if splits.own_moments and scenario.newcomers is not None:  # in stored units, over what clients train on
        rows_in_order = torch.from_numpy(np.sort(scenario.train.order))
        moments = [torch.tensor(moment) for moment in channel_moments(scenario.train_set.x[rows_in_order].numpy())]
    if attack is not None:
        scenario = attack.add_to(scenario, streams.numpy("attack"))
    if splits.rules and scenario.train_set.x is not stored:
        raise ConfigError("scenario.incomplete = 'impute': a skew or an attack changes features; leave it out, or drop")
    if public:
        public_set = train.take(torch.from_numpy(np.sort(public_rows))) if isinstance(public, float) else public
        scenario = replace(scenario, public=public_set)
    takes_dealt_tests = tests == "shares" and (split is None or split.pool == "all")
    about_dealing = dealt.notes if takes_dealt_tests or splits.validation or not dealt.accepted else ()
    scenario = replace(
        scenario,
        notes=splits.notes + about_dealing + repeated + scenario.notes,
        source_digest=sets_digest([train, test]),
        by_owners=isinstance(partition, Natural),
        suspect=splits.suspect,
        flow=splits.flow,
    )
    refuse_crossing_groups(scenario)
    scenario = replace(scenario, notes=scenario.notes + _recording_notes(scenario) + group_notes(scenario))
    scenario = scenario if moments is None else _with_moments(scenario, *moments)
    scenario = _standardised(scenario, splits.numeric_features) if splits.numeric_features else scenario
    if not splits.rules and isinstance(public, Dataset) and bool(public.x.isnan().any()):
        raise ConfigError("scenario.public.incomplete = 'impute': the clients' source imputes nothing; take drop")
    return impute_scenario(scenario, splits.rules) if splits.rules else scenario


def _recording_notes(scenario: Scenario) -> tuple[str, ...]:
    """Return a note on labels that one client alone records. Raises `ConfigError` for a client without any."""
    if not scenario.train_set.multi:
        return ()
    recorded = recorded_labels(scenario) > 0
    without = np.flatnonzero(~recorded.any(1) & (scenario.train.sizes > 0))
    if len(without):
        raise ConfigError(
            f"scenario.labels = multi: {len(without):,} of {scenario.clients:,} clients record none of the labels, the "
            f"first client {without[0]} ({scenario.train.sizes[without[0]]:,} training samples); leave them out"
        )
    alone = [name for name, n in zip(scenario.class_names, recorded.sum(0), strict=True) if n == 1 < scenario.clients]
    return (f"labels that one client alone records ({len(alone)}): {', '.join(alone)[:200]}",) if alone else ()


def _deal(
    partition: Partition,
    train: Dataset,
    test: Dataset,
    rows: Indices,
    clients: int,
    rng: np.random.Generator,
    left_out: LeftOutDomain | None = None,
) -> Dealt:
    """Deal the training samples `rows`; return views in indices of the whole set. With a domain left out, test views
    are in indices of the test samples of the others."""
    if not partition.takes_multi:
        others = ", ".join(name for name, kind in PARTITIONS if kind.takes_multi)
        train.require_one_class(f"partition {partition.kind}", f"take one of {others}")
    dealt_set = train
    if left_out is not None:
        dealt_set, test = left_out.labels_of_others(train, rows), left_out.labels_of_others(test, left_out.other_test)
    elif len(rows) < len(train):
        dealt_set = train.without_values(rows)
    if test.classes != train.classes:  # unknown classes: no client's class mix covers them
        test = test.head(0)
    dealt = partition.deal(dealt_set, test, clients, rng)
    if partition.deals != "rows" and dealt_set.group is not None:
        views = [_whole_groups(*part, partition, rng) for part in ((dealt.train, dealt_set), (dealt.test, test))]
        if ((views[0].sizes == 0) & (dealt.train.sizes > 0)).any():
            count = len(np.unique(dealt_set.group))
            raise partition.refusal(f"{count:,} groups cannot give each of {clients:,} clients one; lower clients")
        dealt = replace(dealt, train=views[0], test=views[1])
    return dealt if dealt_set is train else replace(dealt, train=dealt.train.renumber(rows))


def _whole_groups(dealt: Views, data: Dataset, partition: Partition, rng: np.random.Generator) -> Views:
    """Deal whole groups in place of the rows of a dealing, those of each domain apart where clients are of one."""
    if data.group is None or len(np.unique(dealt.order)) < len(dealt.order):  # clients may share test samples
        return dealt
    owner, domain = np.full(len(data), -1, np.int64), np.zeros(len(data), np.int64)
    if partition.deals == "domains" and data.domain is not None:
        domain = data.domain.numpy()
    for number in np.unique(domain):
        chosen = splitting.select(dealt, domain[dealt.order] == number)
        views = splitting.deal_groups(chosen, data.group.numpy(), data.y.numpy(), rng)
        owner[views.order] = views.holders()
    return Views.from_owners(owner, len(dealt))


def _with_validation(splits: Splits) -> Dataset:
    """Return the test set, followed by the labels of given validation samples, which are dealt as test samples are."""
    if not splits.validation:
        return splits.test
    val = splits.train.take(slice(len(splits.train) - splits.validation, None))
    return _joined(replace(splits.test, x=splits.test.x[:, :0]), replace(val, x=val.x[:, :0]))


def _with_given_validation(dealt: Dealt, tests: int, first: int) -> Dealt:
    """Part views of `tests` test samples and the validation samples behind them, which begin at `first` in training."""
    is_val = dealt.test.order >= tests
    test, val = (splitting.select(dealt.test, chosen) for chosen in (~is_val, is_val))
    note = f"validation samples: the {int(is_val.sum()):,} given ones; scenario.val is not used"
    return replace(dealt, test=test, val=Views(val.order - tests + first, val.offsets), notes=(*dealt.notes, note))


def _official(name: str, splits: Splits, dealt: Dealt, val: float, rng: np.random.Generator) -> Scenario:
    if dealt.test_rows != "official":
        pool = "train" if dealt.test_rows == "train" else "all"
        remedy = f"set split with pool={pool}"
        raise ConfigError(f"partition indices: the file's test lists are of the clients' own pool; {remedy}")
    train_views, val_views = dealt.train, dealt.val
    if val_views is None:
        parts = splitting.split_groups(dealt.train, splits.train, (1 - val, val), rng, reached=(0,))
        train_views, val_views = splitting.hold_out(dealt.train, val, rng) if parts is None else parts
    return Scenario(name, splits.train, splits.test, train_views, val_views, dealt.test, dealt.draws, dealt.accepted)


def _pooled(name: str, splits: Splits, dealt: Dealt, split: OwnSplit, rng: np.random.Generator) -> Scenario:
    train, test = splits.train, splits.test
    data = train
    if split.pool == "all":
        if train.classes != test.classes or train.input_shape != test.input_shape:
            raise ConfigError("scenario.split.pool = 'all': the test set has other classes or shapes; use pool=train")
        data = _joined(train, test)
    if dealt.val is not None:
        if dealt.test_rows != split.rows:
            raise ConfigError(
                f"partition indices: the file's test lists are of {dealt.test_rows}, scenario.split.pool = "
                f"'{split.pool}' takes them from {split.rows}"
            )
        split_views: Sequence[Views] = (dealt.train, dealt.val, dealt.test)
    else:
        views = dealt.train
        if split.pool == "all":
            views = _merged(views, dealt.test.renumber(np.arange(len(test), dtype=np.int64) + len(train)))
        total = split.train + split.val + split.test
        shares = split.val / total, split.test / total
        parts = splitting.split_groups(views, data, (split.train / total, *shares), rng)
        split_views = parts or splitting.split_three(views, data.y.numpy(), data.num_classes, *shares, rng)
    test_rows = split_views[2].order
    tests = Views(np.arange(len(test_rows), dtype=np.int64), split_views[2].offsets)
    test_set = data.take(torch.from_numpy(test_rows))
    draws = dealt.draws, dealt.accepted
    return Scenario(name, data, test_set, split_views[0], split_views[1], tests, *draws, split.rows, test_rows)


def _matched(scenario: Scenario, rng: np.random.Generator) -> Scenario:
    scenario.train_set.require_one_class("scenario.tests = 'matched'", "take shares")
    labels, test_labels = scenario.train_set.y.numpy(), scenario.test_set.y.numpy()
    train_and_val = _merged(scenario.train, scenario.val)  # the client's mix, whatever is held out
    test_views = splitting.matched_tests(train_and_val, labels, test_labels, scenario.num_classes, rng)
    if isinstance(test_views, int):
        problem = f"client {test_views} holds a class without test samples; use shares"
        raise ConfigError(f"scenario.tests = 'matched': {problem}")
    return replace(scenario, test=test_views)


def _standardised(scenario: Scenario, measured: Sequence[int]) -> Scenario:
    """Give the features `measured` mean 0 and deviation 1 over the training views; a constant one is centred."""
    data, rows = scenario.train_set, torch.from_numpy(scenario.train.order)
    mean, std = torch.zeros(data.input_shape[0]), torch.ones(data.input_shape[0])
    for feature in measured:
        values = data.x[rows, feature].numpy().astype(np.float64)
        values = values[~np.isnan(values)]
        varies = values.size > 0 and values.min() < values.max()  # not the rounding error of the mean
        mean[feature] = float(values.mean()) if values.size else 0.0
        std[feature] = float(values.std()) if varies else 1.0
    return _with_moments(scenario, mean, std)


def _with_moments(scenario: Scenario, mean: Tensor, std: Tensor) -> Scenario:
    return with_sets(scenario, lambda samples: replace(samples, mean=mean, std=std))


def _merged(first: Views, second: Views) -> Views:
    order = np.concatenate([first.order, second.order])
    holders = np.concatenate([first.holders(), second.holders()])
    # A stable sort keeps the samples of `first` in front within each client.
    return Views(order[np.argsort(holders, kind="stable")], splitting.starts(first.sizes + second.sizes))


def _joined(first: Dataset, second: Dataset) -> Dataset:
    pairs = {key: (getattr(first, key), getattr(second, key)) for key in ("x", "y", *IDS)}
    joined: dict[str, Any] = {
        key: None if any(part is None for part in parts) else torch.cat(parts) for key, parts in pairs.items()
    }
    return replace(first, **joined)
