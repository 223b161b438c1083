"""Finished runs and exports are tested on new labelled data; models are imported by name."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedloom as fl
from command_line import call
from fedloom.core.errors import ConfigError, DataError
from fedloom.data import from_arrays
from fedloom.evaluation import METRICS
from fedloom.runs.export.evaluation import imported_model
from fedloom.runs.export.trained import read


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluated") / "run"
    fl.run("fedavg", scenario=fl.scenario("digits", partition="iid", clients=3), rounds=2, out=out)
    return out


@pytest.fixture(scope="module")
def data():
    test = fl.scenario("digits", partition="iid", clients=3).build(0).test_set
    return test.x.numpy(), test.y.numpy()


def test_the_run_s_own_test_data_give_its_own_numbers(folder, data):
    numbers = json.loads((folder / "summary.json").read_text())
    tested = fl.evaluate(folder, data)
    assert tested.samples == len(data[1])
    assert tested.metrics["accuracy"] == pytest.approx(numbers["accuracy"])
    assert tested.metrics["balanced_accuracy"] == pytest.approx(numbers["metrics"]["balanced_accuracy"])
    assert tested.details["recall"] == numbers["details"]["recall"]
    assert tested.metrics["majority"] == np.bincount(data[1]).max() / len(data[1])
    assert 0.5 < tested.metrics["auroc"] <= 1
    assert [row["samples"] for row in tested.by_class()] == np.bincount(data[1]).tolist()
    assert "attack_success" not in tested.metrics


def test_results_exports_and_named_labels_give_the_same(folder, data, tmp_path):
    reference = fl.evaluate(folder, data)
    read(folder).save(tmp_path / "model.safetensors")
    np.savez(tmp_path / "new.npz", x=data[0], y=np.array([str(label) for label in data[1]]))
    assert fl.evaluate(tmp_path / "model.safetensors", tmp_path / "new.npz") == reference
    result = fl.run("fedavg", scenario=fl.scenario("digits", partition="iid", clients=3), rounds=2)
    assert result.evaluate(data) == reference


def test_a_missing_class_is_no_failure(folder, data):
    present = data[1] != 3
    tested = fl.evaluate(folder, (data[0][present], data[1][present]), metrics=["balanced_accuracy"])
    assert tested.metrics.keys() == {"balanced_accuracy", "majority"}
    assert tested.by_class()[3]["recall"] is None
    recalls = [row["recall"] for row in tested.by_class() if row["recall"] is not None]
    assert tested.metrics["balanced_accuracy"] == pytest.approx(sum(recalls) / 9)


def test_a_table_with_a_column_of_labels(tmp_path, capsys):
    rng = np.random.default_rng(0)
    lines = [f"{x:.3f},{'ill' if x > 0.5 else 'well'}" for x in rng.random(200)]
    for name, rows in (("train", lines[:150]), ("new", lines[150:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["pressure,state", *rows]) + "\n")
    scenario = fl.scenario("csv", path=str(tmp_path / "train.csv"), label="state", partition="iid", clients=2)
    fl.run("fedavg", scenario=scenario, rounds=5, model="logistic", out=tmp_path / "run")
    tested = fl.evaluate(tmp_path / "run", tmp_path / "new.csv", label="state")
    assert (tested.samples, tested.classes) == (50, ("ill", "well"))
    words = ("evaluate", str(tmp_path / "run"), str(tmp_path / "new.csv"), "--label", "state")
    code, shown, _ = call(capsys, *words, "--json")
    assert (code, json.loads(shown)["metrics"]["accuracy"]) == (0, tested.metrics["accuracy"])
    _, text, _ = call(capsys, *words, "--metric", "auroc")
    assert "the global model of fedavg after round 5 of 5, on 50 samples" in text
    assert "auroc" in text
    with pytest.raises(DataError, match=r"name the column with the labels, label="):
        fl.evaluate(tmp_path / "run", tmp_path / "new.csv")
    with pytest.raises(DataError, match=r"no column 'status' with the labels: pressure, state"):
        fl.evaluate(tmp_path / "run", tmp_path / "new.csv", label="status")


def test_rows_without_a_value_or_a_label_are_left_out_as_in_the_run(tmp_path, capsys):
    rng = np.random.default_rng(0)
    lines = [f"{x:.3f},{'ill' if x > 0.5 else 'well'}" for x in rng.random(60)]
    for name, rows in (("train", lines), ("new", [*lines[:8], "0.3,", ",ill"]), ("whole", lines[:8])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["pressure,state", *rows]) + "\n")
    keys = {"label": "state", "incomplete": "drop", "partition": "iid", "clients": 2}
    scenario = fl.scenario("csv", path=str(tmp_path / "train.csv"), **keys)
    fl.run("fedavg", scenario=scenario, rounds=1, model="logistic", out=tmp_path / "run")
    words = ("evaluate", str(tmp_path / "run"), str(tmp_path / "new.csv"), "--label", "state", "--json")
    code, shown, said = call(capsys, *words)
    assert (code, json.loads(shown)["samples"]) == (0, 8)
    assert "2 of 10 rows lack a value and were left out, as in the run (incomplete: drop)" in said
    whole = fl.evaluate(tmp_path / "run", tmp_path / "whole.csv", label="state")
    assert json.loads(shown)["metrics"] == whole.metrics


def test_a_folder_of_class_folders(tmp_path):
    from PIL import Image

    for split, count in (("train", 6), ("new", 2)):
        for shade, name in ((30, "dark"), (220, "bright")):
            for number in range(count):
                path = tmp_path / split / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (shade + number,) * 3).save(path)
    scenario = fl.scenario("image-folder", path=str(tmp_path / "train"), partition="iid", clients=2)
    fl.run("fedavg", scenario=scenario, rounds=1, model="logistic", out=tmp_path / "run")
    assert fl.evaluate(tmp_path / "run", tmp_path / "new").samples == 4
    (tmp_path / "new" / "grey").mkdir()
    (tmp_path / "new" / "grey" / "0.png").write_bytes((tmp_path / "new" / "dark" / "0.png").read_bytes())
    with pytest.raises(DataError, match="label 'grey' is no class of the model, whose classes are"):
        fl.evaluate(tmp_path / "run", tmp_path / "new")
    with pytest.raises(DataError, match="no folder of files for a class"):
        fl.evaluate(tmp_path / "run", tmp_path / "new" / "grey")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x, y: (x, y[:-1]), "samples and .* labels; need one label a sample"),
        (lambda x, y: (x[:0], y[:0]), "no samples"),
        (lambda x, y: (x[:, :, :4], y), "the model takes"),
        (lambda x, y: (x, y + 5), "is no class of the model"),
        (lambda x, y: (x, y - 5), "is no class of the model"),
        (lambda x, y: (x, y + 0.5), "labels with fractions or gaps"),
        (lambda x, y: (x, y[:, None]), "need one label a sample"),
        (lambda x, y: (x.astype(str), y), "."),
    ],
)
def test_data_that_do_not_fit_are_refused_in_one_line(folder, data, change, says):
    with pytest.raises(DataError, match=says) as refusal:
        fl.evaluate(folder, change(*data))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x, y: [x, y], "data: of type list; need arrays"),
        (lambda x, y: x, "data: of type ndarray; need arrays"),
        (lambda x, y: {"x": x, "y": y}, "data: of type dict; need"),
        (lambda x, y: None, "data: of type NoneType; need"),
        (lambda x, y: 5, "data: of type int; need"),
        (lambda x, y: torch.utils.data.TensorDataset(torch.tensor(x)), "item 0 of data is a tuple; need"),
        (lambda x, y: (x,), "data: a tuple of 1; need"),
        (lambda x, y: (x, y, y), "data: a tuple of 3; need"),
        (lambda x, y: (x, None), "y: labels of shape"),
        (lambda x, y: (x, [[1], [2, 3]]), "y: no array can be made of this"),
        (lambda x, y: ([x[0], x[1, :, :4]], y[:2]), "x: no array can be made of this"),
    ],
)
def test_data_of_other_types_are_refused_in_one_line(folder, data, change, says):
    with pytest.raises(DataError, match=says) as refusal:
        fl.evaluate(folder, change(*data))
    assert "\n" not in str(refusal.value)


def is_confident(predictions):
    return predictions.probabilities.amax(1) > 0.9


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"metrics": "accuracy"}, "metrics = 'accuracy': need a list of names"),
        ({"metrics": None}, "metrics = None: need a list of names"),
        ({"metrics": [lambda predictions: predictions.labels]}, "need a name, a function with a name"),
        ({"metrics": [3]}, "evaluation.metrics = 3: need a name"),
        ({"client": "0"}, "client = '0': need a client's number, or None"),
        ({"client": True}, "client = True: need a client's number"),
        ({"client": 1.0}, "client = 1.0: need a client's number"),
        ({"client": 3}, "client = 3: the run has 3 clients, 0 to 2"),
        ({"at": True}, "at = True: need last, best_val or the number of a round"),
        ({"run": None}, "run = None: need a run folder, an exported file or a result"),
        ({"run": 5}, "run = 5: need a run folder"),
    ],
)
def test_arguments_of_other_types_are_refused_in_one_line(folder, data, arguments, says):
    with pytest.raises(ConfigError, match=says) as refusal:
        fl.evaluate(**{"run": folder, "data": data} | arguments)
    assert "\n" not in str(refusal.value)
    for path in (None, 5):
        with pytest.raises(ConfigError, match=f"path = {path}: need a path, as a text or a Path, of a run folder"):
            fl.load(path)


def test_metrics_may_be_functions_as_for_a_run(folder, data, monkeypatch):
    METRICS.names()
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS._entries))
    tested = fl.evaluate(folder, data, metrics=[is_confident, "accuracy"])
    assert [*tested.metrics] == ["is_confident", "accuracy", "majority"]
    assert 0 < tested.metrics["is_confident"] <= 1


def test_numbers_that_name_classes_are_never_ids(tmp_path):
    """A single unknown number among known names turned all others into ids: each class became its neighbour."""
    x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    for name, labels in (("numbers", np.arange(30) % 3 + 1), ("words", np.array(["a", "b", "c"])[np.arange(30) % 3])):
        run = tmp_path / name
        fl.run("fedavg", scenario=fl.scenario((x, labels), clients=2), rounds=1, model="logistic", out=run)
    known = fl.evaluate(tmp_path / "numbers", (x[:6], np.array([1, 2, 3, 1, 2, 3])), metrics=["accuracy"])
    assert [row["samples"] for row in known.by_class()] == [2, 2, 2]
    with pytest.raises(DataError, match="label '0' is no class of the model, whose classes are 1, 2, 3"):
        fl.evaluate(tmp_path / "numbers", (x[:6], np.array([0, 2, 1, 2, 1, 2])))
    ids = fl.evaluate(tmp_path / "words", (x[:6], np.array([0, 2, 1, 2, 1, 2])), metrics=["accuracy"])
    assert [row["samples"] for row in ids.by_class()] == [1, 2, 3]


def test_a_column_of_labels_is_of_a_table(folder, data, tmp_path):
    np.savez(tmp_path / "new.npz", x=data[0], y=data[1])
    for given in (tmp_path / "new.npz", tmp_path, data):
        with pytest.raises(DataError, match=r"label = 'q': only tables have a column of labels; leave label"):
            fl.evaluate(folder, given, label="q")


def test_other_files_and_metrics_are_refused(folder, data, tmp_path):
    np.savez(tmp_path / "x.npz", x=data[0])
    with pytest.raises(DataError, match=r"x.npz: holds x; name the samples x and their labels y"):
        fl.evaluate(folder, tmp_path / "x.npz")
    with pytest.raises(DataError, match=r"no folder of classes, .npz, .csv or .parquet"):
        fl.evaluate(folder, tmp_path / "x.jpg")
    with pytest.raises(ConfigError, match="unknown metric 'aurok'"):
        fl.evaluate(folder, data, metrics=["aurok"])
    with pytest.raises(ConfigError, match="metric domain_accuracy: new data say no domain of their samples; leave it"):
        fl.evaluate(folder, data, metrics=["domain_accuracy"])
    with pytest.raises(ConfigError, match="metric attack_success: new data hold no attacked samples; leave it out"):
        fl.evaluate(folder, data, metrics=["attack_success"])


def test_a_plain_module_of_the_user(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    net = torch.nn.Linear(4, 3)
    scenario = fl.scenario(from_arrays(x, y, classes=["a", "b", "c"]), clients=2)
    fl.run("fedavg", scenario=scenario, rounds=1, model=net, out=tmp_path / "run")
    assert fl.evaluate(tmp_path / "run", (x, y), model=net).samples == 60


TEXT = """
from torch import nn

class Nets:
    @staticmethod
    def small():
        return nn.Linear(2, 3)

ready = nn.Linear(4, 5)
number = 3
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_a_user.py").write_text(TEXT)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "nets_of_a_user", raising=False)


@pytest.mark.parametrize("origin", ["nets_of_a_user.py", "nets_of_a_user"])
def test_functions_and_modules_are_imported(origin: str) -> None:
    before = list(sys.path)
    make = imported_model(f"{origin}:Nets.small")
    assert not isinstance(make, nn.Module)
    assert isinstance(make(), nn.Linear)
    assert isinstance(imported_model(f"{origin}:ready"), nn.Linear)
    assert sys.path == before


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("nets_of_a_user.py", "need FILE.py:NAME or MODULE:NAME"),
        (":make", "need FILE.py:NAME or MODULE:NAME"),
        ("none.py:make", "none.py: no such file"),
        ("none:make", "none: cannot be imported .ModuleNotFoundError"),
        ("broken.py:make", "broken.py: cannot be imported .ModuleNotFoundError: No module named"),
        ("nets_of_a_user.py:make", "nets_of_a_user.py has no make"),
        ("nets_of_a_user.py:number", "a int; need a torch.nn.Module"),
    ],
)
def test_what_cannot_be_imported_is_one_line(reference: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        imported_model(reference)
    assert "\n" not in str(caught.value)


def test_a_file_may_have_dataclasses_and_import_a_file_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "layers_of_a_user.py").write_text("from torch import nn\nlayer = nn.Linear(2, 3)\n")
    (folder / "typed_of_a_user.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom layers_of_a_user import layer\n"
        "@dataclass\nclass Size:\n    width: int = 8\n"
    )
    before, modules = list(sys.path), set(sys.modules)
    try:
        assert isinstance(imported_model(f"{folder / 'typed_of_a_user.py'}:layer"), nn.Linear)
        assert sys.path == before
    finally:
        for name in {"layers_of_a_user", "typed_of_a_user"} - modules:
            sys.modules.pop(name, None)


def test_a_file_that_is_called_as_a_package_does_not_replace_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("make = dict\n")
    package = sys.modules["torch"]
    try:
        assert imported_model("torch.py:make") is dict
        assert sys.modules["torch"] is package
    finally:
        sys.modules.pop("_fedloom_model_torch", None)
