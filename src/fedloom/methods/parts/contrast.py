"""Contrast between samples and class prototypes, by matrix products: no tensor of size batch x prototypes x d.

Small operations cost by the call, so prototypes are prepared once per round, and the gradient is written out."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

import fedloom.methods as fm

# Added to scores that do not count: finite, so that rows without any that counts have no NaN.
_NEVER = -1e30


@dataclass(frozen=True, slots=True)
class Cosines:
    """Options of cosines that are divided by a temperature alone: no normaliser U (`scale`)."""

    tau: float
    scale: str = "none"
    detach_scale: bool = False


@dataclass(frozen=True, slots=True)
class Prototypes:
    """A round's Q prototypes, and which of them attract and repel the samples of each class."""

    rows: Tensor  # [Q, d]
    squares: Tensor  # |p|^2 [Q]
    inverse_lengths: Tensor  # 1 / |p| [Q]
    members: Tensor | None  # positions of the class's positives [C, K], padded; None if class j's is j
    bias: Tensor | None  # [C, K], 0, or very negative for padding
    attracting: Tensor  # number of the class's positives [C], at least 1
    pool: Tensor | None  # the class's denominator [C, Q] bool; None if it is everything
    defined: Tensor | None  # whether the class has a positive [C] bool; None if all have
    owner: Tensor  # the class of each row [Q]

    def rows_like(self, z: Tensor) -> Tensor:
        return self.rows.to(z.dtype)


def distances_to(z: Tensor, prototypes: Prototypes) -> Tensor:
    """Return the distances [B, Q] of z [B, d] to every prototype."""
    return torch.cdist(z, prototypes.rows_like(z))


def prototypes_of(rows: Tensor, positives: Tensor, negatives: Tensor, *, all_rows: bool = False) -> Prototypes:
    """Select prototypes from rows [m, C, d]: `positives` [m, C] attract samples of their class, `negatives` repel."""
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
    # a stable sort keeps a class's members in the order of clients, which fixes the order of sums over them
    order = attracting.to(torch.int8).sort(dim=1, descending=True, stable=True)
    members, is_member = order.indices[:, :max_members], order.values[:, :max_members].bool()
    # with one positive each, in the order of classes, the label itself is the position
    in_order = (members.flatten() == torch.arange(members.numel())).all()
    pool, defined = torch.where(is_own_class, attract, repel), attracting.any(1)
    lengths = prototypes.norm(dim=1)
    return Prototypes(
        rows=prototypes,
        squares=lengths.square(),
        # a row without length has no direction: its cosines are 0, and not NaN
        inverse_lengths=torch.where(lengths > 1e-12, 1 / lengths, 0.0),
        members=None if members.shape == (len(prototypes), 1) and bool(in_order) else members,
        bias=None if max_members == 1 or is_member.all() else torch.where(is_member, 0.0, _NEVER).to(rows.dtype),
        attracting=is_member.sum(1).clamp(min=1).to(rows.dtype),
        pool=None if pool.all() else pool,
        defined=None if defined.all() else defined,
        owner=owner,
    )


def _common_size(size: int) -> int:
    """Return one of a few sizes (1 to 8, 10, 12, 14, 16, 20, ...): recorded steps belong to sizes, which change."""
    step = max(1, 1 << max(0, size.bit_length() - 3))
    return max(1, -(-size // step) * step)


_latest: list[tuple[fm.ClassTable, tuple[int, int, bool], Prototypes]] = []  # one, or none


def prototypes_of_table(table: fm.ClassTable, *, all_rows: bool = False) -> Prototypes:
    """Make prototypes of a table [C, d] or [m, C, d]: rows attract their class and repel others. The latest is kept."""
    values, held = table.values, table.held
    key = (values._version, held._version, all_rows)  # versions count changes in place
    for latest, latest_key, prototypes in _latest:
        if latest.values is values and latest.held is held and latest_key == key:
            return prototypes
    rows, holders = (values, held) if values.dim() == 3 else (values.unsqueeze(0), held.unsqueeze(0))
    prototypes = prototypes_of(rows, holders, holders, all_rows=all_rows)
    _latest[:] = [(table, key, prototypes)]
    return prototypes


def ramped(weight: float, round_: int, rounds: int, like: Tensor) -> Tensor:
    """Return a weight that grows linearly over the first rounds, []: a number would be part of a recorded step."""
    return torch.tensor(weight * (min(1.0, round_ / rounds) if rounds else 1.0), dtype=like.dtype)


def unit(rows: Tensor) -> Tensor:
    """Divide rows [Q, d] by their norms; a row without length stays zero and gets no gradient.

    Example:
        >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return rows * _inverse_norms(rows.square().sum(1, keepdim=True))


def _inverse_norms(squares: Tensor) -> Tensor:
    """Return 1 / |z| from |z|^2; 0 for rows without length, whose gradient would otherwise be 1e12."""
    return torch.where(squares > 1e-24, squares, torch.inf).rsqrt()


def mean_distances(lengths: Tensor, dots: Tensor, squares: Tensor, batch: fm.Batch) -> Tensor:
    """Return U [Q]: the mean over the batch of |z_i - p_q|, clamped at 1e-6, from `lengths` |z|^2 [B, 1], `dots` z . p
    [B, Q] and `squares` |p|^2 [Q]. The difference of squares cancels: its relative error in float32 is up to 4e-7 (|p|
    / |z - p|)^2, so 0.4 % at a hundredth of |p|."""
    # not below 1e-12, because the root has no slope at 0
    distances = torch.add(squares, dots, alpha=-2).add(lengths).clamp(min=1e-12).sqrt()
    mean = batch.mean(distances)
    return mean if batch.mask is None else mean.clamp(min=1e-6)  # 0 where no sample counts


def _factors(lengths: Tensor, dots: Tensor, batch: fm.Batch, consts: fm.Consts, options: Any) -> Tensor:
    inverse: Tensor = consts["prototypes"].inverse_lengths / options.tau
    if options.scale == "none":
        return inverse
    if options.scale == "dataset":
        scale: Tensor = consts["scale"].clamp(min=1e-6)
        return inverse / scale
    return inverse / mean_distances(lengths, dots, consts["prototypes"].squares, batch)


def scaled_similarities(z: Tensor, batch: fm.Batch, consts: fm.Consts, options: Any) -> Tensor:
    """Return s / tau [B, Q]: cosines of features z [B, d] to every prototype in `consts`, divided by U and tau."""
    squares, dots = z.square().sum(1, keepdim=True), z @ consts["prototypes"].rows_like(z).T
    with torch.set_grad_enabled(torch.is_grad_enabled() and not options.detach_scale):
        factors = _factors(squares, dots, batch, consts, options)
    return cast(Tensor, dots * _inverse_norms(squares) * factors)


def prototype_contrast(z: Tensor, batch: fm.Batch, consts: fm.Consts, options: Any) -> tuple[Tensor, Tensor | None]:
    """Return losses [B] and whether they are defined [B] (None if all are): -log(sum over positives of exp(s / tau) /
    sum over the class's pool of exp(s / tau)), s the `scaled_similarities` of features z [B, d] of a `batch` by
    `options`. Losses of classes without a positive are finite and without meaning."""
    prototypes: Prototypes = consts["prototypes"]
    members = batch.y.unsqueeze(1) if prototypes.members is None else prototypes.members[batch.y]
    optional = prototypes.bias, prototypes.pool, prototypes.defined
    bias, pool, defined = (None if tensor is None else tensor[batch.y] for tensor in optional)
    if batch.rivals is not None:
        fair = batch.rivals[:, prototypes.owner] | (prototypes.owner == batch.y.unsqueeze(1))
        pool = fair if pool is None else pool & fair
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
    """`prototype_contrast` of scores [B, Q], with `members`, `bias` [B, K] and pool [B, Q] by sample. Returns losses
    [B], log softmax over the pool [B, Q], and its values at the members [B, K]."""
    if pool is not None:
        scores = torch.where(pool, scores, _NEVER)
    logs = torch.log_softmax(scores, dim=1)
    member_logs = logs.gather(1, members)
    member_logs = member_logs if bias is None else member_logs + bias
    # of one positive the sum is its score: no call of logsumexp
    losses = -member_logs.squeeze(1) if member_logs.shape[1] == 1 else -torch.logsumexp(member_logs, dim=1)
    return losses, logs, member_logs


class _Contrast(torch.autograd.Function):
    """`contrast_of` with the gradient written out, in half the time: d loss / d score = softmax over the pool - softmax
    over the positives; d score_q / d z = factor_q (p_q / |z| - (p_q . z) z / |z|^3)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        _z, _inverse, scores, _factors, _prototypes, members, bias, pool = inputs
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
        # shares of the positives: softmax over them, written with the values of the forward pass
        single = member_logs.shape[1] == 1
        attracted = torch.ones_like(member_logs) if single else (member_logs + losses.unsqueeze(1)).exp()
        pulls = logs.exp().scatter_add(1, members, -attracted) * factors
        moves = pulls @ prototypes
        directions = z * inverse
        along = (moves * directions).sum(1, keepdim=True)
        return torch.addcmul(moves, along, directions, value=-1) * (upstream.unsqueeze(1) * inverse), *(None,) * 7


def same_and_other(batch: fm.Batch) -> tuple[Tensor, Tensor]:
    """Return which samples [R, B] have the label of each row of `batch.by_label`, and which record another."""
    if batch.y.dim() == 1:
        same = batch.y.unsqueeze(1) == batch.y.unsqueeze(0)
        return same, ~same
    return (batch.y == 1).T.repeat(len(batch.y), 1), (batch.y == 0).T.repeat(len(batch.y), 1)


def log_sum_exp(scores: Tensor, among: Tensor) -> Tensor:
    """Return log sum_q exp(scores[:, q]) over the q in `among` [B, Q] or [Q]; finite even where there is none."""
    # e^-60 vanishes, gradients are 0 and not NaN, and exp avoids its slow path for infinities
    nothing = scores.detach().amin(dim=1, keepdim=True) - 60
    return torch.logsumexp(torch.where(among, scores, nothing), dim=1)
