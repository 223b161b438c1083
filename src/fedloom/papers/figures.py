"""What a figure of a paper shows, as tidy rows, from the cells that are done. `fedloom.report.figures` draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedloom.papers.measured import Done, accuracy, of_client
from fedloom.papers.recipe import Recipe
from fedloom.study.clients import client_accuracies
from fedloom.study.results import Result
from fedloom.study.targets import reached

OF_MODELS = ("points", "relations", "norms", "surface")  # kinds of figures that measure trained models, on their data
Row = dict[str, Any]


def tidy(recipe: Recipe, done: Done, tell: Callable[[str], None] = lambda line: None) -> list[Row]:
    """The rows of a figure: panel, row, seed, and what the kind shows; accuracies are in percent.

    Figures of models take the lowest seed alone: measuring one takes from seconds to minutes. tell: hears which one is
    measured.
    """
    made = []
    measure = _measures(recipe)
    for (column, row), results in done.items():
        keys = recipe.table.columns[column]
        told = {"panel": keys.get("panel", column), "row": row}
        if measure is not None:
            run = min(results, key=lambda one: one.numbers["seed"])
            tell(f"measuring {row} in {column}, seed {run.numbers['seed']}")
            made += [told | {"seed": run.numbers["seed"]} | one for one in measure(run)]
        elif recipe.table.kind == "costs":
            made += [told | one for one in _costs(keys, results, _target(done, column))]
        else:
            made += [told | one for run in results for one in _accuracies(recipe, column, row, run)]
    return made


def _measures(recipe: Recipe) -> Callable[[Result], list[Row]] | None:
    """What is measured of a trained model; None for figures of accuracies."""
    if recipe.table.kind not in OF_MODELS:
        return None
    from fedloom.papers import probes  # brings torch

    if recipe.table.kind == "points":
        return lambda run: probes.points(run, **recipe.table.points.model_dump())
    return {"relations": probes.relations, "norms": probes.norms, "surface": probes.surface}[recipe.table.kind]


def _accuracies(recipe: Recipe, column: str, row: str, run: Result) -> list[Row]:
    """Of a run, and of the other predictors of it that are rows of their own."""
    keys, seed = recipe.table.columns[column], run.numbers["seed"]
    names = {row: "accuracy"}
    names |= {label: f"accuracy/{one}" for label, (own, one) in recipe.table.beside.items() if own == row}
    made = [
        {"row": label, "seed": seed, "x": x, "accuracy": 100 * y}
        for label, name in names.items()
        for x, y in _points(recipe, column, keys, run, name)
    ]
    if domains := keys.get("domains", []):
        made = [one | {"group": "mean"} for one in made]
    for client, domain in enumerate(domains):
        own = of_client(client, run)
        made += [] if own is None else [{"group": domain, "seed": seed, "accuracy": own}]
    clients = client_accuracies(run.rows) if recipe.table.further else {}
    for panel, client in recipe.table.further.items():
        if client in clients:
            made.append({"panel": panel, "seed": seed, "x": keys.get("x", column), "accuracy": 100 * clients[client]})
    return made


def _points(recipe: Recipe, column: str, keys: Mapping[str, Any], run: Result, name: str) -> list[tuple[Any, float]]:
    match recipe.table.kind:
        case "curves":
            client = keys.get("client")
            own = [r for r in run.rows if (r["client"], r["split"], r["name"]) == (client, "test", name)]
            return [(r["round"], r["value"]) for r in own]
        case "clients":
            return list(client_accuracies(run.rows, name).items())
        case _:
            found = accuracy(recipe, run, name.partition("/")[2])
            return [] if found is None else [(keys.get("x", column), found / 100)]


def _target(done: Done, column: str) -> float:
    """An accuracy that every run of a column reaches: the best of the weakest."""
    return min(max(run.curve()[1]) for (at, _), results in done.items() if at == column for run in results)


def _costs(keys: Mapping[str, Any], results: Sequence[Result], target: float) -> list[Row]:
    """Accuracy at the end, and what travelled and was computed until the target."""
    made = []
    for run in results:
        found = reached(run, target)
        if found is not None:
            told = {"seed": run.numbers["seed"], "x": keys.get("x", ""), "accuracy": 100 * run.numbers["accuracy"]}
            made.append(told | {"target": 100 * target, "bytes": found.bytes, "flops": found.flops})
    return made
