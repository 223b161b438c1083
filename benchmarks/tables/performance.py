"""Tables and picture of the page on performance, from results/engines.csv.gz."""

import io
from collections.abc import Mapping
from typing import Any

from benchmarks.bounds import BOUNDS, FORMER, METHODS, range_of
from benchmarks.data import read_results
from benchmarks.tables.words import markdown

WORK = {  # title of the column, and description
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
}
BARS = ("auto", "plain loop", "flower", "pfl", "fluke", "fedjax")
Measured = Mapping[str, Any]


_WHOLE_RUNS = (
    ("short-runs", f"10 rounds: {FORMER}", "10 rounds of MLP, unequal, tested every 5"),
    ("short-runs", f"50 rounds: {FORMER}", "50 rounds of MLP, unequal, tested every 5"),
    ("every-round", FORMER, "the command of 20 rounds of LeNet5-BN, tested every round"),
    ("every-round", f"{FORMER}, own kernels", "the same with own kernels"),
    *(("methods", f"{method}: {FORMER}", f"rounds of {method}, MLP, unequal") for method in METHODS),
)


def tables() -> dict[str, str]:
    """Return the tables and sentences by name."""
    measured = read_results("engines")
    return {
        "engines": engine_table(measured),
        "fedjax": fedjax_table(measured),
        "whole-runs": whole_run_table(measured),
        "apart-from-rounds": sentences(measured),
        "bounds": bound_table(measured),
    }


def engine_table(measured: Measured) -> str:
    """Return a column per work: median seconds per round, and why a peer is missing."""
    works = [work for work in WORK if work in measured]
    rows = []
    for who, title in WHO.items():
        medians = [measured[work]["seconds_a_round"].get(who, {}).get("median") for work in works]
        reasons = {measured[work].get("left out", {}).get(who) for work in works} - {None}
        if any(median is not None for median in medians):
            rows.append([title, *("" if median is None else _number(median) for median in medians)])
        elif reasons:
            rows.append([title, reasons.pop(), *[""] * (len(works) - 1)])
    rows.append(["processor", *(_processor(measured[work]) for work in works)])
    table = markdown(("", *(WORK[work][0] for work in works)), rows)
    return "\n".join([table, "", "The work:", "", *(f"- {WORK[work][0]}: {WORK[work][1]}." for work in works)])


def fedjax_table(measured: Measured) -> str:
    """Compare the default engine with FedJAX: seconds per round, their ratio with its range, and FedJAX's cores."""
    rows = []
    for work in ("mlp-sizes", "logistic-sizes", "mlp", "logistic"):
        part = measured.get(work, {})
        times = [part.get("seconds_a_round", {}).get(who, {}).get("median") for who in ("auto", "fedjax")]
        if None in times:
            continue
        ratio = f"{part['figures']['auto / fedjax']:.2f}{_range(part, 'auto / fedjax')}"
        cores = part.get("cores", {}).get("fedjax")
        cores = f"{cores['median']:.2f}" if cores else ""
        rows.append([WORK[work][0], *map(_number, times), ratio, cores, _processor(part)])
    return markdown(("work", "default, s", "FedJAX, s", "ratio", "FedJAX's cores", "processor"), rows)


def whole_run_table(measured: Measured) -> str:
    """Compare the default engine with `processes`, the former default, in whole runs and for five methods."""
    rows = [
        [words, f"{part['figures'][figure]:.2f}{_range(part, figure)}", _processor(part)]
        for name, figure, words in _WHOLE_RUNS
        if figure in (part := measured.get(name, {})).get("figures", {})
    ]
    return markdown(("work", "default / processes", "processor"), rows) if rows else "Not measured yet."


def bound_table(measured: Measured) -> str:
    """Return the ratios that we asked for and those that we measured, misses included."""
    rows = []
    for row in (bound.judged(measured) for bound in BOUNDS):
        seen = "" if row["seen"] is None else f"{row['seen']:g}{range_of(row)}"
        part = measured.get(row["figure"].partition(":")[0])
        rows.append([row["figure"], row["bound"], seen, row["verdict"], _processor(part) if part and seen else ""])
    return markdown(("ratio", "asked for", "measured", "", "processor"), rows)


def sentences(measured: Measured) -> str:
    """Return in words what was measured apart from rounds."""
    lines = []
    if "every-round" in measured:
        share = measured["every-round"]["figures"]["share of tests"]
        lines.append(f"- Tests take {share:.0%} of the LeNet5-BN run that is tested after every round.")
    if "evaluation" in measured:
        ratio = measured["evaluation"]["figures"]["2 processes / serial"]
        lines.append(f"- Two processes test the personal models of 100 clients {ratio:g} times as fast as one.")
    for name, words in (("resnet8", "ResNet-8"), ("resnet10", "ResNet-10")):
        if name in measured:
            ratio = measured[name]["figures"]["serial / plain loop"]
            lines.append(f"- On {words} the serial engine has {ratio:g} times the speed of a plain loop.")
    return "\n".join(lines)


def picture() -> bytes:
    """Draw bars for each work: seconds per round of fedloom's default engine and of its peers. Returns a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    measured = read_results("engines")
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
    panels[-1, 0].set_xlabel("seconds per round (median); shorter is better")
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120, metadata={"Software": None})
    plt.close(figure)
    return image.getvalue()


def _range(part: Measured, figure: str) -> str:
    low_high = part.get("ranges", {}).get(figure)
    return f" ({low_high[0]:.2f} to {low_high[1]:.2f})" if low_high else ""


def _processor(part: Measured) -> str:
    return str(part["environment"]["processor"]).replace("(R)", "").removesuffix(" Processor")


def _number(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 0.1 else f"{seconds:.2f}"
