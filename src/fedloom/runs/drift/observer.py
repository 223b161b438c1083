"""Measures the drift of every round, by client and by class, and keeps it in the run folder."""

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record
from fedloom.core.tables import ClassTable
from fedloom.engine import Federation, Worker
from fedloom.engine.round_report import ObservedRound
from fedloom.methods.contract.method import Method
from fedloom.nets.net import Role
from fedloom.nets.user_model import error_line
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.drift import updates as drift_updates
from fedloom.runs.drift.decomposition import Decomposition
from fedloom.runs.drift.updates import ClientUpdates
from fedloom.runs.storage.log import DriftLog, DriftRound, DriftValue, Row, new_row
from fedloom.runs.storage.run_folder import RunFolder


def head_figures(
    updates: ClientUpdates, observed: ObservedRound, class_counts: Callable[[int], Tensor] | None
) -> list[DriftValue] | str:
    """Return lengths and turns of the rows of the clients' heads (a class's weights in the last linear layer, without
    the bias) by their `updates`, or say in one line why there are none.

    Liu et al. (FedDW, arXiv 2412.04521, Sec. III-B) observe that a row's length correlates with the class's share of
    the samples. class_counts: returns a client's training samples of each class [C]; None if only it knows them.
    """
    task = observed.ctx.task
    names = [
        name
        for name, value in updates.moves[0][0].items()
        if task.roles.get(name) == Role.HEAD and value.dim() == 2 and value.shape[0] == task.num_classes
    ]
    if not names:
        return "the uploads hold no linear head with a row for each class: no figures of the head"
    values = list[DriftValue]()
    for name in names:
        server = (_tree_with(observed.before, updates.entry, name), _tree_with(observed.after, updates.entry, name))
        if server[0] is not None and server[1] is not None:
            values += _by_label("head_norm", server[1].norm(dim=1), name)
            values += _by_label("head_turn", _angles(server[0], server[1]), name)
        if any(before is None for _, before in updates.moves):
            continue
        before = torch.stack([tree[name].double() for _, tree in updates.moves if tree is not None])
        after = torch.stack([tree[name].double() for tree, _ in updates.moves])
        turns, lengths = _angles(before, after), after.norm(dim=2)
        if class_counts is None:
            values += _by_label("head_client_turn", turns.nanmean(0), name)
            continue
        counts = torch.stack([class_counts(client).double() for client in updates.clients])
        growth = lengths / before.norm(dim=2)
        # NaN marks the clients on the other side of `held`, which nanmean leaves out.
        for held, word in ((counts > 0, "held"), (counts == 0, "missing")):
            values += _by_label(f"head_turn_{word}", torch.where(held, turns, torch.nan).nanmean(0), name)
            values += _by_label(f"head_growth_{word}", torch.where(held, growth, torch.nan).nanmean(0), name)
        for client, row_lengths, of_classes in zip(updates.clients, lengths, counts, strict=True):
            values.append(DriftValue("head_correlation", _correlation(row_lengths, of_classes), client, entry=name))
    return values


def table_figures(observed: ObservedRound) -> list[DriftValue]:
    """Return the distances of class tables: between clients that hold a class, divided by the mean length of the two
    rows, and between two rounds of the server, divided by the length of the earlier row."""
    clients, values = list(observed.uploads), list[DriftValue]()
    for name in observed.uploads[clients[0]]:
        tables = _tables([upload.get(name) for upload in observed.uploads.values()])
        if tables:
            stacked = ClassTable.stack(tables)
            values += _between_clients(name, clients, stacked.values.double(), stacked.held)
    for name in observed.after:
        if tables := _tables([observed.before.get(name), observed.after[name]]):
            last, now = tables
            length = last.values.double().norm(dim=1)
            moved = (now.values.double() - last.values.double()).norm(dim=1) / length
            defined = last.held & now.held & (length > 0)
            values += _by_label("table_step", torch.where(defined, moved, torch.nan), name)
    return values


def _tables(values: Sequence[object]) -> list[ClassTable]:
    """Return the values if all of them are class tables [C, d] of one shape, else nothing."""
    tables = [value for value in values if isinstance(value, ClassTable) and value.held.dim() == 1]
    return tables if len(tables) == len(values) and len({table.values.shape for table in tables}) == 1 else []


def _between_clients(name: str, clients: Sequence[int], rows: Tensor, held: Tensor) -> list[DriftValue]:
    compared = drift_updates.evenly(range(len(clients)), drift_updates.MOST_COMPARED)
    lengths = rows.norm(dim=2)
    sums, pairs = torch.zeros(held.shape[1], dtype=torch.float64), torch.zeros(held.shape[1], dtype=torch.float64)
    values = list[DriftValue]()
    for i, first in enumerate(compared):
        for second in compared[:i]:
            common = held[first] & held[second]
            scale = (lengths[first] + lengths[second]) / 2
            # The bound only avoids a division by zero: `usable` leaves out pairs of rows that are both zero.
            apart = (rows[first] - rows[second]).norm(dim=1) / scale.clamp(min=1e-30)
            usable = common & (scale > 0)
            sums, pairs = sums + torch.where(usable, apart, 0.0), pairs + usable
            mean = float(apart[usable].mean()) if bool(usable.any()) else None
            values.append(DriftValue("table_distance", mean, clients[second], clients[first], entry=name))
    return values + _by_label("table_distance_of_class", torch.where(pairs > 0, sums / pairs, torch.nan), name)


def _tree_with(server: Record, entry: str, name: str) -> Tensor | None:
    tree = server.get(entry)
    return tree[name].double() if isinstance(tree, dict) and name in tree else None


def _angles(first: Tensor, second: Tensor) -> Tensor:
    """Angles between rows [..., C] in degrees; NaN where a row is zero.

    By the lengths of sum and difference of the unit vectors, because the arc cosine of a number near 1 is mostly
    rounding.
    """
    units = [rows / rows.norm(dim=-1, keepdim=True) for rows in (first, second)]
    return 2 * torch.rad2deg(torch.atan2((units[0] - units[1]).norm(dim=-1), (units[0] + units[1]).norm(dim=-1)))


def _correlation(first: Tensor, second: Tensor) -> float | None:
    """Pearson's correlation; None where one of them is constant."""
    a, b = first - first.mean(), second - second.mean()
    bottom = float(a.norm() * b.norm())
    return float(a @ b) / bottom if bottom > 0 else None


def _by_label(name: str, values: Tensor, entry: str) -> list[DriftValue]:
    return [
        DriftValue(name, value if math.isfinite(value) else None, label=label, entry=entry)
        for label, value in enumerate(values.tolist())
    ]


class DriftObserver:
    """Measures the drift of rounds, and changes nothing that the run computes. `latest` and `seconds` are the drift of
    the last observed round and the time that it took; `class_counts` is that of `head_figures`."""

    def __init__(
        self, class_counts: Callable[[int], Tensor] | None, decomposition: Decomposition | None = None
    ) -> None:
        self._class_counts, self._decomposition = class_counts, decomposition
        self._weights = drift_updates.MeanWeights()
        self.latest: DriftRound | None = None
        self.seconds = 0.0

    def noting(self, method: Method) -> Method:
        return self._weights.noting(method)

    def observe(self, observed: ObservedRound) -> None:
        started, values, notes = time.perf_counter(), list[DriftValue](), list[str]()

        def add(figures: Callable[[], list[DriftValue] | str]) -> None:
            try:
                measured = figures()
            except Exception as error:  # hooks may raise on clients that were not drawn; no run needs figures
                measured = f"drift is not measured: {error_line(error)}"
            if isinstance(measured, str):
                notes.append(measured)
            else:
                values.extend(measured)

        updates = drift_updates.client_updates(observed)
        if isinstance(updates, str):
            notes.append(updates)
        else:
            samples = dict(observed.samples)
            add(lambda: drift_updates.update_figures(updates, observed.ctx.task, samples))
            add(lambda: self._weights.figures(updates.entry, updates.clients, samples))
            add(lambda: head_figures(updates, observed, self._class_counts))
        add(lambda: table_figures(observed))
        if (decomposition := self._decomposition) is not None and decomposition.is_due(observed.ctx.round):
            add(lambda: decomposition.figures(observed))
        # drift.jsonl takes finite numbers and null alone.
        finite = [v if v.value is None or math.isfinite(v.value) else v._replace(value=None) for v in values]
        self.latest = DriftRound(observed.ctx.round, finite, notes)
        self.seconds = time.perf_counter() - started


class RunDrift:
    """Measures the drift of a federation's rounds if the config asks for it, and stores the values in `folder`, if any.

    `elsewhere` says that clients train on nodes, whose data are not here. Raises `ConfigError` for decompositions of
    such a federation.
    """

    def __init__(
        self, config: RunConfig, federation: Federation, worker: Worker, folder: RunFolder | None, elsewhere: bool
    ) -> None:
        self._log = None if folder is None else DriftLog(folder.path)
        self._rounds = list[DriftRound]()
        self._observer: DriftObserver | None = None
        if config.drift is None:
            return
        every, decomposition = config.drift.decompose_every, None
        if every and elsewhere:
            raise ConfigError(
                f"drift.decompose_every = {every}: all clients would train once more here, and their data are on "
                "nodes; leave it out, and drift=true still measures what uploads tell"
            )
        if every:
            decomposition = Decomposition(worker, every)
        counts = None if elsewhere else (lambda client: federation.client_context(client, 0).class_counts)
        self._observer = federation.observer = DriftObserver(counts, decomposition)

    @property
    def rounds(self) -> list[DriftRound] | None:
        """The rounds so far; None if drift is not measured."""
        return None if self._observer is None else self._rounds

    def resume(self, round_: int) -> None:
        """Go on after a round: what was kept of later ones is deleted."""
        if self._observer is not None and self._log is not None:
            self._rounds = self._log.keep_until(round_)

    def store(self, round_: int) -> list[Row]:
        """Keep what was found in a round, and return the row of its cost."""
        if self._observer is None:
            return []
        latest = self._observer.latest
        if latest is None or latest.round != round_:  # no participant had data
            latest = DriftRound(round_, (), ("no participant has data: nothing is measured",))
        self._rounds.append(latest)
        if self._log is not None:
            self._log.append(latest)
        return [new_row(round_, "seconds_drift", self._observer.seconds)]
