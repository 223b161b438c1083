"""Numbers in the prose of the docs are those of committed rows: each is computed again and must be in its sentence."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from benchmarks.cells import read_cells
from benchmarks.data import RESULTS, read_rows
from benchmarks.tables.studies import differences

DOCS = Path(__file__).parents[2] / "docs"
SKEWED, VERY_SKEWED = "all-methods/alpha-0.2", "all-methods/alpha-0.05"
HONEST, AUTHORITIES, HUNDRED = "honest-scale", "honest-scale/authorities", "honest-scale/hundred-clients"
GLOBAL, PERSONAL = "global/global", "personal/local"
DOMAINS, TAIL, NETS, SEVERAL = "digit-domains/", "long-tail/", "two-classes/", "heterogeneous-models/"
NUMBERS = {9: "Nine", 10: "Ten", 11: "Eleven", 15: "Fifteen"}


@cache
def cells(study: str) -> dict[str, dict[str, Any]]:
    return read_cells(study) | (read_cells(f"{study}-rest") if study == HONEST else {})


def cell(setting: str, method: str) -> dict[str, Any]:
    """A method's row in "study/setting"."""
    study, _, name = setting.partition("/")
    return cells(study)[f"{name}/{method}"]


def values(setting: str, method: str, metric: str = "accuracy", protocol: str | None = None) -> list[float]:
    """A method's values by seed, in percent: of the row's own test, or of one of its protocols."""
    row = cell(setting, method)
    return [100 * value for value in (row["tested"][protocol][metric] if protocol else row["accuracies"])]


def gains(setting: str, method: str, plain: str, protocol: str | None = None) -> list[float]:
    """Differences from a plain method in points, seed by seed, over common seeds."""
    ours, theirs = (values(setting, name, protocol=protocol) for name in (method, plain))
    return [a - b for a, b in zip(ours, theirs, strict=False)]


def gain(setting: str, method: str, plain: str, protocol: str | None = None) -> float:
    return fmean(gains(setting, method, plain, protocol))


def span(numbers: list[float]) -> tuple[float, float]:
    return min(numbers), max(numbers)


def within(numbers: list[float]) -> float:
    """The largest distance from 0, rounded up to a tenth."""
    return ceil(10 * max(map(abs, numbers))) / 10


def megabytes(setting: str, method: str) -> float:
    row = cell(setting, method)
    return float(row["bytes_up"] + row["bytes_down"]) / 1e6


def worse(setting: str, method: str, protocol: str = PERSONAL) -> float:
    """The share of clients in percent that are worse off than alone, over clients and seeds."""
    own, alone = (cell(setting, name)["clients"] for name in (method, "local"))
    pairs = [
        (a, b)
        for ours, theirs in zip(own[protocol], alone[PERSONAL], strict=False)
        for a, b in zip(ours, theirs, strict=True)
    ]
    return 100 * fmean(a < b for a, b in pairs)


@cache
def rows(name: str) -> list[dict[str, Any]]:
    return read_rows(RESULTS / f"{name}.csv.gz")


def leak(method: str, column: str, wrapper: str = "") -> float:
    """Mean over seeds of an attack's column for a method."""
    return fmean(row[column] for row in rows("privacy") if (row["method"], row["wrapper"]) == (method, wrapper))


def means_of(setting: str, methods: str, plain: str, protocol: str | None = None) -> list[float]:
    return [gain(setting, method, plain, protocol) for method in methods.split()]


def on_each_seed(setting: str, methods: str, plain: str) -> list[float]:
    return [points for method in methods.split() for points in gains(setting, method, plain)]


def higher_on_all_seeds(setting: str, plain: str) -> str:
    """How many methods of the plain one's protocol are above it on each seed, in words."""
    study, _, name = setting.partition("/")
    labels = [label.partition("/") for label in cells(study)]
    protocol = cell(setting, plain)["protocol"]
    rivals = [m for s, _, m in labels if s == name and m != plain and cell(setting, m)["protocol"] == protocol]
    return NUMBERS[sum(min(gains(setting, method, plain)) > 0 for method in rivals)]


def losses(method: str, attack: str, file: str = "hostile") -> float:
    """Points that an attack by one node costs a method; all of them if the run ended."""
    accuracies = {row["attack"]: row.get("accuracy") for row in rows(file) if row["method"] == method}
    return float(accuracies[None]) - float(accuracies[attack] or 0)


def newcomers(setting: str, method: str, served: str) -> float:
    return 100 * fmean(cell(setting, method)["newcomers"][served]["accuracy"])


def stage(method: str, column: str, view: str = "each client") -> float:
    return fmean(row[column] for row in rows("privacy-stages") if (row["method"], row["view"]) == (method, view))


def words() -> Counter[str]:
    """How often the rule says each word in the tables of the results page."""
    found: Counter[str] = Counter()
    for setting in (VERY_SKEWED, SKEWED, TAIL, DOMAINS, NETS, SEVERAL, "several-widths/"):
        study, _, name = setting.partition("/")
        found.update(word.split(", ")[-1].split(" ")[0] for word in differences(cells(study), name).values())
    return found


def decided(*names: str) -> int:
    return sum(words()[name] for name in names or ("ahead", "behind", "equivalent"))


RESULTS_PAGE: dict[str, Callable[[], Any]] = {
    "decide little, {} of {} words": lambda: (decided(), words().total() - words()["diverged"]),
    "FedNCM and FedCGS are ahead of FedAvg; {} methods are behind, and {} is": lambda: (
        NUMBERS[decided("behind")].lower(),
        {1: "one"}[decided("equivalent")],
    ),
    "One model for all (FedAvg: {:.1f})|0.2": lambda: fmean(values(SKEWED, "fedavg")),
    "One model for each client (Local: {:.1f})|0.05": lambda: fmean(values(VERY_SKEWED, "local")),
    "One model for each client (Local: {:.1f})|0.2": lambda: fmean(values(SKEWED, "local")),
    "One model for all (FedAvg: {:.1f})|domains": lambda: fmean(values(DOMAINS, "fedavg")),
    "One model for each client (Local: {:.1f})|domains": lambda: fmean(values(DOMAINS, "local")),
    "{} methods are higher than FedAvg on all three seeds. Eight": lambda: higher_on_all_seeds(VERY_SKEWED, "fedavg"),
    "{} methods are higher than local training on all three seeds": lambda: higher_on_all_seeds(VERY_SKEWED, "local"),
    "the best method is {:.1f} points above it": lambda: gain(VERY_SKEWED, "fedrep", "local"),
    "FedDF ends at chance on one seed and at {:.1f} % on another": lambda: sorted(values(VERY_SKEWED, "feddf"))[1],
    "tunes for five more epochs is {:.1f} points above local": lambda: gain(VERY_SKEWED, "fedavg+finetune", "local"),
    "have higher means than it, by at most {:.1f} points": lambda: gain(VERY_SKEWED, "fedrep", "fedavg+finetune"),
    "under {:.1f} MB in 30 rounds, both ways together. FedRep needs {:.0f}": lambda: (
        within([megabytes(VERY_SKEWED, name) for name in ("fedssa", "fedproto")]),
        megabytes(VERY_SKEWED, "fedrep"),
    ),
    "q-FedAvg is lower on all three seeds by {:.0f} to {:.0f} points": lambda: sorted(
        -points for points in gains(SKEWED, "qfedavg", "fedavg")
    )[::2],
    "heads gain most, {:.0f} to {:.1f} points on average": lambda: span(
        means_of(SKEWED, "fedrod fedcp fedpac fedper fedco2 fedrep fedas fedala gpfl", "local")
    ),
    "tunes for five epochs gains {:.1f}": lambda: gain(SKEWED, "fedavg+finetune", "local"),
    "FedSSA and FedProto gain {:.1f} and {:.1f} points on all three seeds": lambda: means_of(
        SKEWED, "fedssa fedproto", "local"
    ),
    "FedDBE is lower by {:.0f} points": lambda: -gain(SKEWED, "feddbe", "local"),
    "on all three seeds, by at least {:.0f} points on each": lambda: min(
        on_each_seed(TAIL, "fed3r fedncm ccvr fednh fedcgs fedcof fedlc", "fedavg")
    ),
    "on all three seeds, FedSC by {:.1f} to {:.1f} points": lambda: span(gains(DOMAINS, "fedsc", "fedavg")),
    "made for domains, gain {:.1f} points on average": lambda: fmean(means_of(DOMAINS, "fpl fedplvm", "fedavg")),
    "Fed3R and FedCGS gain {:.1f} points, FedNCM": lambda: fmean(means_of(DOMAINS, "fed3r fedcgs", "fedavg")),
    "FedCOF is lower by {:.0f} to {:.0f} points": lambda: span([-g for g in gains(DOMAINS, "fedcof", "fedavg")]),
    "few. q-FedAvg is lower by {:.0f}": lambda: -gain(DOMAINS, "qfedavg", "fedavg"),
    "Fed-CO2 is higher than local training on all three seeds, by {:.1f} to {:.1f} points": lambda: span(
        gains(DOMAINS, "fedco2", "local")
    ),
    "It trains two nets, with {:.1f} times the computation": lambda: (
        cell(DOMAINS, "fedco2")["flops"] / cell(DOMAINS, "local")["flops"]
    ),
    "FedSSA on one by {:.2f} points": lambda: min(gains(DOMAINS, "fedssa", "local")),
    "FedProto and FD gain {:.1f} points and send": lambda: fmean(means_of(DOMAINS, "fedproto fd", "local")),
    "that each client tunes is lower by {:.1f} points": lambda: -gain(DOMAINS, "fedavg+finetune", "local"),
    "FedORGP is lower by {:.0f} points": lambda: -gain(DOMAINS, "fedorgp", "local"),
    "FedPCL, FD, FedORGP and FedL2G are higher than local training on all three seeds, by {:.1f} to {:.1f} points": (
        lambda: span(on_each_seed(NETS, "fedpcl fd fedorgp fedl2g", "local"))
    ),
    "FD and FedL2G send {:.2f} MB in 15 rounds": lambda: megabytes(NETS, "fedl2g"),
    "and FedProto are within {:.1f} points of local training": lambda: within(
        on_each_seed(NETS, "fedssa fedproto", "local")
    ),
    "FedProto and FedKD are higher than local training on all three seeds, by {:.1f} to {:.1f} points": lambda: span(
        on_each_seed(SEVERAL, "fedproto fedkd", "local")
    ),
    "and lower by {:.1f} points on one. FML and FedMRL": lambda: -min(gains(SEVERAL, "fml", "local")),
    "send a whole LeNet5 both ways: {:.0f} times FedProto's": lambda: (
        megabytes(SEVERAL, "fml") / megabytes(SEVERAL, "fedproto")
    ),
    "FedSSA and FedPCL end within {:.1f} points of local training on average": lambda: within(
        means_of(SEVERAL, "fd fedorgp fedssa fedpcl", "local")
    ),
}
HONEST_PAGE: dict[str, Callable[[], Any]] = {
    "FedSSA sends {:.1f} MB on a hundred clients, where tuned FedAvg sends {:.0f}, for": lambda: [
        (cell(HUNDRED, name)["bytes_up"] + cell(HUNDRED, name)["bytes_down"]) / 1e6
        for name in ("fedssa", "fedavg+finetune")
    ],
    "for an accuracy that is {:.1f} points lower": lambda: -gain(HUNDRED, "fedssa", "fedavg+finetune", PERSONAL),
    "FedRoD comes within {:.1f} points of tuned FedAvg": lambda: within(
        means_of(HUNDRED, "fedrod", "fedavg+finetune", PERSONAL)
    ),
    "Fed-CO2 takes {:.1f} times FedAvg's": lambda: cell(HUNDRED, "fedco2")["flops"] / cell(HUNDRED, "fedavg")["flops"],
    "FedSKC is {:.1f} points lower, undecided": lambda: -gain(AUTHORITIES, "fedskc", "fedavg", GLOBAL),
    "are ahead of local training, by {:.1f} to {:.1f} points. No": lambda: span(
        means_of(AUTHORITIES, "fedssa pfedme fedala fedrod fednh fedavg+finetune fedavg+lpft", "local", PERSONAL)
    ),
    "FedSSA has the highest mean, {:.1f} points over it": lambda: gain(
        AUTHORITIES, "fedssa", "fedavg+finetune", PERSONAL
    ),
    "tuning FedAvg, {:.0f} to {:.0f} % of the authorities": lambda: span(
        [
            worse(AUTHORITIES, name)
            for name in ("fedssa", "pfedme", "fedala", "fedrod", "fedavg+finetune", "fedavg+lpft")
        ]
    ),
    "send first weights, at {:.0f} %. After one round FedSSA reaches {:.1f} %": lambda: (
        newcomers(AUTHORITIES, "fedssa", "zero-shot"),
        newcomers(AUTHORITIES, "fedssa", "all-shot/own"),
    ),
    "has the highest balanced accuracy ({:.1f} %), with one of the lowest accuracies ({:.1f} %)": lambda: (
        fmean(values(AUTHORITIES, "fedrod", "balanced_accuracy", GLOBAL)),
        fmean(values(AUTHORITIES, "fedrod", protocol=GLOBAL)),
    ),
    "FedRoD is ahead of FedAvg by {:.1f} points and FedNH by {:.1f}": lambda: means_of(
        HUNDRED, "fedrod fednh", "fedavg", GLOBAL
    ),
    "(`Central`, {:.1f} %)": lambda: fmean(values(HUNDRED, "central", protocol=GLOBAL)),
    "FedAdam has the highest mean ({:+.1f})": lambda: gain(HUNDRED, "fedadam", "fedavg", GLOBAL),
    "lie below FedAvg's, by {:.1f}, {:.1f} and {:.1f} points": lambda: [
        -points for points in means_of(HUNDRED, "fedavg+finetune fedala pfedme", "fedavg", GLOBAL)
    ],
    "are ahead of local training, by {:.1f} to {:.1f} points; FedSSA": lambda: span(
        means_of(
            HUNDRED,
            "fedavg+finetune fedavg+lpft fedrod fedrep fednh fedala fedco2 pfedme fedproto fedbabu fedper",
            "local",
            PERSONAL,
        )
    ),
    "and FedPer have means within {:.1f} points of it": lambda: within(
        means_of(HUNDRED, "fedrod fedbabu fedper", "fedavg+finetune", PERSONAL)
    ),
    "under FedBABU and FedRoD {:.0f} and {:.0f} % of the clients": lambda: [
        worse(HUNDRED, name) for name in ("fedbabu", "fedrod")
    ],
    "under Fed-CO2 {:.0f} %, under pFedMe and FedSSA {:.0f} and {:.0f} %": lambda: [
        worse(HUNDRED, name) for name in ("fedco2", "pfedme", "fedssa")
    ],
    "pFedMe falls to {:.0f} % when all weights are tuned on five samples": lambda: newcomers(
        HUNDRED, "pfedme", "5-shot/all/5"
    ),
}
LEAKS_PAGE: dict[str, Callable[[], Any]] = {
    "the mean of their weights still reveals samples at about {:.0f} dB": lambda: round(
        leak("fedavg", "inputs.1.exact", "mean alone"), -1
    ),
    "and 16 at about {:.0f} dB": lambda: leak("fedavg", "inputs.16.exact"),
    "images of single samples at about {:.0f} dB": lambda: stage("fedncm", "means.lone"),
    "FedAvg, FedSKC and FedDW lose about {:.0f} points": lambda: fmean(
        leak(name, "accuracy") - leak(name, "accuracy", "dp, z = 1") for name in ("fedavg", "fedskc", "feddw")
    ),
    "FedSC loses {:.0f}, because": lambda: leak("fedsc", "accuracy") - leak("fedsc", "accuracy", "dp, z = 1"),
    "epsilon is still at least {:.0f}": lambda: leak("fedavg", "epsilon", "dp, z = 1"),
    "although the networks overfit: about {:.1f} by a client's upload": lambda: leak("fedavg", "membership.upload"),
}
HOSTILE_PAGE: dict[str, Callable[[], Any]] = {
    "{} of {} methods lose more than 5 points by it": lambda: (
        sum(losses(name, "flipped x2") > 5 for name in {row["method"] for row in rows("hostile")}),
        len({row["method"] for row in rows("hostile")}),
    ),
    "FedCGS, pFedFDA and q-FedAvg at least {:.0f} points": lambda: (
        10 * (min(losses(name, "just inside") for name in ("fedcgs", "pfedfda", "qfedavg")) // 10)
    ),
    "at least 30 points, FedCOF {:.0f}, and": lambda: losses("fedcof", "just inside"),
    "FedL2G, FPL and SCAFFOLD {:.0f} to {:.1f}": lambda: span(
        [losses(name, "just inside") for name in ("fedexp", "fedl2g", "fpl", "scaffold")]
    ),
    "length cost FedCGS {:.0f} points": lambda: losses("fedcgs", "constant, same length"),
    "FedDyn and q-FedAvg {:.0f} to {:.0f}.": lambda: span(
        [losses(name, "constant, same length") for name in ("fedadagrad", "fedavgm", "feddyn", "qfedavg")]
    ),
    "around each of the {} methods that take it": lambda: len({row["method"] for row in rows("median")}),
    "the median itself costs pFedFDA {:.0f} points and q-FedAvg {:.0f}": lambda: [
        next(row["accuracy"] for row in rows("hostile") if (row["method"], row["attack"]) == (name, None))
        - next(row["accuracy"] for row in rows("median") if (row["method"], row["attack"]) == (f"{name}+median", None))
        for name in ("pfedfda", "qfedavg")
    ],
    "Floco loses {:.0f}, because": lambda: losses("floco+median", "flipped x2", "median"),
}
STATEMENTS = {
    "results.md": RESULTS_PAGE,
    "honest-scale.md": HONEST_PAGE,
    "privacy-leaks.md": LEAKS_PAGE,
    "hostile-nodes.md": HOSTILE_PAGE,
}


@cache
def prose(page: str) -> str:
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("page", "sentence"), [(page, sentence) for page, sentences in STATEMENTS.items() for sentence in sentences]
)
def test_a_statement_has_the_number_of_its_rows(page: str, sentence: str) -> None:
    found = STATEMENTS[page][sentence]()
    numbers = found if isinstance(found, list | tuple) else (found,)
    assert sentence.partition("|")[0].format(*numbers) in prose(page)


def test_there_are_many_of_them() -> None:
    assert sum(len(sentences) for sentences in STATEMENTS.values()) >= 40
