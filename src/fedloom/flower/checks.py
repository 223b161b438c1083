"""Checks of the facts in replies, of the sizes of uploads, and of every new server state.
An upload has L2 norms: of the change of each tree since the payload, by role; of rows of class tables; of tensors and
numbers. The reference is the median over the round's clients, or the largest such median of the run so far: changes
become tiny when training converges, and a client that still learns must not be refused for it. A client with more
samples than the median client takes more steps, so its limit is larger."""

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
STRIDE = 50.0  # change of an entry, over the largest of any accepted round before
_Length = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def check_trained(trained: JobResult, measured: bool, samples: int, terms: Collection[str], passes: float) -> None:
    """Raise `MessageError` for facts next to an upload that the job cannot have produced. measured: the job asked for
    gradient norms. passes: samples that a rehearsal processed, over its training samples."""
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
    examples: Mapping[str, MetricStates],
    total: int | None,
    samples: int,
) -> dict[str, MetricStates]:
    """Return the metric states of a test, by predictor. Raises `MessageError` for missing or impossible states.
    adapted: samples that adapting processed. examples: states by predictor. total, samples: the client's test samples,
    if known, and its training samples."""
    if tested.keys() != examples.keys():
        raise MessageError(
            f"it has results of {', '.join(sorted(tested))[:200] or 'nothing'}; asked for {', '.join(sorted(examples))}"
        )
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
    """Return the clients that claim too large a share of all samples (`counts`, by client), with the reason.
    Fewer than four clients are not compared, and twice an equal share is always allowed."""
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
            for label in value.held.nonzero().tolist():
                yield UploadNorm(f"{name}/rows", f"row {label[-1]} of {name}", _norm(value.values[tuple(label)]))
        elif isinstance(value, Tensor):
            if value.is_floating_point():
                yield UploadNorm(name, name, _norm(value))
        elif isinstance(value, float):
            yield UploadNorm(name, name, abs(value))


def _tree_norms(name: str, tree: Tree, payload: object, roles: Mapping[str, Role]) -> Iterator[UploadNorm]:
    received: Tree = payload if isinstance(payload, dict) else {}
    squares: dict[tuple[str, bool], float] = {}
    for entry, tensor in tree.items():
        if not tensor.is_floating_point():
            continue
        is_change = entry in received and received[entry].shape == tensor.shape
        change = tensor.double() - received[entry].double() if is_change else tensor.double()
        role = str(roles[entry].value) if entry in roles else ""
        squares[role, is_change] = squares.get((role, is_change), 0.0) + float(change.square().sum())
    for (role, is_change), square in squares.items():
        tree_label = f"the {role} of {name}" if role else name
        label = f"the change of {tree_label}" if is_change else tree_label
        yield UploadNorm(f"{name}/{role}/{'change' if is_change else 'size'}", label, math.sqrt(square))


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())


class References(Stored):
    """The usual sizes of a run, which judge new ones, also after a restart. items: the largest median of each norm of
    uploads. steps: the largest accepted change (L2) of each entry of the server's state."""

    FILE = "flower-references.json"
    ADVICE = "delete it, and the run continues with new references for its bounds"

    items: dict[str, _Length] = Field(default_factory=dict)
    steps: dict[str, _Length] = Field(default_factory=dict)

    def excesses(
        self,
        norms: Mapping[int, list[UploadNorm]],
        samples: Mapping[int, int],
        sends: Mapping[str, Sent],
        max_ratio: float,
    ) -> dict[int, tuple[float, str]]:
        """Return the clients whose uploads are too large: how many times its limit the worst norm is, and the reason.
        Medians larger than those so far update `items`. A norm that fewer than `FEWEST` clients have is compared with
        the largest median so far, if there is one. norms, samples: by client. sends: the method's declaration."""
        excesses: dict[int, tuple[float, str]] = {}
        median_samples = statistics.median(samples[client] for client in norms) if norms else 1
        for key in dict.fromkeys(norm.key for client_norms in norms.values() for norm in client_norms):
            # The median of each client's own median: a client that sends many rows does not count more.
            lengths = [[norm.norm for norm in client_norms if norm.key == key] for client_norms in norms.values()]
            client_medians = [statistics.median(of_client) for of_client in lengths if of_client]
            if len(client_medians) >= FEWEST:
                self.items[key] = max(self.items.get(key, 0.0), statistics.median(client_medians))
            reference = self.items.get(key, 0.0)
            if not reference:  # all zero, or too few clients
                continue
            spread = sends[name].spread if (name := key.partition("/")[0]) in sends else 1.0
            for client, client_norms in norms.items():
                limit = max_ratio * spread * max(1.0, samples[client] / max(1.0, median_samples))
                for norm in client_norms:
                    ratio = norm.norm / reference
                    if norm.key == key and ratio / limit > excesses.get(client, (1.0, ""))[0]:
                        excesses[client] = (
                            ratio / limit,
                            f"{norm.label} is {ratio:.3g} times as large as the median client's, and at most "
                            f"{limit:.3g} times is allowed (flower.max_ratio)",
                        )
        return excesses

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
