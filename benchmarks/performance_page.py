"""The picture and the tables of docs/performance.md, and the table of bounds in README.md, from results/engines.json.

python benchmarks/performance_page.py      # after engines.py; `make bench` ends with it
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bounds import BOUNDS, FORMER, METHODS, range_of
from fedloom.core.files import write_atomic
from marked_tables import with_tables

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "engines.json"
PAGE = HERE.parent / "docs" / "performance.md"
NOTEBOOK = HERE / "README.md"
PICTURE = HERE.parent / "docs" / "images" / "performance.png"
WORK = {  # a column's title, and what it is
    "cnn": ("LeNet5", "LeNet5 on 32x32x3, 50 clients a round of 160 samples each, batch 16"),
    "fashion": ("LeNet5-BN", "LeNet5 with batch norm, Fashion-MNIST, Dirichlet 0.3, 10 of 100 clients, batch 32"),
    "mlp-sizes": ("MLP, unequal", "MLP 784-128-10, 100 of 1,000 clients, Dirichlet 0.3, 4 to 219 samples, batch 10"),
    "mlp": ("MLP, equal", "the same MLP, 100 of 1,000 clients, 60 samples each"),
    "logistic-sizes": ("logistic, unequal", "logistic regression on the unequal clients"),
    "logistic": ("logistic, equal", "logistic regression on the equal clients"),
}
WHO = {
    "auto": "**fedloom, default**",
    "serial": "fedloom, serial",
    "threads": "fedloom, threads",
    "2 processes": "fedloom, 2 processes",
    "batched, 2 processes": "fedloom, batched, 2 processes",
    "2 processes, own kernels": "fedloom, 2 processes, own kernels",
    "auto, own kernels": "fedloom, default, own kernels",
    "plain loop": "plain loop",
    "flower": "Flower",
    "pfl": "pfl",
    "fluke": "fluke",
    "fedjax": "FedJAX",
    "blazefl": "BlazeFL",
}
BARS = ("auto", "plain loop", "flower", "pfl", "fluke", "fedjax")
Measured = Mapping[str, Any]


def tables(measured: Measured) -> dict[Path, dict[str, str]]:
    """By page, its tables and sentences by the name between their marks."""
    shown = {
        "engines": table_of(measured),
        "fedjax": fedjax_of(measured),
        "whole-runs": whole_runs_of(measured),
        "beside-rounds": sentences_of(measured),
    }
    return {PAGE: shown, NOTEBOOK: {"bounds": bounds_of(measured)}}


def table_of(measured: Measured) -> str:
    """One column for each work: seconds a round, medians, and why a peer is missing."""
    works = [work for work in WORK if work in measured]
    lines = ["| | " + " | ".join(WORK[work][0] for work in works) + " |", "|---" * (len(works) + 1) + "|"]
    for who, title in WHO.items():
        cells = [measured[work]["seconds_a_round"].get(who, {}).get("median") for work in works]
        reasons = {measured[work].get("left out", {}).get(who) for work in works} - {None}
        if any(cell is not None for cell in cells):
            lines.append(f"| {title} | " + " | ".join("" if c is None else _number(c) for c in cells) + " |")
        elif reasons:
            lines.append(f"| {title} | {reasons.pop()} |" + " |" * (len(works) - 1))
    lines.append("| processor | " + " | ".join(_processor(measured[work]) for work in works) + " |")
    return "\n".join([*lines, "", "The work:", "", *(f"- {WORK[w][0]}: {WORK[w][1]}." for w in works)]) + "\n"


def fedjax_of(measured: Measured) -> str:
    """The default engine beside FedJAX: seconds a round, their ratio with its range, and FedJAX's cores."""
    lines = ["| work | default, s | FedJAX, s | ratio | FedJAX's cores | processor |", "|---|---|---|---|---|---|"]
    for work in ("mlp-sizes", "logistic-sizes", "mlp", "logistic"):
        part = measured.get(work, {})
        times = [part.get("seconds_a_round", {}).get(who, {}).get("median") for who in ("auto", "fedjax")]
        if None in times:
            continue
        ratio, cores = f"{part['figures']['auto / fedjax']:.2f}", part.get("cores", {}).get("fedjax")
        ratio += _range(part, "auto / fedjax")
        cells = [
            WORK[work][0],
            *map(_number, times),
            ratio,
            f"{cores['median']:.2f}" if cores else "",
            _processor(part),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def whole_runs_of(measured: Measured) -> str:
    """Runs from start to end, and five methods: the default engine beside `processes`, the default before threads."""
    rows = [
        ("short-runs", f"10 rounds: {FORMER}", "10 rounds of MLP, unequal, tested every 5"),
        ("short-runs", f"50 rounds: {FORMER}", "50 rounds of MLP, unequal, tested every 5"),
        ("every-round", FORMER, "the command of 20 rounds of LeNet5-BN, tested every round"),
        ("every-round", f"{FORMER}, own kernels", "the same with own kernels"),
        *(("methods", f"{method}: {FORMER}", f"rounds of {method}, MLP, unequal") for method in METHODS),
    ]
    lines = ["| work | default / processes | processor |", "|---|---|---|"]
    for name, figure, words in rows:
        part = measured.get(name, {})
        if figure in part.get("figures", {}):
            lines.append(f"| {words} | {part['figures'][figure]:.2f}{_range(part, figure)} | {_processor(part)} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else "These rows are not measured yet.\n"


def bounds_of(measured: Measured) -> str:
    """The ratios that were asked for, and those that were seen: misses stay."""
    lines = ["| ratio | asked for | seen | | processor |", "|---|---|---|---|---|"]
    for row in (bound.judged(measured) for bound in BOUNDS):
        seen = "" if row["seen"] is None else f"{row['seen']:g}{range_of(row)}"
        part = measured.get(row["figure"].partition(":")[0])
        processor = _processor(part) if part and seen else ""
        lines.append(f"| {row['figure']} | {row['bound']} | {seen} | {row['verdict']} | {processor} |")
    return "\n".join(lines) + "\n"


def sentences_of(measured: Measured) -> str:
    """The figures that are measured beside rounds, in words; those that were not measured are left out."""
    sentences = []
    if "every-round" in measured:
        share = measured["every-round"]["figures"]["share of tests"]
        sentences.append(f"- Tests take {share:.0%} of the LeNet5-BN run that is tested after every round.")
    if "evaluation" in measured:
        ratio = measured["evaluation"]["figures"]["2 processes / serial"]
        sentences.append(f"- Two processes test the personal models of 100 clients {ratio:g} times as fast as one.")
    for name, words in (("resnet8", "ResNet-8"), ("resnet10", "ResNet-10")):
        if name in measured:
            ratio = measured[name]["figures"]["serial / plain loop"]
            sentences.append(f"- On {words} the serial engine has {ratio:g} times the speed of a plain loop.")
    return "\n".join(sentences) + "\n"


def draw(measured: Measured, path: Path) -> None:
    """Bars for each work: seconds a round, fedloom's default engine beside its peers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    works = [work for work in WORK if work in measured]
    figure, panels = plt.subplots(len(works), 1, figsize=(6.4, 1.6 * len(works)), layout="constrained", squeeze=False)
    for axes, work in zip(panels[:, 0], works, strict=True):
        seconds = {who: times["median"] for who, times in measured[work]["seconds_a_round"].items() if who in BARS}
        names = [who for who in reversed(BARS) if who in seconds]
        colours = ["#00897b" if who == "auto" else "#b0bec5" for who in names]
        bars = axes.barh([WHO[who].strip("*") for who in names], [seconds[who] for who in names], color=colours)
        axes.bar_label(bars, [f"{_number(seconds[who])} s" for who in names], padding=4)
        axes.set_title(WORK[work][1], fontsize=8, loc="left")
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel("seconds a round (median); shorter is better")
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def _range(part: Measured, figure: str) -> str:
    low_high = part.get("ranges", {}).get(figure)
    return f" ({low_high[0]:.2f} to {low_high[1]:.2f})" if low_high else ""


def _processor(part: Measured) -> str:
    return str(part["environment"]["processor"]).replace("(R)", "").removesuffix(" Processor")


def _number(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 0.1 else f"{seconds:.2f}"


def main() -> None:
    """Write the tables and the picture."""
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    for page, texts in tables(measured).items():
        write_atomic(page, with_tables(page.read_text(encoding="utf-8"), texts))
    draw(measured, PICTURE)


if __name__ == "__main__":
    main()
