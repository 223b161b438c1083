"""Commands for the trained model of a run: `export` and `predict`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fedloom.commands.shared import echo, say

if TYPE_CHECKING:
    from fedloom.export.trained import Trained
    from fedloom.storage.curves import RoundSelection

Run = Annotated[Path, typer.Argument(help="A run folder.")]
Client = Annotated[int | None, typer.Option(help="This client's personal model; without it the server's.")]
Round = Annotated[str, typer.Option("--at", help="last, or best_val: the best round on validation data.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else, on stdout.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(export)
    app.command()(predict)
    app.command()(evaluate)


def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="The weights; what they are goes beside them, as .json.")] = Path(
        "model.safetensors"
    ),
    client: Client = None,
    selection: Round = "last",
    as_json: AsJson = False,
) -> None:
    """Write a run's trained model: a plain state dict, and what it is."""
    from fedloom.export.metadata import check_place

    check_place(out)
    trained = _trained(run, client, selection)
    card = trained.save(out)
    if as_json:
        typer.echo(json.dumps({"weights": str(out), "card": str(card), **_about(trained)}))
    else:
        echo(f"{out}, {card.name}: {_sentence(trained)}")


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder, or an exported .safetensors.")],
    files: Annotated[list[Path], typer.Argument(help="What the run learned from: pictures, texts, tables, .npz.")],
    client: Client = None,
    selection: Round = "last",
    top: Annotated[int, typer.Option(min=1, help="Classes to print for each sample.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Class names and probabilities for new samples."""
    from fedloom.export.samples import read_samples

    trained = _trained(run, client, selection)
    names, samples = read_samples(files, trained.metadata.input, note=lambda text: typer.echo(text, err=True))
    rows: list[list[float]] = trained.probabilities(samples).tolist()
    classes = trained.metadata.classes
    if as_json:
        predictions = [
            {
                "sample": name,
                "class": classes[row.index(max(row))],
                "probabilities": dict(zip(classes, row, strict=True)),
            }
            for name, row in zip(names, rows, strict=True)
        ]
        typer.echo(json.dumps({**_about(trained), "predictions": predictions}))
        return
    width = max(map(len, names))
    for name, row in zip(names, rows, strict=True):
        ranked = sorted(zip(row, classes, strict=True), key=lambda pair: -pair[0])[:top]
        echo(f"{name:{width}}  " + "  ".join(f"{label} {100 * share:.1f} %" for share, label in ranked))


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder, or an exported .safetensors.")],
    data: Annotated[Path, typer.Argument(help="A folder with a folder for each class, or .npz, .csv, .parquet.")],
    client: Client = None,
    selection: Round = "last",
    label: Annotated[str | None, typer.Option(help="The column with the labels, for a table.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="A metric; may be repeated. Without it all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Test a trained model on new labelled data, with all metrics."""
    from fedloom.export.evaluation import evaluate as test

    at = cast("RoundSelection", selection)
    tested = test(run, data, client, at, metrics=metric or (), label=label, note=lambda text: say(text))
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(tested)))
        return
    echo(f"{tested.model}, on {tested.samples:,} samples of {data}")
    for name, value in tested.metrics.items():
        note = tested.details.get(name, {}).get("note")
        echo(f"  {name:18} {'not defined' if value is None else f'{value:.4f}'}{f' ({note})' if note else ''}")
    columns = [*tested.by_class()[0]]
    width = max(map(len, (*tested.classes, "class")))
    echo(f"  {'class':{width}}" + "".join(f"{column:>11}" for column in columns[1:]))
    for row in tested.by_class():
        echo(f"  {row['class']:{width}}" + "".join(f"{_cell(row[column]):>11}" for column in columns[1:]))


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _trained(run: Path, client: int | None, selection: str) -> Trained:
    from fedloom.export.trained import read

    return read(run, client, cast("RoundSelection", selection), note=say)


def _about(trained: Trained) -> dict[str, Any]:
    training = trained.metadata.training
    return {"method": training.method, "client": training.client, "round": training.round, "rounds": training.rounds}


def _sentence(trained: Trained) -> str:
    about = trained.metadata.training
    owner = "the global model" if about.client is None else f"the model of client {about.client}"
    return f"{owner} of {about.method} after round {about.round} of {about.rounds}"
