"""Label shares of a client, from its upload: read off if it has counts, else inferred from the last layer.

The bias of class c moves along the share of c in the client's labels minus the mean probability that the net gives to
c: Zhao et al. 2020 (iDLG, arXiv 2001.02610) for one sample, Wainakh et al. 2022 (LLG, PoPETs, arXiv 2105.09369) for
batches.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedloom.core.records import Record, Value
from fedloom.core.tables import ClassTable

Source = Literal["counts", "shares", "last layer and mask", "last layer", "mask", "nothing"]


@dataclass(frozen=True, slots=True)
class LabelGuess:
    """A client's label shares [C], float64, and the entries that reveal them; the shares are uniform for "nothing"."""

    shares: Tensor
    source: Source


def infer_labels(upload: Record, received: Record, num_classes: int, changes: Collection[str] = ()) -> LabelGuess:
    """Infer a client's label shares from one upload, by what tells most.

    Counts and shares by class are read off. Otherwise the change of the last layer is scaled such that the class whose
    output fell most has no sample, among the classes in the masks. Masks alone give equal shares to these classes.

    upload: the client's, unpacked. received: the payload that it had received. num_classes: C. changes: names of
    entries that are changes already, `Sent(form="change")`; other trees are weights.
    """
    for value in upload.values():
        if isinstance(value, Tensor) and value.shape == (num_classes,) and _counts(value):
            return LabelGuess(_as_shares(value.double(), torch.ones(num_classes, dtype=torch.bool)), "counts")
        if isinstance(value, Tensor) and value.shape == (num_classes,) and _shares(value):
            return LabelGuess(value.double(), "shares")
    held = _held(upload, num_classes)
    before = {key: value for key, value in received.items() if key not in changes}
    scores = _last_layer(upload, before, num_classes)
    if scores is None:
        shares = _as_shares(held.double(), held)
        return LabelGuess(shares, "nothing" if bool(held.all()) else "mask")
    return LabelGuess(shares_of_scores(scores, held), "last layer" if bool(held.all()) else "last layer and mask")


def shares_of_scores(scores: Tensor, held: Tensor | None = None) -> Tensor:
    """Return label shares [C] that are proportional to scores above the lowest one; uniform where all are equal.

    scores: a number for each class [C] that grows with its share: the change of the last bias, or of the sums of the
    last layer's rows. held: the classes [C] (bool) that the client is known to have; None for any.

    Example:
        >>> shares_of_scores(torch.tensor([0.1, -0.2, -0.2, 0.0]))
        tensor([0.6000, 0.0000, 0.0000, 0.4000], dtype=torch.float64)
    """
    known = torch.ones(len(scores), dtype=torch.bool) if held is None else held
    finite = torch.nan_to_num(scores.double())
    return _as_shares(finite - finite.min(), known)


def _counts(value: Tensor) -> bool:
    """Whether a tensor counts samples; `+dp` replaces counts by ones."""
    return not value.is_floating_point() and value.dtype != torch.bool and bool((value != 1).any())


def _shares(value: Tensor) -> bool:
    """Whether a tensor holds shares of samples, of more than one class: a mask of one class sums to 1 as well."""
    whole = value.is_floating_point() and bool((value >= 0).all()) and abs(float(value.double().sum()) - 1) < 1e-5
    return whole and bool((value != 1).all())


def _held(upload: Record, num_classes: int) -> Tensor:
    """The classes that all class tables and masks of an upload hold [C] (bool); all, if none holds any."""
    held = torch.ones(num_classes, dtype=torch.bool)
    for value in upload.values():
        mask = value.held if isinstance(value, ClassTable) else value
        if not isinstance(mask, Tensor) or not mask.dim() or mask.shape[-1] != num_classes:
            continue
        if mask.is_floating_point() and mask.dim() == 1 and bool(((mask == 0) | (mask == 1)).all()):
            mask = mask.bool()  # as pFedFDA sends it, for a mean
        if mask.dtype == torch.bool and bool(mask.any()):
            held = held & mask.reshape(-1, num_classes).any(0)
    return held


def _last_layer(upload: Record, received: Record, num_classes: int) -> Tensor | None:
    """The change of the last layer's bias [C], or of the sums of its rows where it has none; None if it is not sent."""
    for kind in ("bias", "weight"):
        for key, value in upload.items():
            for name, tensor in _tree(value).items():
                block, _, entry = name.rpartition(".")
                if (block.rpartition(".")[2] or key) != "head" or entry != kind or len(tensor) != num_classes:
                    continue
                before = _tree(received.get(key)).get(name)
                change = tensor.double() - (before.double() if before is not None else 0.0)
                # A frozen layer does not change and says nothing, so the next entry is tried.
                if bool(change.count_nonzero()):
                    return change if kind == "bias" else change.sum(1)
    return None


def _tree(value: Value | None) -> Mapping[str, Tensor]:
    return value if isinstance(value, dict) else {}


def _as_shares(amounts: Tensor, among: Tensor) -> Tensor:
    """Amounts [C] of 0 or more over their sum, of the classes `among`; equal shares of these where the sum is 0."""
    kept = torch.where(among, amounts, 0.0)
    total = kept.sum()
    return kept / total if float(total) > 0 else among.double() / among.sum()
