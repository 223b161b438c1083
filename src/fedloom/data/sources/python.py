"""Data that Python code passes: arrays, torch datasets, one dataset a client."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.dataset import one_hot_hint
from fedloom.data.imputation import DropColumns, Impute, Incomplete
from fedloom.data.labels import as_string_array, class_ids, missing_marks, multi_labels, sorted_words
from fedloom.data.sources import cached
from fedloom.data.sources.cached import Normalise, ParsedSamples
from fedloom.data.sources.hf import from_huggingface
from fedloom.data.sources.npz import ArrayLike, as_array, channels_first, index_notes, layout_notes
from fedloom.data.sources.pixels import WHITE, PictureNotes
from fedloom.data.sources.source import (
    Labels,
    SharedGroups,
    Source,
    Splits,
    configure_source,
    drop_shared,
    number_groups,
    source,
    stratified_split,
)
from fedloom.data.views import Views, split_three

_READ_TWICE = 32  # items of a data set, to see whether they change


class _ReadSamples(NamedTuple):
    """Samples that were read one by one, with notes on the pictures among all samples of the set."""

    values: np.ndarray
    pictures: PictureNotes


def from_arrays(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    classes: Sequence[str] | None = None,
    owners: ArrayLike | None = None,
    owners_test: ArrayLike | None = None,
    domain: ArrayLike | None = None,
    domain_test: ArrayLike | None = None,
    domains: Sequence[str] = (),
    tokens: bool = False,
    normalise: Normalise = "own",
    standardise: bool = False,
    test_share: float = 0.2,
    groups: ArrayLike | None = None,
    groups_test: ArrayLike | None = None,
    shared_groups: SharedGroups = "refuse",
    labels: Labels = "single",
    incomplete: Incomplete = "refuse",
    drop_columns: DropColumns | None = None,
    impute: Impute | None = None,
) -> Splits:
    """Make splits for `make_scenario` from arrays in memory.

    Args:
        x_train: samples: images [n, h, w], [n, h, w, c] or [n, c, h, w], uint8 or real, or a list of Pillow's; volumes
            [n, c, d, h, w]; features [n, d]; with `tokens` ids [n, length]. Images uint8 [n, c, h, w] in writable
            memory are not copied.
        y_train: labels [n]. Whole numbers 0 .. C-1 are class ids, in the order of `classes`; other numbers and words
            name their class.
        x_test: test samples; None holds out `test_share` of the training samples.
        y_test: labels of the test samples.
        classes: names of the classes; None takes those that the labels have.
        owners: whose each sample is [n], by number or word: each owner becomes a client.
        owners_test: the same for the test samples.
        domain: indices [n] into the names `domains`, instead of owners.
        domain_test: the same for the test samples.
        tokens: whether samples are token ids.
        normalise: "own" (moments of the training set), "unit" or "half", see `ImageSource`.
        standardise: features [n, d] get mean 0 and deviation 1 over what clients train on, when the scenario is made.
        test_share: share of each class, in (0, 1), that is held out without a test set (seed 0); with owners, of each
            owner's samples, rounded down and spread over the owner's classes.
        groups: group of each sample [n], such as its person, by number or word: no group is parted between training,
            validation and test samples.
        groups_test: the same for the test samples.
        shared_groups: what to do with groups that a given test set shares with the training set: "refuse", or leave
            their samples out of one ("drop_test", "drop_train").
        labels: "multi" takes labels [n, L] that do not exclude each other: 1, 0, and -1 or NaN where a label was not
            recorded; `classes` are their names, by default those of a data frame's columns.
        incomplete: what to do with features [n, d] that are missing (NaN): "refuse", "drop" their rows, or "impute".
        drop_columns: {"above": share} first leaves out features that lack more than a share of the training cells.
        impute: by which values, for "impute".

    Raises `DataError` for arrays that do not fit.
    """
    origin = "from_arrays"
    x_train, pictures = x_train if isinstance(x_train, _ReadSamples) else (x_train, PictureNotes())
    if (x_test is None) != (y_test is None):
        raise DataError(f"{origin}: x_test and y_test belong together; give both or neither")
    if owners is not None and domain is not None:
        raise DataError(f"{origin}: owners and domain both say where samples come from; give one of them")
    if x_test is None and (owners_test is not None or domain_test is not None):
        raise DataError(f"{origin}: owners_test and domain_test belong to x_test, which is not given")
    if (groups_test is None) == (groups is not None and x_test is not None):
        raise DataError(f"{origin}: groups_test are the groups of x_test; give them with groups and x_test, or none")
    notes = [*index_notes(x_train, y_train), *index_notes(x_test, y_test)]
    x = [as_array(samples, origin, pictures) for samples in (x_train, x_test) if samples is not None]
    y = [as_array(labels, origin) for labels in (y_train, y_test) if labels is not None]
    if not tokens:
        notes += layout_notes(x[0].shape[1:])
        x = [channels_first(samples) for samples in x]
    multi = labels == "multi"
    for samples, of in zip(x, y, strict=True):
        if samples.ndim == 0 or of.shape[:1] != samples.shape[:1]:
            raise DataError(f"{origin}: samples of shape {samples.shape} but labels of shape {of.shape}")
        if of.ndim == 2 and of.shape[1] > 1 and not multi:
            raise DataError(f"{origin}: labels of shape {of.shape}{one_hot_hint(samples, of)}")
    if multi and classes is None and hasattr(y_train, "columns"):
        classes = [str(name) for name in y_train.columns]
    ids, names = (multi_labels if multi else class_ids)(y, origin, classes)
    where = [None if of is None else as_array(of, origin) for of in (domain, domain_test)]
    if owners is not None:
        where, domains = owner_ids([owners, owners_test], [len(labels) for labels in y], origin)
        _refuse_missing_owners(where, domains, origin)
    group_ids = [as_array(of, origin) for of in (groups, groups_test) if of is not None]
    numbers = number_groups(group_ids, [*map(len, y)], origin) if group_ids else [None, None]
    parts = [ParsedSamples(*split_arrays) for split_arrays in zip(x, ids, where, numbers, strict=False)]
    part_origins = (origin, origin) if len(parts) == 1 else None
    if len(parts) == 1:
        parts = held_out(parts[0], test_share, len(names), owners is not None, origin)
    notes += pictures.sentences()
    white = WHITE if pictures.total else None
    parsed = cached.ParsedSplits(origin, parts[0], parts[1], names, tuple(domains), tokens, labels=labels)
    parsed = replace(parsed, white=white, notes=tuple(notes), part_origins=part_origins)
    parsed = cached.without_columns(parsed, drop_columns) if drop_columns else parsed
    splits = cached.checked_splits(replace(parsed, incomplete=incomplete))
    splits = cached.with_rules(splits, impute, origin) if incomplete == "impute" else splits
    shape = splits.train.input_shape
    if standardise and (len(shape) != 1 or tokens):
        raise DataError(f"from_arrays: standardise is for features [n, d], samples here have shape {shape}")
    measured = tuple(range(shape[0])) if standardise else ()
    scaling = configure_source(cached.ImageSource, normalise=normalise)
    scaled = scaling.normalised(splits, cached.training_moments(splits.train))
    scaled = replace(scaled, domains_are_owners=owners is not None, numeric_features=measured)
    return drop_shared(scaled, shared_groups)


def from_torch(train: Any, test: Any | None = None, *, frozen: bool = False, **keys: Any) -> Splits:
    """Make splits from torch datasets whose items are (sample, label): each item is read once, in order.

    Samples are tensors, arrays or PIL images of one shape; labels whole numbers or words, or with labels="multi" [L]
    of 1, 0 and -1. Class names are taken from the dataset's own `classes` if it has them.

    Args:
        train: the training set.
        test: the test set; without it, a share of the training set is held out.
        frozen: take items that change from reading to reading, as random augmentation makes them, as they are at first.
        keys: those of `from_arrays`.

    Raises `DataError` for items that are no such pairs, and for those that change.
    """
    names = getattr(train, "classes", None)
    if names is not None:
        keys.setdefault("classes", [str(name) for name in names])
    pictures = PictureNotes()
    twice = 0 if frozen else _READ_TWICE
    x, y = items(train, "train", pictures, twice)
    rest = () if test is None else items(test, "test", pictures, twice)
    return from_arrays(_ReadSamples(x, pictures), y, *rest, **keys)


def from_clients(
    clients: Sequence[Any], tests: Any = None, *, names: Sequence[str] | None = None, frozen: bool = False, **keys: Any
) -> Splits:
    """Make splits from one dataset a client.

    Args:
        clients: torch datasets of (sample, label), or pairs of arrays (x, y).
        tests: a list with one a client, or one dataset for all; without it a share of each client's samples is held
            out.
        names: names of the clients [N]; "0" .. by default.
        frozen: as in `from_torch`.
        keys: those of `from_arrays`.

    Raises `DataError` for clients without samples, and for samples or labels of different kinds.
    """
    if names is not None and len(set(names)) != len(clients):
        raise DataError(f"from_clients: {len(set(names))} different names for {len(clients)} clients; give one each")
    labelled = next((data.classes for data in clients if getattr(data, "classes", None) is not None), None)
    if labelled is not None:
        keys.setdefault("classes", [str(name) for name in labelled])
    pictures = PictureNotes()
    twice = 0 if frozen else -(-_READ_TWICE // max(1, len(clients)))
    x, y, owner = _stacked(clients, "client", pictures, twice)
    test: tuple[Any, ...] = (None, None)
    if isinstance(tests, list):
        if len(tests) != len(clients):
            raise DataError(f"from_clients: {len(tests)} test sets for {len(clients)} clients; give one each, or one")
        x_test, y_test, keys["owners_test"] = _stacked(tests, "test set", pictures, twice)
        test = x_test, y_test
    elif tests is not None:
        test = _pair(tests, "tests", pictures, twice)
    splits = from_arrays(_ReadSamples(x, pictures), y, *test, owners=owner, **keys)
    called = splits.train.domains if names is None else tuple(map(str, names))
    train, held = (replace(part, domains=called) for part in (splits.train, splits.test))
    return replace(splits, train=train, test=held)


def owner_ids(
    owners: Sequence[ArrayLike | None], samples: Sequence[int], origin: str
) -> tuple[list[np.ndarray | None], list[str]]:
    """Return ids [n] of the owners of each part's samples, and the owners' names in order. samples: number of each
    part. Raises `DataError`, with the origin, for owners that are no whole numbers or words."""
    words: list[np.ndarray | None] = []
    for of, count in zip(owners, samples, strict=False):
        plain = None if of is None else as_string_array(as_array(of, origin))
        if plain is not None and (plain.shape != (count,) or plain.dtype.kind not in "iuU"):
            need = f"need ({count},), whole numbers or words, and no gaps"
            raise DataError(f"{origin}: owners have shape {plain.shape} and dtype {plain.dtype}; {need}")
        words.append(None if plain is None else plain.astype(np.str_))
    present = [np.unique(part, return_inverse=True) for part in words if part is not None]
    owner_words = sorted_words(np.unique(np.concatenate([kinds for kinds, _ in present])))
    rank = {name: place for place, name in enumerate(owner_words)}
    ids = iter(np.array([rank[str(name)] for name in kinds], np.int64)[place] for kinds, place in present)
    return [None if part is None else next(ids) for part in words], owner_words


def _refuse_missing_owners(ids: Sequence[np.ndarray | None], owners: Sequence[str], origin: str) -> None:
    missing = {*missing_marks(owners)}
    marks = [number for number, name in enumerate(owners) if not name.strip() or name in missing]
    for role, part in zip(("owners", "owners_test"), ids, strict=False):
        lacking = np.isin(np.zeros(0) if part is None else part, marks)
        if part is not None and lacking.any():
            row = int(np.argmax(lacking))
            raise DataError(
                f"{origin}: {role} are '{owners[int(part[row])]}' for {int(lacking.sum()):,} of {len(part):,} samples, "
                f"the first {row}, which stands for a missing value as a rule; leave these samples out, or name their "
                "owner"
            )


def held_out(whole: ParsedSamples, share: float, classes: int, owned: bool, origin: str) -> list[ParsedSamples]:
    """Split the samples `whole` of the set `origin` into a training and a test part: a share of each of the `classes`
    (number), or of each owner's samples where they are owned. Raises `DataError` for what cannot be split."""
    if not 0 < share < 1:
        raise DataError(f"{origin}: test_share = {share}; need a share in (0, 1)")
    for kind, values in (("labels", whole.y), ("domain ids", whole.domain)):
        if values is not None and (values.shape[:1] != whole.x.shape[:1] or values.ndim > 2):
            raise DataError(f"{origin}: {kind} have shape {values.shape}; need ({len(whole.x)},)")
    rng = np.random.default_rng(0)
    if owned and whole.domain is not None and whole.group is not None:
        pairs = np.unique(np.stack([whole.domain, whole.group]), axis=1)
        # Where each owner is one group, as of persons, whole owners are held out.
        owners = whole.domain if np.bincount(pairs[0]).max() > 1 else None
        rows = stratified_split(whole.y, share, rng, origin, whole.group, owners)
    elif owned and whole.domain is not None:
        views = Views.from_owners(whole.domain, int(whole.domain.max(initial=0)) + 1)
        training, _, test = split_three(views, whole.y, classes, 0.0, share, rng)
        if not len(test.order):
            raise DataError(
                f"{origin}: no owner has samples enough to hold out {share:g} of them ({len(whole.y)} samples of "
                f"{len(np.unique(whole.domain))} owners); give a test set, or leave the owners out"
            )
        rows = training.order, test.order
    else:
        rows = stratified_split(whole.y, share, rng, origin, whole.group)
    return [whole.rows(part) for part in rows]


def items(data: Any, part: str, pictures: PictureNotes, twice: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples [n, ...] and the labels of a torch dataset, called `part` in messages, and count unusual
    `pictures`. The first `twice` of items spread over it are read again, and refused if they change. Raises `DataError`
    for items that are no pairs of a sample and a label."""
    samples: list[np.ndarray] = []
    labels: list[Any] = []
    try:
        length = len(data)
    except TypeError:
        problem = f"{part} is a {type(data).__name__} without a length"
        raise DataError(f"from_torch: {problem}; make it a list of (sample, label)") from None
    for row in range(length):
        try:
            entry = data[row]
        except (IndexError, KeyError) as error:
            why = f"{type(error).__name__} ({' '.join(str(error).split())[:100]})"
            what = f"{part} states {length:,} items by __len__, and its item {row:,} raises {why}"
            raise DataError(f"from_torch: {what}; mend __len__ or __getitem__") from error
        if not isinstance(entry, tuple | list) or len(entry) != 2:
            raise DataError(f"from_torch: item {row} of {part} is a {type(entry).__name__}; need (sample, label)")
        sample, label = (as_array(value, f"from_torch: item {row} of {part}", pictures) for value in entry)
        value = label.item() if label.size == 1 else label.tolist() if label.ndim == 1 else None
        if label.dtype.kind not in "biufU" or value is None or (isinstance(value, float) and not value.is_integer()):
            shown, hint = f"{entry[1]!r:.60}".split("\n")[0], one_hot_hint(label[None], label[None])
            raise DataError(f"from_torch: label {row} of {part} is {shown}; need an integer or a word{hint}")
        if samples and sample.shape != samples[0].shape:
            raise DataError(f"from_torch: item {row} of {part} has shape {sample.shape}, item 0 {samples[0].shape}")
        samples.append(sample)
        labels.append(int(value) if isinstance(value, float) else value)
    if not samples:
        raise DataError(f"from_torch: {part} holds no items")
    for row in range(0, length, -(-length // twice)) if twice else ():
        if as_array(data[row][0], part, PictureNotes()).tobytes() != samples[row].tobytes():
            raise DataError(
                f"from_torch: item {row} of {part} changes from reading to reading, and fedloom reads it once: "
                "augmentation would be frozen; leave it to the section `augment`, or keep this reading (frozen=True)"
            )
    if len({len(label) if isinstance(label, list) else type(label) for label in labels}) > 1:
        need = "need one kind"
        raise DataError(f"from_torch: labels of {part} are both words and numbers, or of several lengths; {need}")
    if isinstance(labels[0], list):  # several labels, or one-hot ones, which `from_arrays` refuses
        return np.stack(samples), np.array(labels)
    kind = np.str_ if isinstance(labels[0], str) else np.bool_ if isinstance(labels[0], bool) else np.int64
    try:
        return np.stack(samples), np.array(labels, kind)
    except OverflowError:
        raise DataError(f"from_torch: label {max(labels)} of {part} is no class: need whole numbers 0 .. C-1") from None


def is_pair(data: Any, multi: bool = False) -> bool:
    """Tell whether this is (x, y) with an array of labels, rather than (sample, label), or labels where `multi`."""
    return isinstance(data, tuple) and len(data) == 2 and np.ndim(as_array(data[1], "labels")) > multi


def _pair(data: Any, name: str, pictures: PictureNotes, twice: int) -> tuple[np.ndarray, np.ndarray]:
    if is_pair(data):
        return as_array(data[0], name, pictures), as_array(data[1], name)
    return items(data, name, pictures, twice)


def _stacked(
    datasets: Sequence[Any], what: str, pictures: PictureNotes, twice: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all samples, all labels, and whose they are: the place of the dataset in the list."""
    pairs = [_pair(data, f"{what} {place}", pictures, twice) for place, data in enumerate(datasets)]
    if not pairs:
        raise DataError("from_clients: the list is empty; need one dataset a client")
    for place, (x, y) in enumerate(pairs):
        if x.ndim == 0 or not len(x) or y.shape[:1] != x.shape[:1]:
            raise DataError(f"from_clients: {what} {place} has samples of shape {x.shape} and labels of {y.shape}")
        if _looks(x, y) != _looks(*pairs[0]):
            problem = f"{what} {place} holds {_looks(x, y)}, {what} 0 {_looks(*pairs[0])}; all must match"
            raise DataError(f"from_clients: {problem}")
    x, y = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    return x, y, np.repeat(np.arange(len(pairs)), [len(labels) for _, labels in pairs])


def _looks(x: np.ndarray, y: np.ndarray) -> str:
    """Return the shape and dtype that the samples of all sets must share."""
    kind = {"i": "whole", "u": "whole", "U": "words as"}.get(y.dtype.kind, str(y.dtype))
    values, several = "bytes" if x.dtype == np.uint8 else "numbers", f" of shape {y.shape[1:]}" if y.ndim > 1 else ""
    return f"{values} of shape {x.shape[1:]} with {kind} labels{several}"


def splits_from(data: Any, labels: Labels = "single") -> Splits:
    """Recognise data by their type; labels: as in `from_arrays`. Raises `DataError` for unsupported types."""
    if isinstance(data, Splits):
        return data
    # By the module's name, because importing datasets takes long, and it may not be installed.
    if type(data).__module__.partition(".")[0] == "datasets":
        return from_huggingface(data, labels=labels)
    if is_pair(data):  # also one label: `multi_labels` says what it lacks
        return from_arrays(*data, labels=labels)
    if isinstance(data, list) and data and (is_pair(data[0], labels == "multi") or is_dataset(data[0])):
        return from_clients(data, labels=labels)
    if isinstance(data, list) or is_dataset(data):
        return from_torch(data, labels=labels)
    need = (
        "need the name of a source, a data frame, a pair of arrays (x, y), a torch Dataset of (sample, label), a list "
        "of such datasets (one a client), a Hugging Face Dataset, or what fedloom.data.from_arrays and its like give"
    )
    raise DataError(f"fl.scenario: cannot read a {type(data).__name__} as data; {need}")


def is_dataset(data: Any) -> bool:
    """Whether `data` is indexed by row, as a torch Dataset is; texts, arrays and tables are not counted."""
    by_row = hasattr(data, "__getitem__") and not hasattr(data, "keys") and not hasattr(data, "shape")
    return by_row and not isinstance(data, Sequence)


@source("given")
class InMemory(Source):
    """A `Scenario` made in Python and passed to `fedloom.run`. It cannot be read again from its config."""

    digest: str = Field(description="Fingerprint of the scenario; a run folder can only be resumed with the same data.")

    def load(self) -> Splits:
        remedy = "pass it again: fedloom.run(scenario=...) resumes, result.evaluate(data=...) tests"
        raise DataError(f"source given: this run used a scenario made in Python; {remedy}")
