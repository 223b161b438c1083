"""Accuracies of single clients: how they spread, and how many clients a method leaves worse off. Needs no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from operator import itemgetter
from statistics import fmean, mean, median, pstdev
from typing import Any, TypeAlias

from fedloom.core.text import counts_text, percent
from fedloom.results.comparability import same_setting
from fedloom.results.data_table import DataTable, Field, diverged_field, label_with_notes
from fedloom.results.group import Group, selected_accuracies

_BySeed: TypeAlias = Mapping[int, Mapping[int, float]]  # accuracy by seed and client
_EDGE = 0.1  # share of the clients that are the worst, or the best
REFERENCES = {"Local": ("local", "personal/local"), "FedAvg": ("fedavg", "global/local")}
ITS_GLOBAL = "its global model"  # before personalisation, from the same run: Motley's "hurt" (Wu et al. 2022)
_PERSONAL, _GLOBAL, _FOREIGN = "personal/local", "global/local", "personal/others"
_runs = itemgetter("method", "preset", "select", "setting", "cell")  # of a row, in whatever protocol


@dataclass(frozen=True, slots=True)
class Fairness:
    """How accuracy spreads over the clients that have test samples; shares in [0, 1].

    std is over all clients (ddof 0), which are no sample; worst10 and best10 are means of the worst and best tenth, at
    least one client; gap and gap10 are the distances of best and worst. jain is Jain's index: 1 if all are equal, 1/N
    if one client has everything, None if all are zero."""

    clients: float
    mean: float
    std: float
    worst10: float
    best10: float
    gap: float
    gap10: float
    jain: float | None


@dataclass(frozen=True, slots=True)
class ClientShares:
    """Mean shares of the clients that are worse, equal or better than with another method, on the same test samples.

    worse_clients: how many are worse. compared: with each seed, how many are compared."""

    worse: float
    equal: float
    better: float
    worse_clients: float
    compared: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FairnessRow:
    """Means over seeds of one group of runs.

    `against` has the shares by reference. `smallest` and `median` are test samples of a client, over the clients of all
    seeds. `foreign` is the accuracy of personal models on other clients' data, and `drop` the mean of own minus foreign
    accuracy. None stands for a value that the runs did not record. `diverged`: seeds whose accuracies mean nothing."""

    label: str
    protocol: str
    seeds: int
    fairness: Fairness
    against: dict[str, ClientShares]
    smallest: int | None
    median: float | None
    foreign: float | None = None
    drop: float | None = None
    diverged: Sequence[int] = ()


def fairness(accuracies: Sequence[float]) -> Fairness | None:
    """Measure the spread over clients; None without clients.

    Example:
        >>> spread = fairness([0.5, 0.9, 1.0])
        >>> spread.worst10, spread.gap, round(spread.jain, 3)
        (0.5, 0.5, 0.932)
    """
    if not accuracies:
        return None
    ordered, n = sorted(accuracies), len(accuracies)
    edge = ceil(_EDGE * n)
    worst10, best10 = fmean(ordered[:edge]), fmean(ordered[-edge:])
    squares = sum(value * value for value in ordered)
    jain = sum(ordered) ** 2 / (n * squares) if squares else None
    gap = ordered[-1] - ordered[0]
    return Fairness(n, fmean(ordered), pstdev(ordered), worst10, best10, gap, best10 - worst10, jain)


def client_shares(ours: Mapping[int, float], theirs: Mapping[int, float]) -> ClientShares | None:
    """Compare accuracies in [0, 1] of `ours` and `theirs` client by client; None without a common client."""
    common = ours.keys() & theirs.keys()
    if not common:
        return None
    n, worse = len(common), sum(ours[client] < theirs[client] for client in common)
    better = sum(ours[client] > theirs[client] for client in common)
    return ClientShares(worse / n, (n - worse - better) / n, better / n, worse, (n,))


def fairness_rows(groups: Sequence[Group]) -> list[FairnessRow]:
    """Return a row for each group whose protocol tests single clients, in their order, at the selected round.

    A row is compared with local training and with FedAvg's global model on the clients' data, where these ran in the
    same setting and selection and did not diverge. Personal models are also compared with the global model of the same
    runs, if it was tested, and have their accuracy on other clients' data."""
    by_seed = [
        {run.numbers["seed"]: tested for run in group.results if (tested := selected_accuracies(run))}
        for group in groups
    ]
    rows = []
    for group, accuracies in zip(groups, by_seed, strict=True):
        measured = [spread for of in accuracies.values() if (spread := fairness(list(of.values())))]
        if not measured:
            continue
        against: dict[str, ClientShares] = {}
        references = REFERENCES if group.row["protocol"].endswith("/local") else {}  # on the same test samples
        pairs = list(zip(groups, by_seed, strict=True))
        for name, reference in references.items():
            runs = [pair for pair in pairs if (pair[0].row["method"], pair[0].row["protocol"]) == reference]
            runs = [(other, other_accuracies) for other, other_accuracies in runs if _comparable(group, other)]
            for other, other_accuracies in runs:
                shares = None if other is group else _mean_shares(accuracies, other_accuracies)
                against |= {name if len(runs) == 1 else other.row["label"]: shares} if shares else {}
        foreign: tuple[float | None, float | None] = None, None
        for other, other_accuracies in pairs:
            if group.row["protocol"] == _PERSONAL and _runs(group.row) == _runs(other.row):
                if other.row["protocol"] == _GLOBAL and (shares := _mean_shares(accuracies, other_accuracies)):
                    against |= {} if group.row["diverged"] else {ITS_GLOBAL: shares}
                if other.row["protocol"] == _FOREIGN:
                    foreign = _foreign(accuracies, other_accuracies)
        row, sizes = group.row, _test_sizes(group)
        texts = row["label"], row["protocol"], len(measured)
        rows.append(FairnessRow(*texts, mean_fairness(measured), against, *sizes, *foreign, row["diverged"]))
    return rows


def _test_sizes(group: Group) -> tuple[int | None, float | None]:
    """Return the smallest and the median number of test samples of a client, over the clients of all seeds.

    Runs with too many classes for matrices by client recorded both; then the median is that of the seeds' medians."""
    by_run = [[sum(n for *_, n in pairs) for pairs in run.confusions().values() if pairs] for run in group.results]
    if all(by_run):
        sizes = [size for sizes_of_run in by_run for size in sizes_of_run]
        return min(sizes), float(median(sizes))
    scenarios = [run.scenario for run in group.results]
    if not group.row["protocol"].endswith("/local") or any(
        "client_test_median" not in scenario for scenario in scenarios
    ):
        return None, None
    smallest = min(scenario["client_test_smallest"] for scenario in scenarios)
    return smallest, float(median(scenario["client_test_median"] for scenario in scenarios))


def _comparable(group: Group, other: Group) -> bool:
    if group.row["diverged"] or other.row["diverged"]:
        return False
    return group.row["select"] == other.row["select"] and same_setting(group.row, other.row)


def _foreign(own: _BySeed, others: _BySeed) -> tuple[float | None, float | None]:
    """The mean accuracy on other clients' data, and the mean drop of a client from its own data to theirs."""
    common = sorted(own.keys() & others.keys())
    drops = [
        fmean(own[seed][client] - others[seed][client] for client in both)
        for seed in common
        if (both := own[seed].keys() & others[seed].keys())
    ]
    means = [fmean(others[seed].values()) for seed in common]
    return fmean(means) if means else None, fmean(drops) if drops else None


def mean_fairness(measured: Sequence[Fairness]) -> Fairness:
    """Return the mean of each figure over seeds; Jain's index over those where it is defined."""
    defined: dict[str, list[Any]] = {
        name: [value for found in measured if (value := getattr(found, name)) is not None]
        for name in Fairness.__slots__
    }
    clients = mean(defined.pop("clients"))  # stays a whole number where all seeds have as many
    return Fairness(clients, **{name: fmean(values) if values else None for name, values in defined.items()})  # type: ignore[arg-type]  # only Jain's index may be None


def _mean_shares(ours: _BySeed, theirs: _BySeed) -> ClientShares | None:
    common = sorted(ours.keys() & theirs.keys())
    by_seed = [shares for seed in common if (shares := client_shares(ours[seed], theirs[seed]))]
    if not by_seed:
        return None
    names = ("worse", "equal", "better", "worse_clients")
    worse, equal, better, clients = (fmean(getattr(shares, name) for shares in by_seed) for name in names)
    return ClientShares(worse, equal, better, clients, tuple(n for shares in by_seed for n in shares.compared))


def _record(row: FairnessRow) -> dict[str, Any]:
    """Return a row as plain values, without the shares against references that did not run."""
    record: dict[str, Any] = {"label": row.label, "protocol": row.protocol, "seeds": row.seeds}
    record |= asdict(row.fairness)
    for name, shares in row.against.items():
        kinds = ("worse", "equal", "better")
        record |= {f"{kind}_than_{name.lower().replace(' ', '_')}": getattr(shares, kind) for kind in kinds}
    record |= {} if row.foreign is None else {"foreign": row.foreign, "drop": row.drop}
    record |= {"smallest_test": row.smallest, "median_test": row.median}
    return record | diverged_field(row.diverged)


_CAPTION = (
    "Accuracy over clients, means over seeds: std over all clients, means of the worst and best tenth, Jain's index "
    "(1: all alike), and clients that are strictly worse than with the same seed's reference."
)
_SHARES = {"mean %": "mean", "std": "std", "worst 10 %": "worst10", "best 10 %": "best10", "best to worst": "gap"}


def fairness_table(groups: Sequence[Group]) -> DataTable:
    """Return the fairness of all groups that test single clients: percent for people, clients as k of N."""
    rows = fairness_rows(groups)
    named = dict.fromkeys(name for row in rows for name in row.against)
    # FedAvg and local training come first, the run's own global model last.
    known = {name: place for place, name in enumerate((*REFERENCES, None, ITS_GLOBAL))}
    references = sorted(named, key=lambda name: known.get(name, known[None]))
    columns: list[Field[FairnessRow]] = [Field("method", lambda row: label_with_notes(row.label, None, row.diverged))]
    if len({row.protocol for row in rows}) > 1:
        columns.append(Field("protocol", lambda row: row.protocol))
    columns += [Field.of(heading, _share(name), percent) for heading, name in _SHARES.items()]
    columns.append(Field.of("Jain", _share("jain"), "{:.3f}".format))
    if any(row.foreign is not None for row in rows):
        columns.append(Field.of("on others' data %", lambda row: row.foreign, percent))
        columns.append(Field.of("drop", lambda row: row.drop, percent))
    columns += map(_worse_than, references)
    if any(row.smallest is not None for row in rows):
        columns.append(Field("test samples, least / median", _sizes, lambda row: row.smallest))
    records = [_record(row) for row in rows]
    return DataTable.of("fairness", _CAPTION, columns, rows, records=records, title="Accuracy over clients")


def _share(name: str) -> Callable[[FairnessRow], float | None]:
    return lambda row: getattr(row.fairness, name)


def _worse_than(name: str) -> Field[FairnessRow]:
    def text(row: FairnessRow) -> str:  # "1.3 of 18", or "2.5 of 17 to 18" where seeds differ
        shares = row.against.get(name)
        return "–" if shares is None else f"{_number_text(shares.worse_clients)} of {counts_text(shares.compared)}"

    def number(row: FairnessRow) -> float | None:
        return row.against[name].worse_clients if name in row.against else None

    return Field(f"worse than {name}", text, number)


def _sizes(row: FairnessRow) -> str:
    return "–" if row.smallest is None else f"{row.smallest:,} / {_number_text(row.median or 0.0)}"


def _number_text(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")
