"""The section on a GPU of the page on performance, from results/gpu.csv.gz; empty while nothing has been measured."""

from collections.abc import Mapping
from typing import Any

from benchmarks.data import read_results
from benchmarks.tables.words import markdown

WORK = {
    "lenet": "LeNet5-BN, 100 unequal clients, batch 32",
    "mlp": "MLP 784-128-10, 100 unequal clients, batch 10",
    "resnet": "ResNet-18, 10 clients of 5,000, batch 64",
}
WHO = {"default": "**fedloom, default**", "plain loop": "plain loop", "torch.compile": "the same with torch.compile"}
WHO |= {"jax": "JAX, vmap over clients", "with test": "whole run, with tests", "without test": "whole run, without"}
KINDS = ("float32", "whole-runs", "peers", "tf32", "bfloat16")
_CLOSE = 1e-5  # that we asked for
Measured = Mapping[str, Any]


def tables() -> dict[str, str]:
    """Return the section by its name."""
    measured = read_results("gpu")
    return {"gpu": section(measured) if measured else ""}


def section(measured: Measured) -> str:
    """Return the section: seconds per round, the five methods against FedAvg, and the bits of all methods."""
    here = measured["environment"]
    versions = f"torch {here['versions']['torch']}, driver {here.get('driver', 'unknown')}"
    rows = [row for kind in KINDS for row in _rows_of(kind, measured)]
    return "\n\n".join(
        [
            "## On a GPU",
            f"Seconds per round on one {here['device']} with {versions}: medians with their range, of contestants that "
            "took turns. JAX rounds products to TF32. Tests are on 10,000 images.",
            markdown(("", "precision", *WORK.values()), rows),
            "The five methods take so many times as long as FedAvg:",
            markdown(("", *WORK.values()), _method_rows(measured)),
            _bits(measured),
        ]
    )


def _rows_of(kind: str, measured: Measured) -> list[list[str]]:
    """Rows of a kind of parts: contestant, precision, and seconds by workload."""
    parts = [measured.get(f"{kind}, {work}", {}) for work in WORK]
    names = dict.fromkeys(name for part in parts for name, entry in part.items() if "median" in entry)
    rows = []
    for name in names:
        if kind == "peers" and name == "default":
            continue  # it has a row
        precision = "tf32" if name == "jax" else kind if kind in ("tf32", "bfloat16") else "float32"
        rows.append([WHO.get(name, f"fedloom, {name}"), precision, *(_seconds(part.get(name)) for part in parts)])
    return rows


def _seconds(times: Measured | None) -> str:
    return "" if times is None else f"{times['median']:.3f} ({times['min']:.3f} to {times['max']:.3f})"


def _method_rows(measured: Measured) -> list[list[str]]:
    parts = [measured.get(f"methods, {work}", {}) for work in WORK]
    names = dict.fromkeys(name for part in parts for name in part.get("figures", {}))
    return [[name, *(f"{part.get('figures', {}).get(name, '')}" for part in parts)] for name in names]


def _bits(measured: Measured) -> str:
    """Say for how many methods the bits are equal, and how far `batched` is from serial."""
    methods = {part.partition(", ")[2]: figures for part, figures in measured.items() if "bits, " in part}
    if not methods:
        return "Bits have not been compared yet."
    unequal = [method for method, figures in methods.items() if not figures["same bits"]]
    apart = {
        method: f["batched"]["difference"] for method, f in methods.items() if "difference" in f.get("batched", {})
    }
    far = sorted((method for method in apart if apart[method] > _CLOSE), key=lambda method: -apart[method])
    lines = [
        f"Two rounds with the same seed have the same bits, also without graphs, for {len(methods) - len(unequal)} of "
        f"{len(methods)} methods" + (f"; they differ for {', '.join(unequal)}." if unequal else "."),
        f"`batched` runs {len(apart)} of them. Its numbers are within {_CLOSE:g} of serial's, absolute plus "
        f"relative, for {len(apart) - len(far)}"
        + (f"; they are not for {', '.join(f'{method} ({apart[method]:.0e})' for method in far)}." if far else "."),
    ]
    return " ".join(lines)
