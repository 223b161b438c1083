"""Contrast between samples and class prototypes, by matrix products: no tensor of size batch x prototypes x d.

What is small costs by the call, so the prototypes are prepared once a round, and the gradient is written out.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

import fedloom.methods as fm

# Added to scores that do not count: finite, so that rows without any that counts have no NaN.
_NEVER = -1e30


class Scaling(Protocol):
    """The temperature, and the normaliser U: per batch, over the client's data set (a statistic "scale"), or none."""

    @property
    def scale(self) -> str: ...

    @property
    def detach_scale(self) -> bool: ...

    @property
    def tau(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Cosines:
    """The `Scaling` of cosines that are divided by a temperature and nothing else."""

    tau: float
    scale: str = "none"
    detach_scale: bool = False


@dataclass(frozen=True, slots=True)
class Prototypes:
    """A round's Q prototypes, and which of them attract and repel the samples of each class.

    rows [Q, d]; squares: |p|^2, and inverse_lengths: 1 / |p|, [Q]. By class: members [C, K], positions of its
    positives, padded (None if class j's is j); bias [C, K], 0, or very negative for padding (None without any); pool
    [C, Q] bool, the denominator (None if it is everything); defined [C] bool, has a positive (None if all have);
    attracting [C], the number of positives, at least 1.
    """

    rows: Tensor
    squares: Tensor
    inverse_lengths: Tensor
    members: Tensor | None
    bias: Tensor | None
    attracting: Tensor
    pool: Tensor | None
    defined: Tensor | None

    def rows_like(self, z: Tensor) -> Tensor:
        """The rows in the dtype of features z: they come in float32, and a net may compute in float64."""
        return self.rows.to(z.dtype)


def distances_to(z: Tensor, prototypes: Prototypes) -> Tensor:
    """Distances [B, Q] of z [B, d] to every prototype."""
    return torch.cdist(z, prototypes.rows_like(z))


def prototypes_of(rows: Tensor, positives: Tensor, negatives: Tensor, *, all_rows: bool = False) -> Prototypes:
    """Prototypes out of rows [m, C, d]: positives [m, C] bool attract samples of their class, negatives repel others.

    Rows that are neither are left out, unless `all_rows`.
    """
    holders, classes, width = rows.shape
    attract, repel = positives.reshape(-1), negatives.reshape(-1)
    selected = torch.ones_like(attract) if all_rows else attract | repel
    # further rows that no class refers to: where nothing is held, and for a number that other rounds have, too
    unused = (~selected).nonzero().flatten()
    selected[unused[: _common_size(int(selected.sum())) - int(selected.sum())]] = True
    prototypes, attract, repel = rows.reshape(-1, width)[selected], attract[selected], repel[selected]
    owner = torch.arange(classes).repeat(holders)[selected]
    is_own_class = owner == torch.arange(classes).unsqueeze(1)  # [C, Q]
    attracting = is_own_class & attract
    max_members = min(len(prototypes), _common_size(int(attracting.sum(1).max())))
    order = attracting.to(torch.int8).sort(dim=1, descending=True, stable=True)
    members, is_member = order.indices[:, :max_members], order.values[:, :max_members].bool()
    in_order = (members.flatten() == torch.arange(members.numel())).all()
    pool, defined = torch.where(is_own_class, attract, repel), attracting.any(1)
    lengths = prototypes.norm(dim=1)
    return Prototypes(
        rows=prototypes,
        squares=lengths.square(),
        inverse_lengths=torch.where(lengths > 1e-12, 1 / lengths, 0.0),
        members=None if members.shape == (len(prototypes), 1) and bool(in_order) else members,
        bias=None if max_members == 1 or is_member.all() else torch.where(is_member, 0.0, _NEVER).to(rows.dtype),
        attracting=is_member.sum(1).clamp(min=1).to(rows.dtype),
        pool=None if pool.all() else pool,
        defined=None if defined.all() else defined,
    )


def _common_size(size: int) -> int:
    """Return the least size from 1 on, at most a quarter above `size`, of few: 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32.

    Recorded steps belong to sizes, and the number of prototypes differs from round to round.
    """
    step = max(1, 1 << max(0, size.bit_length() - 3))
    return max(1, -(-size // step) * step)


class _Latest(NamedTuple):
    """A result of `prototypes_of_table`, and of what."""

    table: fm.ClassTable
    versions: tuple[int, int]
    all_rows: bool
    prototypes: Prototypes


_latest: list[_Latest] = []  # one, or none


def prototypes_of_table(table: fm.ClassTable, *, all_rows: bool = False) -> Prototypes:
    """Prototypes out of a table [C, d] or [m, C, d] whose rows attract samples of their class and repel the others.

    All clients of a round get the same table, so the latest result is kept, and returned for the same tensors.

    table: what the server sent. all_rows: keep rows that nobody holds.
    """
    values, held = table.values, table.held
    versions = values._version, held._version  # they count changes in place
    for latest in _latest:
        same = latest.table.values is values and latest.table.held is held
        if same and (latest.versions, latest.all_rows) == (versions, all_rows):
            return latest.prototypes
    rows, holders = (values, held) if values.dim() == 3 else (values.unsqueeze(0), held.unsqueeze(0))
    prototypes = prototypes_of(rows, holders, holders, all_rows=all_rows)
    _latest[:] = [_Latest(table, versions, all_rows, prototypes)]
    return prototypes


def ramped(weight: float, round_: int, rounds: int, like: Tensor) -> Tensor:
    """Return a weight [] that grows linearly to `weight` over the first `rounds` rounds; at once for 0.

    It is a tensor because a number would be part of what a recorded step is, and each round's another.

    weight: the final weight. round_: the current round, which counts from 1. rounds: length of the ramp. like: a tensor
    whose dtype the weight gets.
    """
    return torch.tensor(weight * (min(1.0, round_ / rounds) if rounds else 1.0), dtype=like.dtype)


def unit(rows: Tensor) -> Tensor:
    """rows [Q, d] divided by their norms; a row without length stays zero, and gets no gradient.

    Example:
        >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return rows * _inverse_norms(rows.square().sum(1, keepdim=True))


def _inverse_norms(squares: Tensor) -> Tensor:
    """1 / |z| from |z|^2, and 0 for rows without length: 1e12 as the gradient of features that died helps nobody."""
    inverse: Tensor = torch.where(squares > 1e-24, squares, torch.inf).rsqrt()
    return inverse


def mean_distances(lengths: Tensor, dots: Tensor, squares: Tensor, batch: fm.Batch) -> Tensor:
    """U: mean over the batch of |z_i - p_q|_2, clamped at 1e-6: [Q].

    A difference of squares cancels: in float32 a distance has a relative error of up to about 4e-7 (|p| / |z - p|)^2.
    That is 0.4 % at a hundredth of |p|; below a thousandth nothing of the distance is left.

    lengths: |z_i|^2 [B, 1]. dots: the products z_i . p_q [B, Q], which are there anyway. squares: |p_q|^2 [Q]. batch:
    the mask of the rows that count.
    """
    distances = torch.add(squares, dots, alpha=-2).add(lengths).clamp(min=1e-12).sqrt()
    mean = batch.mean(distances)
    return mean if batch.mask is None else mean.clamp(min=1e-6)  # 0 where no sample counts


def _factors(lengths: Tensor, dots: Tensor, batch: fm.Batch, consts: fm.Consts, options: Scaling) -> Tensor:
    """1 / (|p| U tau) of every prototype: [Q]."""
    inverse: Tensor = consts["prototypes"].inverse_lengths / options.tau
    if options.scale == "none":
        return inverse
    if options.scale == "dataset":
        scale: Tensor = consts["scale"].clamp(min=1e-6)
        return inverse / scale
    return inverse / mean_distances(lengths, dots, consts["prototypes"].squares, batch)


def scaled_similarities(z: Tensor, batch: fm.Batch, consts: fm.Consts, options: Scaling) -> Tensor:
    """Return s / tau [B, Q]: cosines of z to every prototype, divided by that prototype's U and the temperature.

    z: features [B, d]. batch: the mask of the rows that count for U. consts: "prototypes" (`Prototypes`), and "scale"
    [Q] where U is the data set's. options: temperature tau and the scale U; with `detach_scale`, U has no gradient.
    """
    squares, dots = z.square().sum(1, keepdim=True), z @ consts["prototypes"].rows_like(z).T
    with torch.set_grad_enabled(torch.is_grad_enabled() and not options.detach_scale):
        factors = _factors(squares, dots, batch, consts, options)
    scores: Tensor = dots * _inverse_norms(squares) * factors
    return scores


def prototype_contrast(z: Tensor, batch: fm.Batch, consts: fm.Consts, options: Scaling) -> tuple[Tensor, Tensor | None]:
    """-log( sum over own-class positives of exp(s / tau) / sum over the class's pool of exp(s / tau) ).

    z: features [B, d]. batch: labels and mask. consts: "prototypes", and "scale" [Q] if `options.scale` is "dataset"; s
    is `scaled_similarities`. options: temperature tau and the scale U; with `detach_scale`, U has no gradient.

    Returns losses [B] (finite, but meaningless where undefined) and defined [B] (None if all are: every class has a
    positive).
    """
    prototypes: Prototypes = consts["prototypes"]
    members = batch.y.unsqueeze(1) if prototypes.members is None else prototypes.members[batch.y]
    bias, pool, defined = (
        None if t is None else t[batch.y] for t in (prototypes.bias, prototypes.pool, prototypes.defined)
    )
    if options.scale == "batch" and not options.detach_scale:  # U has a gradient, too
        losses, *_ = contrast_of(scaled_similarities(z, batch, consts, options), members, bias, pool)
        return losses, defined
    with torch.no_grad():
        squares, dots = z.square().sum(1, keepdim=True), z @ consts["prototypes"].rows_like(z).T
        factors, inverse = _factors(squares, dots, batch, consts, options), _inverse_norms(squares)
        scores = dots.mul_(inverse).mul_(factors)
    inputs = (z, inverse, scores, factors, prototypes.rows_like(z), members, bias, pool)
    losses, *_ = _Contrast.apply(*inputs)  # type: ignore[no-untyped-call]
    return losses, defined


def contrast_of(scores: Tensor, members: Tensor, bias: Tensor | None, pool: Tensor | None) -> tuple[Tensor, ...]:
    """`prototype_contrast` of scores [B, Q]; members, bias [B, K] and pool [B, Q] by sample.

    Returns losses [B], log softmax over the pool [B, Q], and its values at the members [B, K].
    """
    if pool is not None:
        scores = torch.where(pool, scores, _NEVER)
    logs = torch.log_softmax(scores, dim=1)
    member_logs = logs.gather(1, members)
    member_logs = member_logs if bias is None else member_logs + bias
    losses = -member_logs.squeeze(1) if member_logs.shape[1] == 1 else -torch.logsumexp(member_logs, dim=1)
    return losses, logs, member_logs


class _Contrast(torch.autograd.Function):
    """`contrast_of` of scores that are z . p_q / |z| times factors: half the time of autograd's gradient.

    d loss / d score = softmax over the pool - softmax over the positives; d score_q / d z = factor_q (p_q / |z| -
    (p_q . z) z / |z|^3).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        z: Tensor,
        inverse: Tensor,
        scores: Tensor,
        factors: Tensor,
        prototypes: Tensor,
        members: Tensor,
        bias: Tensor | None,
        pool: Tensor | None,
    ) -> tuple[Tensor, ...]:
        return contrast_of(scores, members, bias, pool)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        z, inverse, _, factors, prototypes, members, _, _ = inputs
        losses, logs, member_logs = output
        ctx.mark_non_differentiable(logs, member_logs)
        ctx.save_for_backward(z, inverse, factors, prototypes, members, losses, logs, member_logs)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        z, inverse, factors, prototypes, members, losses, logs, member_logs = ctx.saved_tensors
        attracted = (
            torch.ones_like(member_logs) if member_logs.shape[1] == 1 else (member_logs + losses.unsqueeze(1)).exp()
        )
        pulls = logs.exp().scatter_add(1, members, -attracted) * factors
        moves = pulls @ prototypes
        directions = z * inverse
        along = (moves * directions).sum(1, keepdim=True)
        return torch.addcmul(moves, along, directions, value=-1) * (upstream.unsqueeze(1) * inverse), *(None,) * 7


def log_sum_exp(scores: Tensor, among: Tensor) -> Tensor:
    """log sum_q exp(scores[:, q]) over the q where `among` [B, Q] or [Q]: [B]; finite, but meaningless, without any.

    What is left out is set 60 below the smallest score: it adds e^-60 of a term (nothing in float64), keeps the
    gradients of rows without any member at 0 instead of NaN, and spares exp its slow path for infinities.
    """
    nothing = scores.detach().amin(dim=1, keepdim=True) - 60
    return torch.logsumexp(torch.where(among, scores, nothing), dim=1)
