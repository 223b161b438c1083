"""Every table of the five papers, and every figure that shows data: named, loaded, valid at both scales, dealt; every
printed value has its cell, and missing data are named."""

import csv
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tables.reproduction import cells_of
from fedloom.core.errors import ConfigError
from fedloom.data.sources.source import SOURCES
from fedloom.methods import METHODS
from fedloom.papers.measurements import ACCURACY, VARIANT
from fedloom.papers.recipe import Recipe, Scale, find_recipe, missing_sources, printed_values, recipes
from fedloom.runs.setup import Setup
from fedloom.runs.studies.plan import Cell, parse_study
from paper_shapes import shape_of, stand_in

VALUE_FILES = sorted(path.name.removesuffix(".csv") for path in (files("fedloom.papers") / "values").iterdir())
TABLES = {
    "fedskc": [*range(1, 6)],
    "feddw": [*range(1, 5)],
    "fedsc": [*range(1, 6)],
    "fedco2": [*range(1, 14)],
    "fedssa": [*range(1, 6)],
}
FIGURES = {
    "fedskc": ["1a", "1b", "1cohorts", 3, 4, "4c", "4d"],
    "feddw": [*range(4, 9)],
    "fedsc": [1, "1b", 5, 6, 7],
    "fedco2": [*range(2, 8)],
    "fedssa": [*range(3, 12)],
}
ALL = list(recipes().values())
RUN = [recipe for recipe in ALL if recipe.table.why_not_run is None]
# Files of values that are of figures, or of sentences.
NO_TABLES = {"feddw_text_claims", "fedssa_text_claims", *(f"fedco2_githistory_fig{n}" for n in (2, 4, 7))}


@cache
def one_seed(name: str, scale: Scale = "full") -> list[Cell]:
    """The cells of a study's first seed, for tests of what all seeds share."""
    return find_recipe(name).study(scale, seeds=1).cells


@cache
def settings(name: str) -> dict[str, Cell]:
    """A cell for each setting of a study."""
    return {cell.setting: cell for cell in reversed(one_seed(name))}


def test_every_table_and_figure_with_data_is_named() -> None:
    tables = [f"{paper}/table{n}" for paper, numbers in TABLES.items() for n in numbers]
    figures = [f"{paper}/fig{n}" for paper, numbers in FIGURES.items() for n in numbers]
    assert sorted(recipes()) == sorted(tables + figures)
    with pytest.raises(ConfigError, match="did you mean 'feddw/table1'"):
        find_recipe("feddw/tabel1")


def test_every_file_of_values_is_used_and_whole() -> None:
    assert {recipe.table.values for recipe in ALL if recipe.table.kind == "table"} == set(VALUE_FILES) - NO_TABLES
    rows = 0
    for name in VALUE_FILES:
        text = (files("fedloom.papers") / "values" / f"{name}.csv").read_text()
        rows += len(list(csv.DictReader(text.splitlines())))
    assert rows == 1696


@pytest.mark.parametrize("recipe", ALL, ids=lambda r: r.name)
def test_every_choice_is_whole_sentences(recipe: Recipe) -> None:
    assert all(text[0].isupper() or text.startswith("mu0") for text in recipe.choices)
    assert all(text.endswith(".") for text in recipe.choices)  # an unquoted comma would split it


def domains(recipe: Recipe, of: str) -> Sequence[str]:
    """Names of the domains of a column's source, which are those of its runs."""
    scenario = settings(recipe.name)[str(recipe.column(of))].config.scenario
    parts: Sequence[str] = (scenario.model_extra or {}).get("parts", ())
    return parts or SOURCES.get(scenario.source).domain_names  # type: ignore[attr-defined]


@pytest.mark.parametrize("recipe", RUN, ids=lambda r: r.name)
def test_every_printed_value_has_its_column_and_its_row(recipe: Recipe) -> None:
    for value in recipe.values:
        averaged = value.column.endswith("| AVG")
        assert averaged or recipe.column(value.column), value.column
        assert value.method in {*recipe.rows, *recipe.table.predictor_rows}, value.method
        assert value.domain in (None, "Avg") or value.domain.casefold() in domains(recipe, value.column)
    drawn = recipe.table.kind != "table"
    assert drawn or {recipe.column(value.column) for value in recipe.values} >= set(recipe.table.columns)


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("recipe", RUN, ids=lambda r: r.name)
def test_every_cell_is_a_valid_run(recipe: Recipe, scale: str) -> None:
    cells = recipe.study("full" if scale == "full" else "small").cells
    assert {cell.method for cell in cells} == set(recipe.rows)
    assert {cell.setting for cell in cells} == set(recipe.table.columns)
    if scale == "full":
        assert len(cells) == cells_of(recipe)
        assert recipe.table.kind != "table" or len({cell.folder for cell in cells}) == len(cells)
    else:
        whole = {**recipe.paper.small.keys, **recipe.table.small}
        for cell in cells:  # no column keeps the paper's own
            assert cell.config.rounds <= {**whole, **recipe.table.columns[cell.setting].get("small", {})}["rounds"]
    for cell in cells:
        options = cell.config.build_method().options
        given = cell.values.get(cell.config.method, {})
        assert {key: getattr(options, key) for key in given} == given, cell.name


def test_a_seed_is_no_number_of_seeds() -> None:
    with pytest.raises(ConfigError, match="seeds = 20240101: more than 10,000"):
        find_recipe("feddw/table1").study(seeds=20240101)


PAPERS = {recipe.paper.title: recipe.paper for recipe in ALL}


@pytest.mark.parametrize("paper", PAPERS)
def test_claims_of_cells_are_those_that_the_paper_prints(paper: str) -> None:
    assert PAPERS[paper].claims
    for claim in (claim for claim in PAPERS[paper].claims if claim.table):
        table = find_recipe(str(claim.table))
        cells = {f"{table.column(v.column)}/{v.method}": v.value for v in table.values if v.metric in ACCURACY}
        ours, minus = cells[str(claim.row)], cells[claim.minus] if claim.minus else 0.0
        assert ours is not None
        assert minus is not None
        assert claim.printed == pytest.approx(ours - minus, abs=0.011), claim.claim  # FedDW's text rounds by itself


@pytest.mark.parametrize("recipe", [r for r in ALL if r.table.why_not_run], ids=lambda r: r.name)
def test_tables_of_facts_say_why_nothing_is_run(recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match="nothing is run"):
        recipe.study()


def scenario_of(column: dict[str, Any]) -> str:
    return json.dumps([column.get("config"), column.get("scenario")])


DEALT = {scenario_of(keys): (recipe.name, name) for recipe in RUN for name, keys in recipe.table.columns.items()}


@pytest.mark.parametrize(("name", "column"), DEALT.values(), ids="/".join)
def test_every_setting_reaches_its_partition(name: str, column: str) -> None:
    """On stand-ins with as many samples of the same shape and classes."""
    config = settings(name)[column].config
    scenario = stand_in(config)
    assert scenario.clients == config.scenario.clients
    assert (scenario.train.sizes > 0).all()


@pytest.mark.parametrize("scale", ["small", pytest.param("full", marks=pytest.mark.matrix)])
def test_no_method_refuses_its_net_and_none_is_another_one_all_along(scale: Scale) -> None:
    seen: set[tuple[Any, ...]] = set()
    for cell in (cell for recipe in RUN for cell in one_seed(recipe.name, scale)):
        config, shape = cell.config, shape_of(cell.config)
        key = config.method, str(config.model), shape.sample, len(shape.classes)
        if key not in seen:
            seen.add(key)
            made = Setup.from_config(config, shape.sample, len(shape.classes), config.scenario.clients)
            found = made.method.examine(made.tasks, config.scenario.clients)
            assert [diagnostic.code for diagnostic in found if diagnostic.code.endswith("only_warmup")] == [], cell.name


def test_keys_of_a_call_lie_on_top_of_columns_and_rows() -> None:
    assert {cell.config.rounds for cell in find_recipe("feddw/table3").study(seeds=1, keys={"rounds": 7}).cells} == {7}
    models = {
        cell.config.model for cell in find_recipe("fedco2/table3").study(seeds=1, keys={"model": "lenet5-bn"}).cells
    }
    assert models == {"lenet5-bn"}
    parts = {
        cell.method: cell.config
        for cell in find_recipe("fedsc/table4").study(seeds=1, keys={"fedsc": {"tau": 0.5}}).cells
    }
    assert (parts["RPCL"].build_method().options.tau, parts["RPCL"].build_method().options.cpdr) == (0.5, "off")


def test_what_the_specs_fix() -> None:
    """Facts of the papers that no config file holds: rows that switch parts off."""
    ablation = one_seed("fedsc/table4")
    by_row = {cell.method: cell.config.build_method().options for cell in ablation if cell.config.method == "fedsc"}
    assert (by_row["RPCL"].cpdr, by_row["RPCL"].lambda_rpcl) == ("off", 1)
    assert (by_row["CPDR"].cpdr, by_row["CPDR"].lambda_rpcl) == ("l1", 0)
    parts = {cell.method: cell.config.build_method().options for cell in one_seed("fedskc/table5")}
    assert [(parts[row].gda, parts[row].gpr) for row in parts if row != "FedAvg (no module)"] == [
        ("fedavg", "off"),
        ("paper", "off"),
        ("fedavg", "paper"),
        ("paper", "paper"),
    ]
    own = [cell for cell in one_seed("feddw/table1") if cell.method == "FedDW"]
    mus = {cell.setting: cell.config.build_method().options.mu for cell in own}
    assert mus["cifar100-practical"] == 10
    assert mus["cifar10-practical"] == 0.1
    split = {cell.setting: cell for cell in one_seed("feddw/table2") if cell.method == "FedRep"}
    bodies = {name: cell.config.build_method().options.body_epochs for name, cell in split.items()}
    assert (bodies["cifar10"], bodies["25-rounds"], bodies["125-rounds"]) == (4, 9, 1)  # and one of the head
    moon = {cell.setting: cell for cell in one_seed("fedsc/table3") if cell.method == "MOON"}
    assert {name: cell.config.build_method().options.mu for name, cell in moon.items()} == {"cifar10": 5, "cifar100": 1}
    bare = {cell.method for cell in one_seed("fedco2/table1") if "fc_norm" in str(cell.config.model)}
    assert bare == {"FedPer", "MOON", "FedRoD"}
    over = [cell.config for cell in one_seed("feddw/table4") if cell.method.endswith("+DW")]
    assert {config.build_method().options.dw_mu for config in over} == {10}  # as for CIFAR-100 in Table I
    assert over[0].preset == "feddw"


@pytest.mark.parametrize("recipe", [r for r in RUN if r.table.kind == "table"], ids=lambda r: r.name)
def test_rows_of_released_code_and_of_sound_have_their_presets_options(recipe: Recipe) -> None:
    """What a config says of the printed method is no part of another preset, but mu of CIFAR-100, and the round of
    stabilisation where all have one net."""
    of_the_setting = {"mu", "t_stable"}
    for cell in one_seed(recipe.name):
        if (variant := VARIANT.search(cell.method)) is None:
            continue
        kept = {"mu"} if variant[1] == "sound" else set()
        preset = vars(METHODS.get(cell.config.method).configured(variant[1], {}).options)
        ours = vars(cell.config.build_method().options)
        differ = {name for name in preset if ours[name] != preset[name]}
        assert differ <= of_the_setting - kept, cell.name


@pytest.mark.parametrize("recipe", [r for r in RUN if r.table.kind == "table"], ids=lambda r: r.name)
def test_rows_of_released_code_train_as_those_of_the_paper(recipe: Recipe) -> None:
    """Its optimiser, batches and epochs are no part of such a row."""
    trained = {
        (cell.setting, cell.method): (cell.config.optimizer, cell.config.batch_size, cell.config.local_epochs)
        for cell in one_seed(recipe.name)
    }
    for (setting, row), how in trained.items():
        if VARIANT.search(row):
            assert how == trained[setting, VARIANT.sub("", row)], f"{setting}/{row}"


def test_values_are_read_as_printed() -> None:
    first = printed_values("feddw_table1_accuracy")[0]
    assert (first.method, first.column, first.domain) == ("FedAvg", "MNIST | practical", None)
    assert (first.metric, first.value, first.std) == ("acc_pct", 99.31, 0.2)
    domain = printed_values("fedco2_table01")[0]
    assert (domain.column, domain.domain, domain.value) == ("Office-Caltech10 | feature-skew", "Amazon", 54.9)


def test_columns_of_one_source_with_other_parts_are_all_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    two = {"source": "domains", "partition": "domains", "clients": 2, "val": 0}
    settings = {
        "one": {"scenario": two | {"parts": ["usps", "rendered"]}},
        "smaller": {"scenario": two | {"parts": ["usps", "rendered"], "per_domain": 5}},
        "other": {"scenario": two | {"parts": ["rendered", "svhn"]}},
    }
    found = missing_sources(parse_study({"settings": settings}).cells)
    assert list(found) == ["domains"]
    assert [found["domains"].count(f"source {name}: no folder") for name in ("usps", "svhn")] == [1, 1]
