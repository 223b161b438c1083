"""Data that are in memory already: arrays and torch datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import ImageSource, Normalise, Parsed, Part, own_moments, validated
from fedloom.data.sources.npz import channels_first
from fedloom.data.sources.source import Splits
from fedloom.data.sources.train_test_split import stratified

ArrayLike = Any
"""Anything that numpy takes, torch tensors included."""


def from_arrays(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    classes: Sequence[str] | None = None,
    domain: ArrayLike | None = None,
    domain_test: ArrayLike | None = None,
    domains: Sequence[str] = (),
    tokens: bool = False,
    normalise: Normalise = "own",
    test_share: float = 0.2,
) -> Splits:
    """Splits for `make_scenario` from samples x [n, ...] and integer labels y [n].

    Images are [n, h, w], [n, h, w, c] or [n, c, h, w], uint8 or real; features [n, d]; with `tokens` ids [n, length].
    Without a test set, `test_share` of each class is held out (seed 0). `domain` [n] holds indices into `domains`.
    `normalise`: own (moments of the training set), unit or half, see `ImageSource`. Images uint8 [n, c, h, w] in
    writable memory are not copied. Raises `DataError` for arrays that do not fit.
    """
    if (x_test is None) != (y_test is None):
        raise DataError("from_arrays: x_test and y_test belong together; give both or neither")
    train = _part(x_train, y_train, domain, tokens)
    if x_test is None or y_test is None:
        if train.x.ndim == 0 or train.y.shape != train.x.shape[:1]:
            raise DataError(f"from_arrays: samples of shape {train.x.shape} but labels of shape {train.y.shape}")
        rows = stratified(train.y, test_share, np.random.default_rng(0), "from_arrays")
        train, test = (
            Part(train.x[part], train.y[part], None if train.domain is None else train.domain[part]) for part in rows
        )
    else:
        test = _part(x_test, y_test, domain_test, tokens)
    if classes is None:
        highest = max((int(p.y.max()) for p in (train, test) if p.y.size and p.y.dtype.kind in "iu"), default=0)
        classes = [str(c) for c in range(highest + 1)]
    splits = validated(Parsed("from_arrays", train, test, tuple(classes), tuple(domains), tokens))
    return ImageSource(normalise=normalise).scaled(splits, own_moments(splits.train))


def from_torch(train: Any, test: Any | None = None, **keys: Any) -> Splits:
    """Splits from torch datasets whose items are (sample, label): each item is read once, in order.

    Samples are tensors, arrays or PIL images of one shape. `keys` are those of `from_arrays`; class names are taken
    from the dataset's own `classes` if it has them. Raises `DataError` for items that are no such pairs.
    """
    names = getattr(train, "classes", None)
    if names is not None:
        keys.setdefault("classes", [str(name) for name in names])
    x, y = _items(train, "train")
    return from_arrays(x, y, *(() if test is None else _items(test, "test")), **keys)


def _part(x: ArrayLike, y: ArrayLike, domain: ArrayLike | None, tokens: bool) -> Part:
    samples, labels = (value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value for value in (x, y))
    samples = np.asarray(samples)
    return Part(
        samples if tokens else channels_first(samples),
        np.asarray(labels),
        None if domain is None else np.asarray(domain),
    )


def _items(data: Any, part: str) -> tuple[np.ndarray, np.ndarray]:
    samples: list[np.ndarray] = []
    labels: list[int] = []
    for row in range(len(data)):
        item = data[row]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"from_torch: item {row} of {part} is a {type(item).__name__}; need (sample, label)")
        sample, label = np.asarray(item[0]), np.asarray(item[1])
        if label.ndim > 0 or label.dtype.kind not in "iu":
            raise DataError(f"from_torch: label {row} of {part} is {item[1]!r}; need an integer")
        if samples and sample.shape != samples[0].shape:
            raise DataError(f"from_torch: item {row} of {part} has shape {sample.shape}, item 0 {samples[0].shape}")
        samples.append(sample)
        labels.append(int(label))
    if not samples:
        raise DataError(f"from_torch: {part} holds no items")
    return np.stack(samples), np.array(labels, np.int64)
