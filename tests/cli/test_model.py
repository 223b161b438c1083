"""`fedloom export` and `fedloom predict`: from a finished run to class names and probabilities."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedloom as fl
from command_line import call
from fedloom.runs.export.evaluation import imported_model

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "demo"
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.5, clients=4)
    fl.run("fedavg", scenario=scenario, rounds=2, out=folder, engine="serial")
    return folder


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_export_then_predict(capsys: Any, run_dir: Path) -> None:
    code, out, err = call(capsys, "export", str(run_dir), "--out", "m.safetensors", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told == {
        "weights": "m.safetensors",
        "metadata": "m.json",
        "card": "m.card.md",
        "format": "safetensors",
        "method": "fedavg",
        "client": None,
        "round": 2,
        "rounds": 2,
    }
    test = fl.scenario("digits", partition="iid", clients=1).build(0).test_set
    np.savez("d.npz", x_test=test.x[:30].numpy(), y_test=test.y[:30].numpy())
    places = str(run_dir), "m.safetensors"
    found = [json.loads(call(capsys, "predict", place, "d.npz", "--json")[1]) for place in places]
    assert found[0] == found[1]
    with torch.no_grad():
        expected = fl.load(run_dir)(test.gather(torch.arange(30))).softmax(1)
    for number, one in enumerate(found[0]["predictions"]):
        assert one["sample"] == f"d.npz:{number}"
        assert list(one["probabilities"]) == [*"0123456789"]
        assert list(one["probabilities"].values()) == pytest.approx(expected[number].tolist(), abs=1e-6)
        assert one["class"] == str(int(expected[number].argmax()))


def test_predict_for_people(capsys: Any, run_dir: Path) -> None:
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save("black.png")
    code, out, err = call(capsys, "predict", str(run_dir), "black.png", "--top", "2")
    assert code == 0
    resized = "pictures of another size than the model's, which were resized: 1 of 1, first black.png (20 x 20)"
    assert err == f"{resized}\n"
    name, *said = out.split()
    assert name == "black.png"
    assert said[2::3] == ["%", "%"]
    assert float(said[1]) >= float(said[4])


def test_unusual_samples_are_in_the_json(capsys: Any, run_dir: Path) -> None:
    rows = "\n".join(f"{row % 40},{'NS'[row % 2]},{'yes' if row % 3 else 'no'}" for row in range(120))
    Path("patients.csv").write_text(f"age,ward,ill\n{rows}\n")
    Path("new.csv").write_text("age,ward\n20,N\n900,W\n")
    scenario = fl.scenario("csv", path="patients.csv", label="ill", partition="iid", clients=2)
    fl.run("fedavg", scenario=scenario, rounds=1, out="run", engine="serial")
    assert call(capsys, "export", "run", "--format", "torch-export", "--out", "m.pt2")[0] == 0
    assert call(capsys, "export", "run")[0] == 0
    for place in ("run", "model.safetensors"):
        code, out, err = call(capsys, "predict", place, "new.csv", "--json")
        assert code == 0
        notes = json.loads(out)["notes"]
        assert [(note["kind"], note["count"]) for note in notes] == [("unknown_words", 1), ("outside_training", 1)]
        assert err == "".join(f"{note['text']}\n" for note in notes)
    assert json.loads(Path("m.pt2.json").read_text())["input"]["ranges"][0] == [0.0, 39.0]


def test_texts_and_clients(capsys: Any) -> None:
    lines = [f"{label}\t{word} film {number}" for number in range(20) for label, word in ((0, "bad"), (1, "good"))]
    for name in ("train.tsv", "test.tsv"):
        Path(name).write_text("\n".join(lines))
    scenario = fl.scenario("tsv", path=Path.cwd(), length=4, vocabulary=50, partition="iid", clients=2)
    how: Any = {"model": {"name": "bilstm", "vocabulary": 50}, "rounds": 1, "local_epochs": 15, "engine": "serial"}
    fl.run("local", scenario=scenario, evaluation={"protocol": "personal/local"}, out="run", **how)
    Path("a.txt").write_text("Good film!")
    Path("b.txt").write_text("bad film")
    for place in ("run", "m.safetensors"):
        whose = ("--client", "1") if place == "run" else ()
        code, out, err = call(capsys, "predict", place, "a.txt", "b.txt", "--json", *whose)
        assert (code, err) == (0, "")
        assert [one["class"] for one in json.loads(out)["predictions"]] == ["1", "0"]
        call(capsys, "export", "run", "--client", "1", "--out", "m.safetensors")


def test_export_for_people(capsys: Any, run_dir: Path) -> None:
    code, out, _ = call(capsys, "export", str(run_dir))
    assert (code, out) == (
        0,
        "model.safetensors, model.json, model.card.md: the global model of fedavg after round 2 of 2\n",
    )
    assert Path("model.safetensors").is_file()


def test_the_format_decides_the_suffix(capsys: Any, run_dir: Path) -> None:
    code, out, err = call(capsys, "export", str(run_dir), "--format", "torch-export", "--json")
    assert (code, err) == (0, "")
    content = json.loads(out)
    assert content["weights"] == "model.pt2"
    assert content["difference"] <= 1e-5
    assert sorted(path.name for path in Path().iterdir()) == ["model.pt2", "model.pt2.card.md", "model.pt2.json"]


def test_a_model_from_python_is_imported_by_name(capsys: Any) -> None:
    Path("nets.py").write_text(
        "from torch import nn\n\ndef make_net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    reference = "nets.py:make_net"
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.5, clients=4)
    result = fl.run("fedavg", scenario=scenario, model=imported_model(reference), rounds=1, out="run", engine="serial")
    code, _, err = call(capsys, "export", "run")
    assert code == 2
    assert "--model" in err
    assert call(capsys, "export", "run", "--model", reference)[0] == 0
    assert call(capsys, "export", "run", "--model", reference, "--format", "torch-export")[0] == 0
    np.savez("x.npz", x=np.zeros((2, 1, 8, 8), np.uint8))
    for place in ("run", "model.safetensors"):
        code, out, err = call(capsys, "predict", place, "x.npz", "--model", reference, "--json")
        assert (code, err) == (0, "")
        assert len(json.loads(out)["predictions"]) == 2
    assert result.numbers["rounds"] == 1


def test_an_unfinished_run_says_which_round_it_is(capsys: Any, run_dir: Path) -> None:
    shutil.copytree(run_dir, "half")
    Path("half/summary.json").unlink()
    code, out, err = call(capsys, "export", "half", "--json")
    assert code == 0
    assert json.loads(out)["round"] == 2
    assert err == "half is unfinished: this is the model after round 2 of 2\n"


@pytest.mark.parametrize(
    "words",
    [
        ["export", "nowhere"],
        ["export", "RUN", "--client", "9"],
        ["export", "RUN", "--client", "1"],
        ["export", "RUN", "--at", "best"],
        ["export", "RUN", "--out", "m.pt"],
        ["export", "RUN", "--format", "pickle"],
        ["export", "RUN", "--format", "onnx", "--out", "m.safetensors"],
        ["export", "RUN", "--model", "nets.py:make"],
        ["export", "RUN", "--model", "nets"],
        ["export", "RUN", "--public"],
        ["export", "RUN", "--hub", "name-without-owner"],
        ["predict", "m.onnx", "none.npz"],
        ["export", "RUN", "--out", "/proc/m.safetensors"],
        ["predict", "RUN", "none.npz"],
        ["predict", "none.safetensors", "none.npz"],
        ["predict", "none.safetensors", "none.npz", "--client", "0"],
    ],
    ids=lambda words: " ".join(words),
)
def test_mistakes_give_one_line_and_leave_nothing(capsys: Any, run_dir: Path, tmp_path: Path, words: list[str]) -> None:
    code, out, err = call(capsys, *[word.replace("RUN", str(run_dir)) for word in words], "--json")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
