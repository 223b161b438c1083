"""The picture and the tables of docs/performance.md, and the table of bounds in README.md, from results/engines.json.

python benchmarks/performance_page.py      # after engines.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    "2 processes": "fedloom, 2 processes",
    "batched, 2 processes": "fedloom, batched, 2 processes",
    "2 processes, own kernels": "fedloom, 2 processes, own kernels",
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
    shown = {"engines": table_of(measured), "beside-rounds": sentences_of(measured)}
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


def bounds_of(measured: Measured) -> str:
    """What was asked for, and what was seen: misses stay."""
    rows = [row for row in measured.get("must hold", []) if row["seen"] is not None]
    lines = ["| ratio | asked for | seen | | processor |", "|---|---|---|---|---|"]
    for row in rows:
        processor = _processor(measured[row["figure"].partition(":")[0]])
        lines.append(f"| {row['figure']} | {row['bound']} | {row['seen']:g} | {row['verdict']} | {processor} |")
    return "\n".join(lines) + "\n"


def sentences_of(measured: Measured) -> str:
    """What is measured beside rounds, in words. What was not measured is left out."""
    sentences = []
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
