"""What nodes with data of their own agree on, and how each one's data are made to fit."""

import pytest
import torch

import fedloom as fl
from fedloom.core.errors import ConfigError, DataError
from fedloom.data import Dataset
from fedloom.data.sources.nodes import Nodes
from fedloom.runs.config.run_config import parse

PICTURES = {"classes": ["a", "b", "c"], "shape": [1, 2, 2], "values": "bytes"}
TABLE = {"classes": ["ill", "well"], "features": ["age", "sex=f", "sex=m"]}


def table_of(features, rows, labels, classes):
    return Dataset(torch.tensor(rows), torch.tensor(labels), tuple(classes), features=tuple(features))


def test_rows_get_the_agreed_columns_and_class_ids():
    """Another order of columns and classes, a column too many, and no woman."""
    data = table_of(["note", "sex=m", "age"], [[1.0, 1.0, 40.0], [0.0, 0.0, 50.0]], [0, 1], ["well", "ill"])
    fitted = Nodes(**TABLE).as_agreed(data, "node")
    assert fitted.x.tolist() == [[40.0, 0.0, 1.0], [50.0, 0.0, 0.0]]
    assert (fitted.y.tolist(), fitted.classes) == ([1, 0], ("ill", "well"))
    assert fitted.features == ("age", "sex=f", "sex=m")


def test_a_class_that_no_sample_has_need_not_be_agreed_on():
    """Whole numbers with holes name classes that nobody has."""
    data = table_of([], [[0.0], [1.0]], [0, 3], ["0", "1", "2", "3"])
    fitted = Nodes(classes=[0, 3], shape=[1]).as_agreed(data, "node")
    assert fitted.y.tolist() == [0, 1]


def test_bytes_are_divided_by_255_unless_something_else_is_agreed_on():
    data = Dataset(torch.full((1, 1, 2, 2), 51, dtype=torch.uint8), torch.tensor([0]), ("c",))
    assert Nodes(**PICTURES).as_agreed(data, "node").gather(torch.tensor([0])).unique().item() == pytest.approx(0.2)
    agreed = Nodes(**PICTURES, mean=[1.0], std=[25.0])
    assert agreed.as_agreed(data, "node").gather(torch.tensor([0])).unique().item() == 2.0


def test_only_columns_of_measurements_are_standardised_and_only_where_nothing_is_agreed_on():
    assert Nodes(**TABLE).numeric_features == (0,)
    assert Nodes(**TABLE, mean=[0, 0, 0], std=[1, 1, 1]).numeric_features == ()
    assert Nodes(**PICTURES).numeric_features == ()


@pytest.mark.parametrize(
    "keys", [PICTURES, TABLE, {"classes": [0, 1], "shape": [5], "mean": [3.0] * 5, "std": [2.0] * 5}]
)
def test_what_stands_in_looks_like_the_data(keys):
    nodes = Nodes(**keys)
    there = nodes.placeholder_data()
    assert there.input_shape == nodes.input_shape
    assert torch.bincount(there.y).tolist() == [2] * len(nodes.classes)
    assert nodes.as_agreed(there, "itself").normalisation == there.normalisation


def test_a_federation_that_imputes_names_its_indicators_and_reports_words_too():
    nodes = Nodes(classes=["ill", "well"], features=["age", "sex=f", "sex=m", "missing(sex)"], impute={})
    assert (nodes.numeric_features, nodes.reported_features) == ((0,), (0, 1, 2))
    nan = float("nan")
    data = table_of(["sex=f", "sex=w", "age"], [[nan, nan, 40.0], [0.0, 1.0, nan]], [0, 1], ["well", "ill"])
    assert str(nodes.as_agreed(data, "node").x.tolist()) == "[[40.0, nan, nan, 1.0], [nan, 0.0, 0.0, 0.0]]"
    for problem, keys in {
        r"'missing\(ages\)' names no column": {"features": ["age", "missing(ages)"]},
        "the most_frequent of 'age' needs cells": {"features": ["age"], "impute": {"numbers": "most_frequent"}},
        "leave mean and std out": {"features": ["age"], "mean": [0], "std": [1]},
        "`features` names the indicators": {"features": ["age"], "impute": {"indicator": False}},
        "numbers and words": {"features": ["sex", "sex=f"]},
    }.items():
        with pytest.raises(ValueError, match=problem):
            Nodes(**{"classes": ["ill", "well"], "impute": {}, **keys})


UNFIT = {
    "numbers for bytes": (PICTURES, torch.zeros(1, 1, 2, 2), "samples are numbers, those of the federation bytes"),
    "words": (TABLE, torch.zeros(1, 3, dtype=torch.int64), "samples are token ids"),
    "narrow": (TABLE, torch.zeros(1, 2), r"shape \[2\], those of the federation \[3\]"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_data_that_do_not_fit_are_refused(case):
    keys, x, said = UNFIT[case]
    with pytest.raises(DataError, match=f"^here: .*{said}"):
        Nodes(**keys).as_agreed(Dataset(x, torch.tensor([0]), ("a",)), "here")


def test_a_missing_column_and_an_unknown_class_are_named():
    data = table_of(["age", "gender=f"], [[1.0, 1.0]], [0], ["ill"])
    with pytest.raises(DataError, match="no column for the federation's feature 'sex=f'; it has age, gender=f"):
        Nodes(**TABLE).as_agreed(data, "here")
    data = table_of(["age", "sex=x"], [[1.0, 1.0]], [0], ["dead"])
    with pytest.raises(DataError, match="class 'dead' is none of the federation's: ill, well"):
        Nodes(**TABLE).as_agreed(data, "here")


def test_owners_deal_unless_something_else_is_said():
    assert fl.scenario("nodes", clients=2, **TABLE).partition == "natural"


WRONG = {
    "one class": ({**TABLE, "classes": ["ill"]}, "at least 2"),
    "a class twice": ({**TABLE, "classes": ["ill", "ill"]}, "classes names 'ill' twice"),
    "no shape": ({"classes": [0, 1]}, "need one of shape and features"),
    "both": ({**TABLE, "shape": [3]}, "need one of shape and features"),
    "no channels": ({**PICTURES, "shape": [2, 2]}, r"need \[d\] or \[channels, height, width\]"),
    "half a scale": ({**TABLE, "mean": [0, 0, 0]}, "mean and std belong together"),
    "a short scale": ({**TABLE, "mean": [0], "std": [1]}, "need 3 numbers each"),
    "no spread": ({**TABLE, "mean": [0, 0, 0], "std": [1, 0, 1]}, "std above 0"),
    "dealt": ({**TABLE, "partition": "iid"}, "scenario.partition: with source nodes"),
    "skewed": ({**TABLE, "skews": [{"name": "long-tail"}]}, "scenario.skews|unknown"),
    "attacked": ({**TABLE, "attack": "label-flip"}, "scenario.attack|known"),
    "shared": ({**TABLE, "public": 0.1}, "scenario.public: with source nodes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_nodes_cannot_agree_on_is_one_line(case):
    keys, said = WRONG[case]
    with pytest.raises(ConfigError, match=said) as caught:
        parse({"scenario": {"source": "nodes", "clients": 3, **keys}})
    assert "\n" not in str(caught.value)


# -- categories that nobody has agreed on ------------------------------------------------------------------------------


def of_sex(words):
    """Rows of a node whose column `sex` holds these words."""
    present = sorted(set(words))
    rows = [[40.0, *(float(word == column) for column in present)] for word in words]
    return table_of(["age", *(f"sex={word}" for word in present)], rows, [0] * len(words), ["ill"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["F", "M"], "here: column 'sex' holds 'F' in 1 rows, known as 'f'; write it so"),
        (["f", "m", " M."], "here: column 'sex' holds ' M.' in 1 rows, known as 'm'"),
        (["w", "x"] * 10, "here: column 'sex' holds unknown words in 20 of 20 rows, such as 'w'.*: f, m"),
    ],
)
def test_a_node_that_writes_its_categories_otherwise_is_refused(words, message):
    for door in (Nodes(**TABLE).as_agreed, Nodes(**TABLE).notes):
        with pytest.raises(DataError, match=message):
            door(of_sex(words), "here")


def test_words_that_are_not_agreed_on_are_counted():
    data = of_sex(["f"] * 10 + ["x"] * 2)
    assert Nodes(**TABLE).as_agreed(data, "here").x[-1].tolist() == [40.0, 0.0, 0.0]
    (note,) = Nodes(**TABLE).notes(data, "here")
    assert note.startswith("here: words that the federation has not agreed on are 0")
    assert note.endswith("rows of 12 with such words: 'sex' (2)")
    assert Nodes(**TABLE).notes(of_sex(["f", "m"]), "here") == []


def test_a_class_in_another_spelling_is_named():
    with pytest.raises(DataError, match="class 'Ill' is none of the federation's: ill, well; write 'ill'"):
        Nodes(**TABLE).as_agreed(table_of(["age", "sex=f"], [[1.0, 1.0]], [0], ["Ill"]), "here")
