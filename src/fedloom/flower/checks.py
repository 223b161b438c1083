"""Checks of the facts in replies, against the request, or against a bound if the server cannot know the value."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from fedloom.core.errors import short_repr
from fedloom.engine.jobs import JobResult
from fedloom.engine.round_report import CE
from fedloom.evaluation.metric import LARGEST_SUM, MetricStates
from fedloom.flower.bounds import FEWEST
from fedloom.flower.wire import JoinReply, MessageError

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
    """Check that a node's client fits the run. Raises `MessageError` for one that does not.

    Args:
        reply: the node's answer.
        run: name of the run.
        clients: number of the run's clients.
        classes: names that every client must have.
        measured: number of features of which a client must report moments.
        sizes: training samples of each client, if the server knows them.
        refused: clients left out, with the reason.
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
                f"client {client} tells moments of {features} features of {reply.samples} samples; need {measured} "
                "features"
            )


def check_trained(trained: JobResult, measured: bool, samples: int, terms: Collection[str], passes: float) -> None:
    """Check the facts beside an upload. Raises `MessageError` for values that the job cannot have produced.

    Args:
        trained: the client's result.
        measured: whether the job asked for gradient norms.
        samples: the client's training samples.
        terms: names of the method's loss terms in this round.
        passes: samples that a rehearsal processed, over its training samples.
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
        raise MessageError("it reports gradient norms in a round in which nobody asked for them")
    if trained.norms and (CE not in trained.norms or any(norm < 0 for norm in trained.norms.values())):
        raise MessageError(f"it reports gradient norms without '{CE}', or below 0")
    limit = math.ceil(_MAX_PASSES_RATIO * passes * max(1, samples))
    for name, count in (("samples", trained.samples), ("steps", trained.steps)):
        if count > limit:
            raise MessageError(f"it reports {count:,} {name}; {limit:,} at most with {samples:,} samples")
    foreign_code = next((note.code for note in trained.notes if not note.code.startswith(_NOTE_PREFIXES)), None)
    if foreign_code is not None:
        raise MessageError(
            f"it reports a diagnostic called {foreign_code[:80]!r}; nodes report on their engine and disk alone"
        )


def check_scored(
    tested: Mapping[str, MetricStates],
    adapted: int,
    predictors: Collection[str],
    example: MetricStates,
    total: int | None,
    samples: int,
) -> dict[str, MetricStates]:
    """Return the metric states of a test, by predictor. Raises `MessageError` for missing or impossible states.

    Args:
        tested: states by predictor, made of plain numbers and lists.
        adapted: samples that adapting processed.
        predictors: names of the requested ones.
        example: any metric states of the run.
        total: the client's test samples; None if the server does not know them.
        samples: the client's training samples.
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
        return {name: MetricStates.from_plain(result, example) for name, result in tested.items()}
    except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        raise MessageError(f"metric states that cannot be: {' '.join(str(error).split())[:200]}") from None


def shares_too_large(counts: Mapping[int, int], max_share: float | Literal["auto"]) -> dict[int, str]:
    """Return the clients that claim too large a share of all samples, with the reason.

    Args:
        counts: claimed samples by client; fewer than four clients are not compared.
        max_share: as `flower.max_share`; twice an equal share is always allowed.
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
