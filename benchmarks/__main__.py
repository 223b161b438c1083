"""Run a benchmark, or keep the results of a study: `python -m benchmarks NAME [arguments]`."""

import ast
import importlib
import sys
from pathlib import Path

NAMES = (
    "needs",
    "engines",
    "kernels",
    "gpu",
    "federation_load",
    "soak",
    "hostile",
    "lies",
    "privacy",
    "hundred_rounds",
    "paper_figures",
    "tangent_kernels",
    "code_elsewhere",
    "keep",
    "verdict_power",
    "advice",
    "table",
)


def purpose(name: str) -> str:
    """Return the first sentence of a benchmark's text, without importing the benchmark."""
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source)) or ""
    return " ".join(text.partition("\n\n")[0].split())


def main(arguments: list[str]) -> int | None:
    """Run the benchmark that is named first; list all of them where there is no such name."""
    name = arguments[0].replace("-", "_") if arguments else ""
    if name not in NAMES:
        print("python -m benchmarks NAME [arguments]; NAME --help lists the arguments\n")
        for known in NAMES:
            print(f"  {known.replace('_', '-'):16s} {purpose(known)}")
        return 0 if name in ("", "__help") else 2
    result: int | None = importlib.import_module(f"benchmarks.{name}").main(arguments[1:])
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
