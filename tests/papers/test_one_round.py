"""Every recipe runs: each of its rows trains and tests one round on few noisy samples, and in the whole matrix on each
kind of its columns.

Run as any config is. What is small: clients, samples, images, episodes, and nets where the paper's is large.
"""

import json
from dataclasses import replace
from functools import cache
from math import isfinite
from typing import Any

import pytest
import torch

from fedloom.data import Dataset
from fedloom.data.sources.source import Splits
from fedloom.papers.measurements import accuracy
from fedloom.papers.recipe import Recipe, recipes
from fedloom.runs.config.kinds import overlaid
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.run import run
from fedloom.runs.studies.plan import Cell
from paper_shapes import Shape, shape_of

RUN = [recipe for recipe in recipes().values() if recipe.table.why_not_run is None]
# What runs in place of a large net; where that has batch norm, so has this.
SMALLER: dict[str, Any] = {
    "resnet8": "lenet5-bn",
    "resnet10": "lenet5-bn",
    "resnet18-cifar": "lenet5-bn",
    "shufflenet-cifar": "lenet5-bn",
    "mobilenetv2-half": "lenet5-bn",
    "mobilenetv2-512": "lenet5-bn",
    "fedbn-alexnet": "lenet5-bn",
    "fedbn-digits-cnn": "lenet5-bn",
    "emnist-cnn": "lenet5",
    "fedssa-cnn1": "lenet5",
    "bilstm": {"name": "bilstm", "vocabulary": 10},
}
WIDE = {"name": "mlp", "hidden": [256]}  # for FedNH, which needs as many features as classes
# Options of a run of one epoch and one round, and shared nets that are small as well.
OPTIONS = {
    "fedrep": {"body_epochs": 1},
    "fedcda": {"warmup": 0},
    "fml": {"meme": "lenet5"},
    "fedkd": {"mentee": "lenet5"},
}


@pytest.mark.parametrize("recipe", RUN, ids=lambda r: r.name)
def test_every_row_and_every_kind_of_columns_run_one_round(recipe: Recipe) -> None:
    cells = chosen()[recipe.name]
    each_runs_one_round(recipe, [cell for cell in cells if (recipe.name, cell.name) in sampled()] or cells[:1])


@pytest.mark.matrix
@pytest.mark.parametrize("recipe", RUN, ids=lambda r: r.name)
def test_every_row_runs_one_round_on_each_kind_of_columns(recipe: Recipe) -> None:
    each_runs_one_round(recipe, chosen()[recipe.name])


def each_runs_one_round(recipe: Recipe, cells: list[Cell]) -> None:
    for cell in cells:
        try:
            one_round(recipe, cell)
        except Exception as error:
            error.add_note(f"in cell {cell.name}")
            raise


def one_round(recipe: Recipe, cell: Cell) -> None:
    config = tiny(cell)
    splits = samples(few(shape_of(cell.config)))
    result = run(config, scenario=config.scenario.build(config.seed, splits))
    assert (result.numbers["method"], result.numbers["rounds"]) == (cell.config.method, 1)
    for key in ("protocol", "select"):
        assert result.numbers[key] == getattr(cell.config.evaluation, key)
    for predictor in ("", *(name for row, name in recipe.table.predictor_rows.values() if row == cell.method)):
        found = accuracy(recipe, result, predictor)
        assert found is not None
        assert 0 <= found <= 100
    assert all(isfinite(row["value"]) for row in result.rows)


@cache
def chosen() -> dict[str, list[Cell]]:
    """By recipe, a cell of each row on each kind of columns, unless an earlier one ran the same; one at least."""
    seen: set[str] = set()
    made = {}
    for recipe in RUN:
        first = {(cell.method, column_kind(cell)): cell for cell in reversed(recipe.study(seeds=1).cells)}
        new = {run_kind(cell): cell for cell in first.values() if run_kind(cell) not in seen}
        made[recipe.name] = list(new.values()) or list(first.values())[:1]
        seen |= new.keys()
    return made


@cache
def sampled() -> set[tuple[str, str]]:
    """Recipes and names of cells that together have every row and every kind of columns of the matrix."""
    cells = [(recipe, cell) for recipe, matrix in chosen().items() for cell in matrix]
    rows = {row_kind(cell): (recipe, cell.name) for recipe, cell in reversed(cells)}
    columns = {column_kind(cell): (recipe, cell.name) for recipe, cell in reversed(cells)}
    return {*rows.values(), *columns.values()}


def column_kind(cell: Cell) -> str:
    scenario = cell.config.scenario
    split = scenario.split is not None
    return json.dumps([scenario.source, scenario.partition, [skew["name"] for skew in scenario.skews], split])


def run_kind(cell: Cell) -> str:
    """Cells of one kind run the same code: method, options, tests, one net or several, and columns are alike."""
    return json.dumps([row_kind(cell), column_kind(cell)])


def row_kind(cell: Cell) -> str:
    config, plain = cell.config, cell.config.resolved()
    tests = [plain["evaluation"][key] for key in ("protocol", "select", "also")]
    return json.dumps([config.method, plain[config.method], tests, len(config.models())])


def tiny(cell: Cell) -> RunConfig:
    """One round and epoch of a cell's config: all its keys, but for those of its size."""
    config, scenario = cell.config, cell.config.scenario
    model: Any = cell.values["model"]
    if len(config.models()) == 1:
        model = SMALLER.get(config.models()[0].name, model)
    if config.method == "fednh" and len(shape_of(config).classes) > 84:  # features of LeNet-5
        model = WIDE
    partition = scenario.parts()[1]
    least = {key: 1 for key in ("min_samples", "min_test", "min_per_class") if getattr(partition, key, 0)}
    # So few samples of a class make no long tail, no share of 743 and no uneven parts of a domain.
    of_size = {"long-tail": {"rho": 2.0}, "ratio": {"base": 20.0}}
    skews = [skew | of_size.get(skew["name"], {}) for skew in scenario.skews]
    even = {"alpha": 10.0} if scenario.partition == "dirichlet-domains" else {}
    size = {"clients": min(scenario.clients, 10), "skews": skews}
    keys = {
        "model": model,
        "rounds": 1,
        "local_epochs": 1,
        "participation": max(config.participation, 0.2),
        "engine": "serial",
        "scenario": size | least | even,
        "evaluation": {"episodes": 4},
        "checkpoint": {"keep_clients": []},
    }
    return parse(overlaid(cell.values, keys | OPTIONS))


def few(shape: Shape) -> Shape:
    """The shape with few samples, of images no larger than CIFAR's or of texts of four words."""
    domains, classes = len(shape.train), len(shape.classes)
    train = max(200 // domains, 6 * classes)  # FedSC's second setting needs 6 of a class
    test = 400 if shape.test_classes else max(60 // domains, 2 * classes)  # 20 of a class in episodes
    sample = (4,) if shape.words else (shape.sample[0], *(min(side, 32) for side in shape.sample[1:]))
    return replace(shape, sample=sample, train=(train,) * domains, test=(test,) * domains)


@cache
def samples(shape: Shape) -> Splits:
    """Noise of a shape: words of ten, or grey levels."""
    generator, black = torch.Generator().manual_seed(0), shape.splits()

    def noisy(data: Dataset) -> Dataset:
        x = torch.randint(10 if shape.words else 256, data.x.shape, dtype=data.x.dtype, generator=generator)
        return replace(data, x=x)

    return Splits(noisy(black.train), noisy(black.test))
