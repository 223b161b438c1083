"""The rows of a paper's figure, from its finished cells."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.figures import probes, round_probes
from fedloom.papers.measurements import CellResults, accuracy
from fedloom.papers.recipe import Recipe
from fedloom.results.group import selected_accuracies
from fedloom.results.result_tables import reached
from fedloom.runs.storage.run_data import RunData

ROUND_FIGURES = ("landscapes", "cohorts", "local_points", "knowledge")  # kinds that need client models of rounds
MODEL_FIGURES = ("points", "relations", "norms", *ROUND_FIGURES)  # kinds that measure trained models
FigureRow = dict[str, Any]
_NOT_DRAWN = "Not drawn:"


def figure_rows(
    recipe: Recipe, results: CellResults, progress: Callable[[str], None] = lambda line: None
) -> list[FigureRow]:
    """Collect the rows of a figure: panel, row, seed, and the values that its kind shows; accuracies are in percent.

    Figures of models take the lowest seed alone, because measuring a model takes from seconds to minutes; `progress` is
    called with a line for each of them. results: finished runs by column and row.
    """
    rows: list[FigureRow] = []
    measure = _model_measure(recipe)
    for (column, row), column_results in results.items():
        keys = recipe.table.columns[column]
        labels = {"panel": keys.get("panel", column), "row": row}
        if measure is not None:
            result = min(column_results, key=lambda result: result.numbers["seed"])
            seed = result.numbers["seed"]
            progress(f"measuring {row} in {column}, seed {seed}")
            rows += [labels | {"seed": seed} | measured for measured in measure(result)]
        elif recipe.table.kind == "drift":
            rows += [labels | part for result in column_results for part in _drift_rows(result)]
        elif recipe.table.kind == "costs":
            in_column = (result for (name, _), runs in results.items() if name == column for result in runs)
            target = min(max(result.curve()[1]) for result in in_column)  # an accuracy that all of them reach
            rows += [labels | costs for costs in _cost_rows(keys, column_results, target)]
        else:
            rows += [labels | shown for result in column_results for shown in _accuracies(recipe, column, row, result)]
    return rows


def not_drawn(recipe: Recipe) -> list[str]:
    """Return the elements of the paper's figure that are not drawn, with reasons."""
    texts = (*filter(None, [recipe.table.why_not_run]), *recipe.table.choices)
    return [text.removeprefix(_NOT_DRAWN).strip() for text in texts if text.startswith(_NOT_DRAWN)]


def _model_measure(recipe: Recipe) -> Callable[[RunData], list[FigureRow]] | None:
    """Return the function that measures a trained model; None for figures of accuracies."""
    if recipe.table.kind not in MODEL_FIGURES:
        return None
    if recipe.table.kind in ROUND_FIGURES:
        return round_probes.ROUND_PROBES[recipe.table.kind]
    if recipe.table.kind == "points":
        return lambda result: probes.points(result, **recipe.table.points)
    return {"relations": probes.relations, "norms": probes.norms}[recipe.table.kind]


def _accuracies(recipe: Recipe, column: str, row: str, result: RunData) -> list[FigureRow]:
    """Accuracies of a run, and of its predictors that have their own rows."""
    keys, seed = recipe.table.columns[column], result.numbers["seed"]
    predictors = {label: name for label, (run_row, name) in recipe.table.predictor_rows.items() if run_row == row}
    names = {row: "accuracy"} | {label: f"accuracy/{name}" for label, name in predictors.items()}
    rows: list[FigureRow] = [
        {"row": label, "seed": seed, "x": x, "accuracy": 100 * share}
        for label, name in names.items()
        for x, share in _points(recipe, column, keys, result, name)
    ]
    if domains := keys.get("domains", []):
        rows = [shown | {"group": "mean"} for shown in rows]
    clients = selected_accuracies(result) if domains or recipe.table.client_panels else {}
    for client, domain in enumerate(domains):
        if client in clients:
            rows.append({"group": domain, "seed": seed, "accuracy": 100 * clients[client]})
    for panel, client in recipe.table.client_panels.items():
        if client in clients:
            rows.append({"panel": panel, "seed": seed, "x": keys.get("x", column), "accuracy": 100 * clients[client]})
    return rows


def _points(
    recipe: Recipe, column: str, keys: Mapping[str, Any], result: RunData, name: str
) -> list[tuple[Any, float]]:
    """Accuracies in [0, 1] over the axis of the figure."""
    match recipe.table.kind:
        case "curves":
            key = (keys.get("client"), "test", name)
            return [
                (row["round"], row["value"]) for row in result.rows if (row["client"], row["split"], row["name"]) == key
            ]
        case "clients":
            return list(selected_accuracies(result, name).items())
        case _:
            percent = accuracy(recipe, result, name.partition("/")[2])
            return [] if percent is None else [(keys.get("x", column), percent / 100)]


def _drift_rows(result: RunData) -> list[FigureRow]:
    """The length of each part of the drift, and of the whole, by decomposed round."""
    names = {"drift": "drift", "local_drift": "local", "sampling_drift": "sampling", "server_drift": "server"}
    return [
        {"seed": result.numbers["seed"], "x": row["round"], "part": names[row["name"]], "length": row["value"]}
        for row in result.drift()
        if row["name"] in names
    ]


def _cost_rows(keys: Mapping[str, Any], results: Sequence[RunData], target: float) -> list[FigureRow]:
    """Accuracy at the end, and the bytes and FLOPs until the target."""
    rows: list[FigureRow] = []
    for result in results:
        first, numbers = reached(result, target), result.numbers
        if first is not None:
            labels = {"seed": numbers["seed"], "x": keys.get("x", ""), "accuracy": 100 * numbers["accuracy"]}
            rows.append({**labels, "target": 100 * target, "bytes": first.bytes, "flops": first.flops})
    return rows
