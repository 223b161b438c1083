"""Checks of the facts in replies, and of every new server state.

A fact is checked against the request, or against a bound if the server cannot know the value. A state is valid if all
its values are finite and below `LARGEST`, and if no entry changes much further than in any accepted round before.
"""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from fedloom.core.errors import short_repr
from fedloom.core.records import Record, floats_of
from fedloom.engine.jobs import JobResult
from fedloom.engine.round_report import CE
from fedloom.evaluation.metric import LARGEST_SUM, MetricStates
from fedloom.flower.bounds import FEWEST, UploadNorm
from fedloom.flower.stored import Stored
from fedloom.flower.wire import JoinReply, MessageError, PlainStates

_MAX_PASSES_RATIO = 20  # reported samples or steps, over those of a rehearsal
_LARGEST_SHARE = 0.95  # of all samples, however few clients there are
_NOTE_PREFIXES = ("engine.", "flower.")  # nodes report on their engine and their disk only


def check_join(
    reply: JoinReply,
    run: str,
    clients: int,
    classes: tuple[str, ...],
    measured: int,
    sizes: Sequence[int] | None,
    refused: Mapping[int, str],
) -> None:
    """Raise `MessageError` if the client in a `reply` does not fit the `run`.

    clients: number of the run's clients. classes: names that every client must have. measured: number of features of
    which a client must report moments. sizes: training samples by client, if known. refused: clients and reasons.
    """
    client = reply.client
    if reply.run != run:
        raise MessageError(f"it joins the run {short_repr(reply.run)}, this is {run}")
    if client >= clients:
        raise MessageError(f"it is client {client}, the run has clients 0 .. {clients - 1}")
    if client in refused:
        raise MessageError(f"client {client}: {refused[client]}")
    if sizes is not None and reply.samples != sizes[client]:
        raise MessageError(
            f"client {client} joins with {reply.samples:,} training samples; by the config it has {sizes[client]:,}"
        )
    if reply.classes != classes:
        raise MessageError(
            f"client {client} has the classes {short_repr(list(reply.classes))}, the server "
            f"{short_repr(list(classes))}; use the same labels on all nodes"
        )
    if measured:
        features = 0 if reply.moments is None else min(len(reply.moments.mean), len(reply.moments.squares))
        if features != measured or not reply.samples:
            raise MessageError(
                f"client {client} reports moments of {features} features of {reply.samples} samples; need {measured} "
                "features"
            )


def check_trained(trained: JobResult, measured: bool, samples: int, terms: Collection[str], passes: float) -> None:
    """Raise `MessageError` for facts next to an upload that the job cannot have produced.

    measured: whether the job asked for gradient norms. samples: the client's training samples. terms: the method's loss
    terms in this round. passes: samples that a rehearsal processed, over its training samples.
    """
    for kind, values in (("term", trained.terms), ("norm", trained.norms)):
        unknown = next((name for name in values if name not in terms and name != CE), None)
        if unknown is not None:
            raise MessageError(
                f"it reports the {kind} {unknown[:80]!r}, and the method's are {', '.join(sorted(terms))}"
            )
    figures = [(note.code, note.figure) for note in trained.notes]
    for name, number in (*trained.terms.items(), *trained.norms.items(), *figures):  # a name may occur twice
        if LARGEST_SUM < abs(number) < math.inf:  # sums of such values would not be finite
            raise MessageError(f"it reports {name[:80]!r} = {number:g}; numbers are {LARGEST_SUM:g} at most")
    if trained.norms and not measured:
        raise MessageError("it reports gradient norms in a round that does not measure them")
    if trained.norms and (CE not in trained.norms or any(norm < 0 for norm in trained.norms.values())):
        raise MessageError(f"it reports gradient norms without '{CE}', or below 0")
    limit = math.ceil(_MAX_PASSES_RATIO * passes * max(1, samples))
    for name, count in (("samples", trained.samples), ("steps", trained.steps)):
        if count > limit:
            raise MessageError(f"it reports {count:,} {name}; {limit:,} at most with {samples:,} samples")
    foreign_code = next((note.code for note in trained.notes if not note.code.startswith(_NOTE_PREFIXES)), None)
    if foreign_code is not None:
        raise MessageError(
            f"it reports a diagnostic called {foreign_code[:80]!r}; nodes only report on their engine and disk"
        )


def check_scored(
    tested: Mapping[str, PlainStates],
    adapted: int,
    predictors: Collection[str],
    example: MetricStates,
    total: int | None,
    samples: int,
) -> dict[str, MetricStates]:
    """Return the metric states of a test, by predictor. Raises `MessageError` for missing or impossible states.

    tested: plain states by predictor. adapted: samples that adapting processed. predictors: the requested ones.
    example: any metric states of the run. total: the client's test samples, if known. samples: its training samples.
    """
    if tested.keys() != set(predictors):
        raise MessageError(
            f"it has results of {', '.join(sorted(tested))[:200] or 'nothing'}; asked for "
            f"{', '.join(sorted(predictors))}"
        )
    for name, result in tested.items():
        if total is not None and result.total != total:
            raise MessageError(f"{name}: tested on {result.total:,} samples; the client has {total:,} test samples")
    totals = {result.total for result in tested.values()}
    if len(totals) > 1:
        raise MessageError(f"its predictors were tested on {sorted(totals)} samples; need the same ones for all")
    limit = 1000 * (samples + 1) * len(predictors)
    if adapted > limit:
        raise MessageError(f"it reports {adapted:,} samples to adapt to; {limit:,} at most")
    try:
        plain: dict[str, Any] = dict(tested)
        return {name: MetricStates.from_plain(states, example) for name, states in plain.items()}
    except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        raise MessageError(f"impossible metric states: {' '.join(str(error).split())[:200]}") from None


def shares_too_large(counts: Mapping[int, int], max_share: float | Literal["auto"]) -> dict[int, str]:
    """Return the clients that claim too large a share of all samples (`counts`, by client), with the reason.

    Fewer than four clients are not compared, and twice an equal share is always allowed.
    """
    remaining, refused = dict(counts), dict[int, str]()
    while len(remaining) >= FEWEST:
        share = min(_LARGEST_SHARE, 2 / math.sqrt(len(remaining))) if max_share == "auto" else max_share
        limit = max(share, 2 / len(remaining))
        total = sum(remaining.values())
        client = max(remaining, key=lambda k: remaining[k])
        if not total or remaining[client] <= limit * total:
            break
        count = remaining.pop(client)
        median = statistics.median(remaining.values())
        refused[client] = (
            f"it claims {count:,} samples, {100 * count / total:.3g} % of all, where the median of the others is "
            f"{median:,.0f}; at most {100 * limit:.3g} % is allowed (flower.max_share): raise it if the count is true"
        )
    return refused


LARGEST = 1e9  # value of the server's state: beyond it, clients' losses overflow
STRIDE = 50.0  # change of an entry, over the largest of any accepted round before
_Length = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class References(Stored):
    """The usual sizes of a run, which judge new ones. They are stored, so a restarted server judges as before.

    items: the largest median of each norm of uploads. steps: the largest accepted change (L2) of each entry of the
    server's state.
    """

    FILE = "flower-references.json"
    ADVICE = "delete it, and the run continues with new references for its bounds"

    items: dict[str, _Length] = Field(default_factory=dict)
    steps: dict[str, _Length] = Field(default_factory=dict)

    def fault(self, before: Record, after: Record) -> str | None:
        """Return why the server's state `after` cannot replace `before`; None if it can, which updates `steps`."""
        steps = _steps(before, after)
        if fault := _fault(after):
            return fault
        for name, step in steps.items():
            if (reference := self.steps.get(name, 0.0)) and step > STRIDE * reference:
                return f"the server's {name} would change {step / reference:.3g} times as far as in any round before"
        self.steps |= {name: max(self.steps.get(name, 0.0), step) for name, step in steps.items()}
        return None

    def size(self, norms: Iterable[UploadNorm]) -> float:
        """Return the largest ratio of an upload's norms to their references."""
        return max((norm.norm / (self.items.get(norm.key) or 1.0) for norm in norms), default=0.0)


def _fault(state: Record) -> str | None:
    """Return why the values of a state are invalid."""
    for name, tensor in floats_of(state):
        if not torch.isfinite(tensor).all():
            return f"the server's {name} would not be finite"
        if tensor.numel() and float(tensor.abs().max()) > LARGEST:
            return f"the server's {name} would reach {float(tensor.abs().max()):.3g}, beyond {LARGEST:g}"
    return None


def _steps(before: Record, after: Record) -> dict[str, float]:
    """Return the change (L2) of each entry, over floating-point tensors that have the same shape in both states."""
    squares: dict[str, float] = {}
    for name, value in after.items():
        earlier = before.get(name)
        if earlier is None or type(earlier) is not type(value):
            continue
        for (_, new), (_, old) in zip(floats_of({name: value}), floats_of({name: earlier}), strict=False):
            if new.shape == old.shape:
                squares[name] = squares.get(name, 0.0) + float((new.double() - old.double()).square().sum())
    return {name: math.sqrt(square) for name, square in squares.items()}
