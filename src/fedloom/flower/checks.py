"""Every fact of an answer is checked against the job that asked for it, or bounded where the server cannot know it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from typing import Literal

from fedloom.engine.term_balance import CE
from fedloom.evaluation.metric import MetricKinds, MetricStates
from fedloom.flower.bounds import FEWEST
from fedloom.flower.wire import EvalReply, MessageError, TrainReply

_PASSES = 20  # times the samples of a rehearsal's round, and of a test's training samples, that a node may report
_LARGEST_SHARE = 0.95  # of all samples, however few clients there are
_NOTES = ("engine.", "flower.")  # what a node may report of itself: its engine, and its disk


def check_trained(trained: TrainReply, measured: bool, samples: int, terms: Collection[str], passes: float) -> None:
    """Check what a node reports beside an upload. Raises `MessageError` for what its job cannot have given.

    measured: whether the job asked for gradient norms. samples: the client's training samples. terms: names of the loss
    terms that the method has in this round. passes: samples that a rehearsal of the job processed, over its training
    samples.
    """
    for kind, values in (("term", trained.terms), ("norm", trained.norms)):
        unknown = next((name for name in values if name not in terms and name != CE), None)
        if unknown is not None:
            raise MessageError(
                f"it reports the {kind} {unknown[:80]!r}, and the method's are {', '.join(sorted(terms))}"
            )
    if trained.norms and not measured:
        raise MessageError("it reports gradient norms in a round in which nobody asked for them")
    if trained.norms and (CE not in trained.norms or any(norm < 0 for norm in trained.norms.values())):
        raise MessageError(f"it reports gradient norms without '{CE}', or below 0")
    most = math.ceil(_PASSES * passes * max(1, samples))
    for name, count in (("samples", trained.samples), ("steps", trained.steps)):
        if count > most:
            raise MessageError(f"it reports {count:,} {name}; {most:,} at most with {samples:,} samples")
    wrong = next((note.code for note in trained.notes if not note.code.startswith(_NOTES)), None)
    if wrong is not None:
        raise MessageError(
            f"it reports a diagnostic called {wrong[:80]!r}; nodes report on their engine and disk alone"
        )


def check_scored(
    scored: EvalReply, predictors: Collection[str], kinds: MetricKinds, total: int | None, samples: int
) -> dict[str, MetricStates]:
    """The metric states of a test, by predictor. Raises `MessageError` for states that are missing, or that cannot be.

    predictors: names of the predictors that were to be tested. kinds: the metrics of the run. total: the client's test
    samples, where the server knows them. samples: the client's training samples.
    """
    if scored.results.keys() != set(predictors):
        raise MessageError(
            f"it has results of {', '.join(sorted(scored.results))[:200] or 'nothing'}; asked for "
            f"{', '.join(sorted(predictors))}"
        )
    for name, result in scored.results.items():
        if total is not None and result.total != total:
            raise MessageError(f"{name}: tested on {result.total:,} samples; the client has {total:,} test samples")
    totals = {result.total for result in scored.results.values()}
    if len(totals) > 1:
        raise MessageError(f"its predictors were tested on {sorted(totals)} samples; need the same ones for all")
    limit = 1000 * (samples + 1) * len(predictors)
    if scored.samples > limit:
        raise MessageError(f"it reports {scored.samples:,} samples to adapt to; {limit:,} at most")
    try:
        return {
            name: MetricStates.from_plain(result.total, result.states, kinds) for name, result in scored.results.items()
        }
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise MessageError(f"metric states that cannot be: {' '.join(str(error).split())[:200]}") from None


def shares_too_large(counts: Mapping[int, int], max_share: float | Literal["auto"]) -> dict[int, str]:
    """Clients whose counts of samples are too large a share of all, and why; nobody where there are fewer than four.

    counts: samples that each client claims. max_share: as `flower.max_share`; twice an equal share is always allowed.
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
        others = statistics.median(remaining.values())
        refused[client] = (
            f"it claims {count:,} samples, {100 * count / total:.3g} % of all, where the median of the others is "
            f"{others:,.0f}; at most {100 * limit:.3g} % is allowed (flower.max_share): raise it if the count is true"
        )
    return refused
