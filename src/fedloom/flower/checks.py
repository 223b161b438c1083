"""Checks of the facts in replies, and of every new server state.

A fact is checked against the request, or against a bound if the server cannot know the value. A state is valid if all
its values are finite and below `LARGEST`, and if no entry changes much further than in any accepted round before; the
engine drops the upload that spoils it. The references are stored in the run's folder, so a restarted server judges as
before.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedloom.core.errors import RunFolderError, short_repr
from fedloom.core.files import read_file, write_atomic
from fedloom.core.records import Record, floats_of
from fedloom.engine.jobs import JobResult
from fedloom.engine.round_report import CE
from fedloom.evaluation.metric import LARGEST_SUM, MetricStates
from fedloom.flower.bounds import FEWEST, UploadNorm
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

    clients: number of the run's clients. classes: names that every client must have. measured: number of features of
    which a client must report moments. sizes: training samples of each client, if the server knows them. refused:
    clients left out, with the reason.
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

    measured: whether the job asked for gradient norms. samples: the client's training samples. terms: names of the
    method's loss terms in this round. passes: samples that a rehearsal processed, over its training samples.
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

    tested: states by predictor, made of plain numbers and lists. adapted: samples that adapting processed. predictors:
    names of the requested ones. example: any metric states of the run. total: the client's test samples; None if the
    server does not know them. samples: the client's training samples.
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

    counts: claimed samples by client; fewer than four clients are not compared. max_share: as `flower.max_share`; twice
    an equal share is always allowed.
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


FILE = "flower-references.json"
LARGEST = 1e9  # value of the server's state: beyond it, clients' losses overflow
STRIDE = 50.0  # change of an entry, over the largest of any accepted round before


_Length = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class References(BaseModel):
    """The usual sizes of a run. items: the largest median of each norm of uploads. steps: the largest accepted change
    (L2) of each entry of the server's state."""

    model_config = ConfigDict(extra="forbid", strict=True)

    items: dict[str, _Length] = Field(default_factory=dict)
    steps: dict[str, _Length] = Field(default_factory=dict)

    @staticmethod
    def read(out: Path | None) -> References:
        """Read the references of the run in `out`, empty for a new run. Raises `RunFolderError` for a damaged file."""
        if out is None or not (out / FILE).exists():
            return References()
        try:
            return References.model_validate_json(read_file(out / FILE))
        except (OSError, ValidationError):
            raise RunFolderError(
                f"{out / FILE}: damaged; delete it, and the run goes on with new references for its bounds"
            ) from None

    def write(self, out: Path | None) -> None:
        """Write the references to the run's folder."""
        if out is not None:
            write_atomic(out / FILE, self.model_dump_json(indent=1) + "\n")


class StateGuard:
    """Tests new server states. references: of this run; every accepted state updates them."""

    def __init__(self, references: References) -> None:
        self._references = references

    def fault(self, before: Record, after: Record) -> str | None:
        """Return why the state `after` cannot replace `before`; None if it can."""
        steps = _steps(before, after)
        fault = _fault(after) or self._too_far(steps)
        if fault is None:
            for name, step in steps.items():
                self._references.steps[name] = max(self._references.steps.get(name, 0.0), step)
        return fault

    def size(self, norms: Iterable[UploadNorm]) -> float:
        """Return the largest ratio of an upload's norms to their references."""
        references = self._references.items
        return max((norm.norm / (references.get(norm.key) or 1.0) for norm in norms), default=0.0)

    def _too_far(self, steps: Mapping[str, float]) -> str | None:
        for name, step in steps.items():
            reference = self._references.steps.get(name, 0.0)
            if reference and step > STRIDE * reference:
                return f"the server's {name} would change {step / reference:.3g} times as far as in any round before"
        return None


def _fault(state: Record) -> str | None:
    """Return why the values of a state are invalid; None if they are valid."""
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
