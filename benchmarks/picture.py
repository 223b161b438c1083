"""What `results/engines.json` says, for people: `python benchmarks/picture.py`.

Writes the picture, the table and the figures of `docs/performance.md`. Run it after `engines.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "engines.json"
PAGE = HERE.parent / "docs" / "performance.md"
PICTURE = HERE.parent / "docs" / "images" / "performance.png"
WORK = {  # a column's title, and what it is
    "cnn": ("LeNet5", "LeNet5 on 32x32x3, 50 clients a round, batch 16"),
    "fashion": (
        "LeNet5, batch norm",
        "LeNet5 with batch norm, Fashion-MNIST, Dirichlet 0.3, 10 clients a round, batch 32",
    ),
    "mlp": ("MLP", "MLP 784-128-10, 100 clients of 60 samples a round, batch 10"),
    "logistic": ("logistic regression", "logistic regression, 100 clients of 60 samples a round, batch 10"),
}
ENGINES = {
    "plain loop": ["plain loop"],
    "serial": ["serial"],
    "2 processes": ["2 processes"],
    "batched, 2 processes": ["batched, 2 processes"],
    "own kernels, 2 processes": ["2 processes, own kernels", "batched, 2 processes, own kernels"],
}
PEERS = {"fedloom": "fedloom, auto", "flower": "Flower", "pfl": "pfl", "fedjax": "FedJAX"}
Measured = Mapping[str, Any]


def with_figures(page: str, measured: Measured) -> str:
    """`page` with the table and the sentences between their markers."""
    for name, text in (("table", table_of(measured)), ("figures", sentences_of(measured))):
        begin, end = f"<!-- {name} engines -->\n", f"<!-- end {name} -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        if not rest:
            raise SystemExit(f"{PAGE}: no line '{begin.strip()}'")
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def table_of(measured: Measured) -> str:
    """One column for each work: seconds a round, medians."""
    own = {name: _seconds(measured, name) for name in WORK}
    peers = {name: _seconds(measured, f"{name} beside peers") for name in WORK}

    def row(title: str, of: Mapping[str, Mapping[str, float]], names: list[str]) -> str:
        cells = [min((of[work][who] for who in names if who in of[work]), default=None) for work in WORK]
        return f"| {title} | " + " | ".join("" if c is None else _number(c) for c in cells) + " |"

    empty = " |" * len(WORK)
    lines = [
        "| | " + " | ".join(short for short, _ in WORK.values()) + " |",
        "|---" * (len(WORK) + 1) + "|",
        f"| **engines, in turns** |{empty}",
        *(row(title, own, names) for title, names in ENGINES.items()),
        f"| **peers, in turns** |{empty}",
        *(row(title, peers, [who]) for who, title in PEERS.items()),
    ]
    return "\n".join([*lines, "", "The work:", "", *(f"- {words}." for _, words in WORK.values())]) + "\n"


def sentences_of(measured: Measured) -> str:
    """What is measured beside rounds, in words. What was not measured is left out."""
    found = []
    if "fashion, 20 rounds from the command" in measured:
        took = measured["fashion, 20 rounds from the command"]
        ours, theirs = took["fedloom"]["median_s"], took["flower"]["median_s"]
        found.append(
            f"- From the command to the result, 20 rounds on Fashion-MNIST take {ours:.0f} s, in Flower {theirs:.0f} s."
        )
    if "no-op beside flower" in measured:
        each = measured["no-op beside flower"]
        words = " and ".join(f"{each[k]['fedloom_ms']:.1f} ms ({each[k]['flower_ms']:.0f} ms in Flower)" for k in each)
        sizes = " and ".join(f"{int(k.split()[0]):,}" for k in each)
        found.append(f"- A client that does nothing costs, with {sizes} parameters, {words}.")
    if "memory" in measured:
        few, many = (measured["memory"]["fedbn, lenet5-bn"][k]["peak_memory_mb"] for k in ("10", "1000"))
        found.append(f"- FedBN needs {few:.0f} MiB with 10 clients and {many:.0f} MiB with 1,000.")
    if "scale" in measured:
        few, many = (_seconds(measured, "scale")[k] for k in ("1,000", "1,000,000"))
        found.append(
            f"- A round of 100 clients takes {_number(few)} s of 1,000 registered ones, {_number(many)} s of 1,000,000."
        )
    return "\n".join(found) + "\n"


def draw(measured: Measured, path: Path) -> None:
    """Bars for each work: seconds a round, fedloom beside its peers, in the hour in which they took turns."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    works = [name for name in WORK if f"{name} beside peers" in measured]
    figure, panels = plt.subplots(len(works), 1, figsize=(6.4, 1.75 * len(works)), layout="constrained", squeeze=False)
    for axes, name in zip(panels[:, 0], works, strict=True):
        seconds = _seconds(measured, f"{name} beside peers")
        names = [who for who in reversed(PEERS) if who in seconds]
        colours = ["#00897b" if who == "fedloom" else "#b0bec5" for who in names]
        bars = axes.barh([PEERS[who] for who in names], [seconds[who] for who in names], color=colours)
        axes.bar_label(bars, [f"{_number(seconds[who])} s" for who in names], padding=4)
        axes.set_title(WORK[name][1], fontsize=9, loc="left")
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel("seconds a round (median); shorter is better")
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def _seconds(measured: Measured, part: str) -> dict[str, float]:
    taken = measured.get(part, {}).get("seconds_a_round", {})
    return {who: figures["median_s"] for who, figures in taken.items()}


def _number(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 0.1 else f"{seconds:.2f}"


def main() -> None:
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(with_figures(PAGE.read_text(encoding="utf-8"), measured), encoding="utf-8")
    draw(measured, PICTURE)


if __name__ == "__main__":
    main()
