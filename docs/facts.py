"""The lists that `fedloom methods`, `datasets` and `models` show, written into the package: `make facts`."""

from __future__ import annotations

from pathlib import Path

from fedloom.cli.cached_lists import packaged_text
from fedloom.cli.catalogue import listed_datasets, listed_models
from fedloom.cli.methods import listed_methods

LISTS = Path(__file__).parents[1] / "src" / "fedloom" / "cli" / "lists"


def lists() -> dict[Path, str]:
    """Every list of the package, as it should be."""
    made = {"methods": listed_methods(), "datasets": listed_datasets(), "models": listed_models()}
    return {LISTS / f"{noun}.json": packaged_text(entries) for noun, (entries, _) in made.items()}


if __name__ == "__main__":
    for path, text in lists().items():
        path.write_text(text, encoding="utf-8")
