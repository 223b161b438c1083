"""The model card: the records of a run as Markdown, and nothing beside them."""

from pathlib import Path
from typing import Any

import pytest

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.results.export_model import export_model, model_card
from fedloom.results.result import Result
from fedloom.runs.export.modules import Architecture, ExportMetadata, Input, Training
from fedloom.runs.export.trained import of_result, read
from toy_results import MakeResult

CLASSES = ("plain", "a|b", "<b>bold</b>", "`code`\nline")


def described(client: int | None = None, at: Any = "last") -> ExportMetadata:
    return ExportMetadata(
        architecture=Architecture(model="toy-net", options={"hidden": 8}, given=False, forward="model"),
        classes=CLASSES,
        input=Input(shape=(3,), dtype="float32", mean=None, std=None, white=None, ids=None, words=()),
        training=Training(
            method="fedavg", preset="sound", options={}, seed=0, clients=3, rounds=3, round=3, at=at, client=client
        ),
        weights="m.safetensors",
        sha256="ab",
    )


def row(card: str, label: str) -> str:
    lines = [line for line in card.splitlines() if line.startswith(f"| {label} |")]
    assert len(lines) == 1, f"{label}: {lines}"
    return lines[0].removeprefix(f"| {label} | ").removesuffix(" |")


def test_a_card_has_the_numbers_of_the_run(make_result: MakeResult) -> None:
    metrics = {"balanced_accuracy": 0.8, "auroc": None, "majority_global": 0.4}
    run = make_result(client_accuracies=(0.5, 0.7, 0.9), protocol="personal/local", metrics=metrics)
    card = model_card(described(client=1), 35, run, {"torch": "2.13.0"})
    assert row(card, "weights") == "35"
    assert row(card, "accuracy") == "0.9000"
    assert row(card, "balanced_accuracy") == "0.8000"
    assert row(card, "baseline: most frequent class") == "0.4000"
    assert "auroc" not in card  # it was not defined
    assert row(card, "worst client") == "0.5000"
    assert row(card, "client 1, whose model this is") == "0.7000"
    assert row(card, "partition") == "dirichlet (alpha 0.1)"
    assert row(card, "trained with") == "torch 2.13.0"
    assert "This file's model is one of the tested ones." in card
    assert card.rstrip().endswith("what it must not decide.")


def test_an_epsilon_is_next_to_the_accuracy(make_result: MakeResult) -> None:
    card = model_card(described(), 35, make_result(figures={"epsilon": 5.25, "delta": 1e-3}), {})
    assert "| accuracy | 0.9000 |\n| epsilon | 5.2500 |\n| delta | 0.0010 |" in card


def test_unknown_facts_are_left_out(make_result: MakeResult) -> None:
    card = model_card(described(), 35, None, {})
    assert [line for line in card.splitlines() if line.startswith("## ")] == [
        "## Model",
        "## Training",
        "## Origin",
        "## Intended use",
    ]
    assert "None" not in card
    world = {"name": "flower", "clients": 3, "classes": list(CLASSES)}  # nodes keep their samples to themselves
    remote = model_card(described(), 35, make_result(world=world), {})
    assert "samples" not in remote.partition("## Results")[0]
    assert "Accuracy of single clients" not in remote


@pytest.mark.parametrize(("client", "at"), [(None, "best_val"), (2, "last")])
def test_a_card_says_where_the_run_tested_another_model(make_result: MakeResult, client: int | None, at: str) -> None:
    assert "this file holds another model of the run" in model_card(described(client, at), 35, make_result(), {})


def test_names_of_others_do_not_break_the_tables(make_result: MakeResult) -> None:
    card = model_card(described(), 35, make_result(), {})
    assert "| a\\|b | " in card
    assert "\\<b\\>bold" in card
    assert "\\`code\\`\\\\nline" in card
    tables = [line for line in card.splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") in (3, 4, 5) for line in tables)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.5, clients=3)
    return fl.run("fedavg", scenario=scenario, rounds=1, engine="serial", out=tmp_path_factory.mktemp("runs") / "run")


def test_the_card_of_a_real_run(tmp_path: Path, finished: Result) -> None:
    files = finished.export(tmp_path / "m.safetensors")
    card = files.card.read_text()
    assert files.card.name == "m.card.md"
    assert row(card, "accuracy") == f"{finished.numbers['accuracy']:.4f}"
    assert row(card, "source of the method").startswith("McMahan et al.")
    assert row(card, "training samples") == f"{finished.scenario['train_samples']:,}"
    assert "fedloom" in row(card, "trained with")
    assert "It tested this file's model." in card
    counts = [sum(column) for column in zip(*finished.scenario["class_counts"], strict=True)]
    assert f"| 3 | {counts[3]:,} |" in card


@pytest.mark.parametrize("change", ["My own notes.\n", None])
def test_notes_below_a_card_are_not_lost(tmp_path: Path, finished: Result, change: str | None) -> None:
    files = finished.export(tmp_path / "m.safetensors")
    text = files.card.read_text()
    files.card.write_text(text + change if change else text.rpartition(" has the SHA-256 ")[0] + " has the SHA-256 ")
    with pytest.raises(ConfigError, match="this card was edited"):
        finished.export(tmp_path / "m.safetensors")


def test_an_edited_card_is_not_replaced(tmp_path: Path, finished: Result) -> None:
    files = finished.export(tmp_path / "m.safetensors")
    finished.export(tmp_path / "m.safetensors")  # nobody touched it
    files.card.write_text(files.card.read_text().replace("The run does not know it.", "For reading meters."))
    with pytest.raises(ConfigError, match="this card was edited"):
        finished.export(tmp_path / "m.safetensors")
    assert "For reading meters." in files.card.read_text()
    (tmp_path / "n.card.md").write_text("my notes")
    with pytest.raises(ConfigError, match="this card was edited"):
        finished.export(tmp_path / "n.safetensors")
    assert not (tmp_path / "n.safetensors").exists()


def test_a_file_is_exported_again_with_what_it_knows(tmp_path: Path, finished: Result) -> None:
    finished.export(tmp_path / "m.safetensors")
    files = export_model(read(tmp_path / "m.safetensors"), tmp_path / "again.pt2")
    assert "## Results" not in files.card.read_text()
    assert row(files.card.read_text(), "method") == "fedavg"
    assert of_result(finished).metadata.classes == files.described.classes
