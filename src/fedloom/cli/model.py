"""Commands for the trained model of a run: `export`, `predict` and `evaluate`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fedloom.cli.shared import AsJson, print_json, print_lines, say
from fedloom.core.errors import ConfigError, check_choice
from fedloom.core.text import counted, number_text, value_text, with_unit

if TYPE_CHECKING:
    from fedloom.runs.export.trained import Trained
    from fedloom.runs.storage.log import At

Run = Annotated[Path, typer.Argument(help="A run folder, or an exported .safetensors.")]


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Path | None = None,
    file_format: str | None = None,
    client: int | None = None,
    selection: str = "last",
    model: str | None = None,
    hub: str | None = None,
    public: bool = False,
    as_json: AsJson = False,
) -> None:
    """Export a run's trained model as weights or as a graph, with its metadata and a model card."""
    from fedloom.results.export_model import export_model
    from fedloom.results.hub import check_hub, upload
    from fedloom.runs.export.modules import SUFFIXES, check_place
    from fedloom.runs.storage.run_data import RunData

    suffixes = {str(name): suffix for name, suffix in SUFFIXES.items()}
    check_choice("format", file_format or "safetensors", [*suffixes])
    suffix = suffixes[file_format or "safetensors"]
    path = out or Path(f"model{suffix}")
    if file_format is not None and path.suffix != suffix:
        raise ConfigError(f"{path}: --format {file_format} writes {suffix}; use a name such as {path.stem}{suffix}")
    # Before the model is read, which may take long.
    check_place(path)
    if public and hub is None:
        raise ConfigError("--public: it is about a repository on the hub; name one with --hub OWNER/NAME")
    if hub is not None:
        check_hub(hub)
    trained = _trained(run, client, selection, model)
    exported = export_model(trained, path, RunData.read(run) if run.is_dir() else None)
    page = {} if hub is None else {"page": upload(exported, hub, public)}
    if as_json:
        graph = exported.described.graph
        files = {"weights": str(exported.model), "metadata": str(exported.metadata), "card": str(exported.card), **page}
        content = {**files, "format": exported.described.format, **_about(trained)}
        print_json(content if graph is None else {**content, "difference": graph.difference})
    else:
        print_lines(f"{exported.model}, {exported.metadata.name}, {exported.card.name}: {trained.title}")
        for address in page.values():
            print_lines(f"uploaded to {address}")


def predict(
    run: Run,
    files: Annotated[list[Path], typer.Argument(help="Samples like those of the run: images, texts, tables, .npz.")],
    client: int | None = None,
    selection: str = "last",
    model: str | None = None,
    top: Annotated[int, typer.Option(min=1, help="Classes to print for each sample.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Predict the classes of new samples, or their several labels, with probabilities."""
    from fedloom.runs.export.samples import SampleNote, read_samples

    trained = _trained(run, client, selection, model)
    notes: list[SampleNote] = []
    names, samples = read_samples(files, trained.metadata.input, notes.append)
    for note in notes:
        say(note.text)
    scores = trained.scores(samples)
    multi = trained.metadata.labels == "multi"
    rows: list[list[float]] = (scores.sigmoid() if multi else scores.softmax(1)).tolist()
    decided, decision = trained.decisions(scores) or [False] * len(rows), trained.metadata.decision
    classes = trained.metadata.classes
    predicted, key = trained.predicted(scores), "labels" if multi else "class"
    if as_json:
        predictions = [
            {
                "sample": name,
                key: held,
                "probabilities": dict(zip(classes, row, strict=True)),
                **({} if decision is None else {"decision": positive}),
            }
            for name, row, held, positive in zip(names, rows, predicted, decided, strict=True)
        ]
        unusual = [dataclasses.asdict(note) for note in notes]
        threshold = {} if decision is None else {"decision": decision.model_dump()}
        print_json({**_about(trained), **threshold, "predictions": predictions, "notes": unusual})
        return
    width = max(map(len, names))
    for name, row, held, positive in zip(names, rows, predicted, decided, strict=True):
        ranked = sorted(zip(row, classes, strict=True), key=lambda pair: -pair[0])[:top]
        columns = [f"{label} {100 * share:.1f} %" for share, label in ranked]
        columns += [f"labels: {', '.join(held) or 'none'}"] if multi else []
        columns += [] if decision is None else [f"decision: {'' if positive else 'not '}{decision.label}"]
        print_lines("  ".join([f"{name:{width}}", *columns]))


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder, a study or comparison, or an exported .safetensors.")],
    data: Annotated[Path | None, typer.Argument(help="A folder of class folders, .npz, .csv or .parquet.")] = None,
    protocol: Annotated[list[str] | None, typer.Option(help="A protocol, as personal/local; may be repeated.")] = None,
    newcomers: Annotated[str | None, typer.Option(help="Test held-out clients: true, or '{shots: [1, 5]}'.")] = None,
    by: Annotated[str | None, typer.Option(help="Also print values by group, owner or a column of a table.")] = None,
    interval: Annotated[str | None, typer.Option(help="Add intervals by a bootstrap of group or row.")] = None,
    client: int | None = None,
    selection: str = "",
    label: Annotated[str | None, typer.Option(help="The column with the labels, for a table.")] = None,
    model: str | None = None,
    metric: Annotated[list[str] | None, typer.Option(help="A metric; may be repeated. By default all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Test finished runs again, in other protocols, without training; or a trained model on new labelled data."""
    from fedloom.runs.config.run_config import load
    from fedloom.runs.export.evaluation import evaluate as test
    from fedloom.runs.export.evaluation import imported_model

    how: dict[str, Any] = {"label": label, "model": None if model is None else imported_model(model), "note": say}
    if data is None or protocol or by or newcomers or interval:
        if run.is_file() or client is not None:
            raise ConfigError(f"{run}: --client and exported files go with DATA alone, which tests a single model")
        served = newcomers and load(None, [f"newcomers={newcomers}"]).get("newcomers")
        how |= {"protocols": protocol, "by": by, "interval": interval, "newcomers": served, "metrics": metric or None}
        _test_again(run, as_json, **how, at=selection or None, data=data)
        return
    tested = test(run, data, client, cast("At", selection or "last"), metrics=metric or (), **how)
    if as_json:
        print_json(dataclasses.asdict(tested))
        return
    print_lines(f"{tested.model}, on {tested.samples:,} samples of {data}")
    for name, value in tested.metrics.items():
        note = tested.details.get(name, {}).get("note")
        print_lines(
            f"  {name:18} {'not defined' if value is None else value_text(name, value)}{f' ({note})' if note else ''}"
        )
    columns = [*tested.by_class()[0]]
    width = max(map(len, (*tested.classes, "class")))
    print_lines(f"  {'class':{width}}" + "".join(f"{with_unit(column):>13}" for column in columns[1:]))
    for row in tested.by_class():
        print_lines(
            f"  {row['class']:{width}}" + "".join(f"{_cell(column, row[column]):>13}" for column in columns[1:])
        )


def _test_again(folder: Path, as_json: bool, **options: Any) -> None:
    from fedloom.cli.comparisons import say_left_out, show_comparison
    from fedloom.results.comparison import Comparison
    from fedloom.runs.studies.outcome import collect

    collected = collect([folder])
    say_left_out(collected.left_out)
    done = Comparison(collected.results).evaluate(**options)
    digest = done.results[0].numbers["evaluation"]["digest"]
    if as_json:
        print_json({"evaluation": digest, "table": done.rows(), "numbers": [run.numbers for run in done]})
        return
    count = counted(len(done), "run")
    show_comparison(done, f"evaluation {digest} of {count}: fedloom table {folder} --evaluation {digest}")


def _cell(column: str, value: float | None) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else number_text(column, value, 2)


def _trained(run: Path, client: int | None, selection: str, model: str | None) -> "Trained":
    from fedloom.runs.export.evaluation import imported_model
    from fedloom.runs.export.trained import read

    user_model = None if model is None else imported_model(model)
    return read(run, client, cast("At", selection), model=user_model, note=say)


def _about(trained: "Trained") -> dict[str, Any]:
    training = trained.metadata.training
    return {"method": training.method, "client": training.client, "round": training.round, "rounds": training.rounds}
