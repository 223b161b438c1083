"""Checks of the facts in replies, of the sizes of uploads, and of every new server state.
An upload has L2 norms: of the change of each tree since the payload, by role; of rows of class tables, and of their
changes; of tensors and numbers. The reference is the median over the clients of the round, and in small rounds over the
last norms of clients that took part before; the first ones are judged by a rehearsal. It falls slowly: changes become
tiny when training converges, and a client that still learns must not be refused for it. More samples mean more steps,
and larger norms."""

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedloom.core.records import Record, floats_of
from fedloom.core.tables import ClassTable
from fedloom.core.text import lists_by_key
from fedloom.core.trees import Tree
from fedloom.engine.jobs import JobResult
from fedloom.engine.round_report import CE
from fedloom.evaluation.metric import LARGEST_SUM, MetricStates
from fedloom.evaluation.plain_states import states_from_plain
from fedloom.flower.node_data import FEWEST
from fedloom.flower.status import Stored
from fedloom.flower.wire import MessageError, PlainStates
from fedloom.methods.contract.spec import Sent
from fedloom.nets.net import Role

_MAX_PASSES_RATIO = 20  # reported samples or steps, over those of a rehearsal
_LARGEST_SHARE = 0.95  # of all samples, however few clients there are
_NOTE_PREFIXES = ("engine.", "flower.")  # nodes report on their engine and their disk only
LARGEST = 1e9  # value of the server's state: beyond it, clients' losses overflow
_NOBODY = -1  # in place of a client: the rehearsal, and later the reference of the last round
_DECAY = 0.8  # of the largest reference so far, for each upload of a client: what a late or rare client may still need
_ENOUGH = 9  # clients whose norms judge a small round
_YOUNG = 6  # uploads before which the limit of small rounds is `_FIRST` times as large
_FIRST = 2.0
_MOST_KNOWN = 1000  # clients that are remembered
_LEAST_CHANGE = 0.5  # of a row's length: what its change counts as at least, because many honest ones are tiny
STRIDE = 50.0  # change of an entry, over the largest of any accepted round before
_Length = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LastNorm = tuple[_Length, int]
"""A norm, and the number of training samples that it comes from."""


def check_trained(trained: JobResult, measured: bool, samples: int, terms: Collection[str], passes: float) -> None:
    """Raise `MessageError` for facts in `trained` that a job on `samples` cannot have: other `terms`, norms not
    `measured`, or more `passes` than a rehearsal made."""
    for kind, values in (("term", trained.terms), ("norm", trained.norms)):
        for unknown in (name for name in values if name not in (*terms, CE)):
            known = ", ".join(sorted(terms))
            raise MessageError(f"it reports the {kind} {unknown[:80]!r}, and the method's are {known}")
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
    for note in trained.notes:
        if not note.code.startswith(_NOTE_PREFIXES):
            name = note.code[:80]
            raise MessageError(f"it reports a diagnostic called {name!r}; nodes only report on their engine and disk")


def check_scored(
    tested: Mapping[str, PlainStates],
    adapted: int,
    examples: Mapping[str, MetricStates],
    total: int | None,
    samples: int,
) -> dict[str, MetricStates]:
    """Return the metric states of a test, by predictor as `examples`. Raises `MessageError` for impossible ones.
    adapted: samples that adapting processed. total, samples: the client's test samples, if known, and training ones."""
    if tested.keys() != examples.keys():
        names = ", ".join(sorted(tested))[:200] or "nothing"
        raise MessageError(f"it has results of {names}; asked for {', '.join(sorted(examples))}")
    for name, result in tested.items():
        if total is not None and result.total != total:
            raise MessageError(f"{name}: tested on {result.total:,} samples; the client has {total:,} test samples")
    totals = {result.total for result in tested.values()}
    if len(totals) > 1:
        raise MessageError(f"its predictors were tested on {sorted(totals)} samples; need the same ones for all")
    limit = 1000 * (samples + 1) * len(examples)
    if adapted > limit:
        raise MessageError(f"it reports {adapted:,} samples to adapt to; {limit:,} at most")
    try:
        plain: dict[str, Any] = dict(tested)
        return {name: states_from_plain(states, examples[name]) for name, states in plain.items()}
    except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        raise MessageError(f"impossible metric states: {' '.join(str(error).split())[:200]}") from None


def shares_too_large(counts: Mapping[int, int], max_share: float | Literal["auto"]) -> dict[int, str]:
    """Return why clients are refused whose share of all samples is too large; twice an equal share is allowed."""
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


@dataclass(frozen=True, slots=True)
class UploadNorm:
    """One L2 norm of an upload. key: norms with equal keys are compared. label: for messages."""

    key: str
    label: str
    norm: float


def upload_norms(
    upload: Record, payload: Record, sends: Mapping[str, Sent], roles: Mapping[str, Role]
) -> Iterator[UploadNorm]:
    """Yield the L2 norms of an `upload`, in reply to a `payload`, that are compared with those of other clients."""
    for name, value in upload.items():
        if isinstance(value, dict):
            is_whole = name in sends and sends[name].form == "whole"
            yield from _tree_norms(name, value, payload.get(name) if is_whole else None, roles)
        elif isinstance(value, ClassTable):
            sent = payload.get(name)
            table = sent if isinstance(sent, ClassTable) and sent.values.shape == value.values.shape else None
            for label in value.held.nonzero().tolist():
                row, row_label = value.values[tuple(label)], f"row {label[-1]} of {name}"
                yield UploadNorm(f"{name}/rows", row_label, _norm(row))
                if table is not None and table.held[tuple(label)]:
                    received = table.values[tuple(label)]
                    change = math.hypot(_norm(row.double() - received.double()), _LEAST_CHANGE * _norm(received))
                    yield UploadNorm(f"{name}/rows/change", f"the change of {row_label}", change)
        elif isinstance(value, Tensor):
            if value.is_floating_point():
                yield UploadNorm(name, name, _norm(value))
        elif isinstance(value, float):
            yield UploadNorm(name, name, abs(value))


def _tree_norms(name: str, tree: Tree, payload: object, roles: Mapping[str, Role]) -> Iterator[UploadNorm]:
    squares: dict[tuple[str, bool], float] = {}
    for entry, is_change, change in changes(tree, payload):
        role = str(roles[entry].value) if entry in roles else ""
        squares[role, is_change] = squares.get((role, is_change), 0.0) + float(change.square().sum())
    for (role, is_change), square in squares.items():
        tree_label = f"the {role} of {name}" if role else name
        label = f"the change of {tree_label}" if is_change else tree_label
        yield UploadNorm(f"{name}/{role}/{'change' if is_change else 'size'}", label, math.sqrt(square))


def changes(tree: Mapping[str, Any], payload: object) -> Iterator[tuple[str, bool, Tensor]]:
    """Yield the floating-point tensors of a tree in float64, less those of the payload if their shapes agree (True)."""
    received: Tree = payload if isinstance(payload, dict) else {}
    for entry, tensor in tree.items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            is_change = entry in received and received[entry].shape == tensor.shape
            yield entry, is_change, tensor.double() - received[entry].double() if is_change else tensor.double()


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())


def median_norms(norms: Iterable[UploadNorm]) -> dict[str, float]:
    """Return a client's median norm by key, so that one that sends many rows does not count more than others."""
    lengths = lists_by_key((norm.key, norm.norm) for norm in norms)
    return {key: statistics.median(values) for key, values in lengths.items()}


class References(Stored):
    """The usual sizes of a run, also after a restart. items: the largest median of each norm of uploads. latest: the
    last norms of clients and `_NOBODY`. uploads: by client. steps: the largest accepted change (L2) of each entry."""

    FILE = "flower-references.json"
    ADVICE = "delete it, and the run continues with new references for its bounds"

    items: dict[str, _Length] = Field(default_factory=dict)
    latest: dict[str, dict[int, LastNorm]] = Field(default_factory=dict)
    uploads: dict[int, int] = Field(default_factory=dict)
    steps: dict[str, _Length] = Field(default_factory=dict)

    def judge(
        self,
        norms: Mapping[int, list[UploadNorm]],
        samples: Mapping[int, int],
        sends: Mapping[str, Sent],
        max_ratio: float,
        rehearsed: Mapping[str, LastNorm] | None = None,
    ) -> dict[int, tuple[float, str]]:
        """Return, by client, the largest of its `norms` over its limit (`max_ratio` times the median, by `samples` and
        `sends`), and why one beyond 1 is refused; others become `latest`. rehearsed: norms of the server's upload."""
        is_young = len(norms) < FEWEST and sum(self.uploads.values()) < _YOUNG
        times, by_key = _FIRST * max_ratio if is_young else max_ratio, dict[str, dict[int, LastNorm]]()
        for client, of_client in norms.items():
            for key, median in median_norms(of_client).items():
                by_key.setdefault(key, {})[client] = median, samples[client]
        for key in by_key.keys() & (rehearsed or {}).keys():
            self.latest.setdefault(key, {_NOBODY: (rehearsed or {})[key]})
        usual = {key: self._usual(key, by_client) for key, by_client in by_key.items()}
        judged = dict.fromkeys(norms, (0.0, ""))
        for client, of_client in norms.items():
            for norm in of_client:
                median, size = usual[norm.key]
                spread = sends[name].spread if (name := norm.key.partition("/")[0]) in sends else 1.0
                limit = times * spread * _growth(samples[client], size)
                earlier = self.items.get(norm.key, 0.0) * _DECAY ** self.uploads.get(client, 0)
                ratio = norm.norm / (max(median, earlier) or math.inf)  # all are zero: nothing to compare with
                if ratio / limit > judged[client][0]:
                    reason = f"{norm.label} is {ratio:.3g} times as large as the median client's, and at most"
                    judged[client] = ratio / limit, f"{reason} {limit:.3g} times is allowed (flower.max_ratio)"
            self.uploads[client] = self.uploads.pop(client, 0) + 1  # the newest are last
        for key, by_client in by_key.items():
            accepted = {k: last for k, last in by_client.items() if judged[k][0] <= 1 and math.isfinite(last[0])}
            self._remember(key, accepted, *usual[key])
        for client in [*self.uploads][:-_MOST_KNOWN]:
            del self.uploads[client]
        return judged

    def _usual(self, key: str, by_client: Mapping[int, LastNorm]) -> LastNorm:
        """Return the median norm of clients with the median number of samples, and this number."""
        latest, norms = self.latest.get(key, {}), [*by_client.values()]
        if len(norms) < FEWEST:
            others = [latest[client] for client in reversed(latest) if client not in (*by_client, _NOBODY)]
            norms += others[: _ENOUGH - len(norms)]
        size = math.ceil(statistics.median(samples for _, samples in norms))
        if len(norms) < 3 and latest.get(_NOBODY, (0.0, 0))[0]:
            norms.append(latest[_NOBODY])
        grown = [norm * _growth(size, samples) for norm, samples in norms]
        # Of two the smaller one: their mean would follow whoever sends the larger one.
        median = min(grown) if len(grown) == 2 else statistics.median(grown)
        self.items[key] = max(self.items.get(key, 0.0), median if math.isfinite(median) else 0.0)
        return median, size

    def _remember(self, key: str, accepted: Mapping[int, LastNorm], median: float, size: int) -> None:
        latest = self.latest.setdefault(key, {})
        for client, last in accepted.items():
            latest.pop(client, None)
            latest[client] = last
        if accepted:  # what is usual moves slowly, so that no few uploads decide it
            level = statistics.median_low(norm * _growth(size, samples) for norm, samples in accepted.values())
            latest[_NOBODY] = min(median / _DECAY, max(_DECAY * median, level)) if median else level, size
        for client in [*latest][:-_MOST_KNOWN]:
            del latest[client]

    def fault(self, before: Record, after: Record) -> str | None:
        """Return why the server's state `after` cannot replace `before`; None if it can, which updates `steps`."""
        for name, tensor in floats_of(after):
            if not torch.isfinite(tensor).all():
                return f"the server's {name} would not be finite"
            if tensor.numel() and float(tensor.abs().max()) > LARGEST:
                return f"the server's {name} would reach {float(tensor.abs().max()):.3g}, beyond {LARGEST:g}"
        steps = _steps(before, after)
        for name, step in steps.items():
            if (reference := self.steps.get(name, 0.0)) and step > STRIDE * reference:
                return f"the server's {name} would change {step / reference:.3g} times as far as in any round before"
        self.steps |= {name: max(self.steps.get(name, 0.0), step) for name, step in steps.items()}
        return None

    def size(self, norms: Iterable[UploadNorm]) -> float:
        """Return the largest ratio of an upload's norms to their references."""
        return max((norm.norm / (self.items.get(norm.key) or 1.0) for norm in norms), default=0.0)


def _growth(samples: float, usual: float) -> float:
    """Return how many times as large a norm may be that comes from more samples than another one."""
    return math.sqrt(max(1.0, samples / max(1.0, usual)))  # the longer a client trains, the less each step adds


def _steps(before: Record, after: Record) -> dict[str, float]:
    """Return the change (L2) of each entry, over floating-point tensors that have the same shape in both states."""
    squares: dict[str, float] = {}
    for name, value in after.items():
        earlier = before.get(name)
        of_old = floats_of({name: earlier}) if earlier is not None and type(earlier) is type(value) else ()
        for (_, new), (_, old) in zip(floats_of({name: value}), of_old, strict=False):
            if new.shape == old.shape:
                squares[name] = squares.get(name, 0.0) + float((new.double() - old.double()).square().sum())
    return {name: math.sqrt(square) for name, square in squares.items()}
