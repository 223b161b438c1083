"""The commands `diagnose`, which measures how heterogeneous the data are, and `advise`, which suggests methods."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.cli import shared
from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError

if TYPE_CHECKING:
    from fedloom.runs.storage.log import DriftRound


def diagnose(
    target: Annotated[Path, typer.Argument(help="A config, the name of a ready one, or the folder of a finished run.")],
    overrides: shared.Overrides = None,
    seed: int | None = None,
    as_json: shared.AsJson = False,
) -> None:
    """Measure how heterogeneous the data are: labels, amounts, features, similar clients; of a run also its drift."""
    from fedloom.core.files import json_text, write_atomic
    from fedloom.diagnosis.diagnosis import diagnose_config, diagnose_result
    from fedloom.diagnosis.section import FILE
    from fedloom.results.result import Result
    from fedloom.runs.storage.finished_runs import is_run, unfinished

    finished = target.is_dir() and is_run(target)
    if target.is_dir() and not finished:
        raise ConfigError(f"{target}: this folder is no run; name a config, or the folder of one finished run")
    if finished and (overrides or seed is not None):
        raise ConfigError(f"{target}: the config of a finished run is fixed; leave out key=value and --seed")
    drift: Sequence[DriftRound] = ()
    if not finished:
        diagnosis = diagnose_config(shared.parse_config(target, overrides, seed=seed))
    elif (result := Result.read(target)) is not None:
        diagnosis, drift = diagnose_result(result), result.measured_drift()
    else:
        raise ConfigError(f"{target}: {unfinished(target)}; finish the run first")
    facts = diagnosis.facts()
    if finished:
        write_atomic(target / FILE, json_text(facts, indent=1))
        shared.say(f"written: {target / FILE}; the run's next report shows it")
    if as_json:
        shared.print_json(facts | {"drift": _drift_facts(drift)})
        return
    columns = ("measure", "value", "random dealing (95 %)", "data that the server needs")
    title = f"{diagnosis.name}: heterogeneity"
    _print_section(title, columns, diagnosis.rows(), diagnosis.sentences(), diagnosis.notes)
    if finished:
        _print_drift(drift)


def _print_section(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], sentences: Sequence[str], notes: Sequence[str]
) -> None:
    from fedloom.cli.terminal import print_grid

    console = console_of(False)
    console.print(title, style="italic", markup=False)
    if rows:
        print_grid(console, columns, rows)
    shared.print_lines(*(f"  {sentence}" for sentence in sentences), *(f"  note: {note}" for note in notes))


def _drift_facts(rounds: "Sequence[DriftRound]") -> dict[str, Any] | None:
    from fedloom.results.report.drift import drift_notes, drift_rows, drift_sentences

    if not rounds:
        return None
    return {"rows": drift_rows(rounds), "sentences": drift_sentences(rounds), "notes": drift_notes(rounds)}


def _print_drift(rounds: "Sequence[DriftRound]") -> None:
    from fedloom.results.report.drift import NOT_MEASURED

    facts = _drift_facts(rounds)
    if facts is None:
        shared.print_lines(f"  {NOT_MEASURED}")
        return
    _print_section("\ndrift during training", ("measure", "first round", "last round", "mean"), **facts)


def advise(
    config: shared.Config,
    overrides: shared.Overrides = None,
    goal: str | None = None,
    nets: str | None = None,
    traffic: Annotated[float | None, typer.Option(help="Most traffic of a round, as a multiple of FedAvg's.")] = None,
    stateless: Annotated[bool, typer.Option("--stateless", help="Clients keep nothing between rounds.")] = False,
    newcomers: bool = False,
    secret_labels: bool = False,
    secure_sums: bool = False,
    dp: Annotated[bool, typer.Option("--dp", help="Uploads are made differentially private (the wrapper dp).")] = False,
    trial: bool = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the trial's runs; by default in runs/.")] = None,
    seed: int | None = None,
    rounds: int | None = None,
    jobs: int | None = None,
    quiet: shared.Quiet = False,
    as_json: shared.AsJson = False,
) -> None:
    """Suggest methods: a short list with the gain to expect of each, and a trial if you ask for it."""
    import shlex
    from functools import partial

    from fedloom.core.process_settings import reproducible_settings
    from fedloom.core.text import counted
    from fedloom.diagnosis.advice import advise_scenario, with_trial
    from fedloom.diagnosis.evidence import Needs, fitted
    from fedloom.runs.config.keys import built
    from fedloom.runs.studies.live_progress import ProgressDisplay

    keys = {"goal": goal, "nets": nets, "traffic": traffic, "stateless": stateless, "newcomers": newcomers}
    needs = built(Needs, keys | {"secret_labels": secret_labels, "secure_sums": secure_sums, "dp": dp}, "")
    parsed = shared.parse_config(config, overrides, seed=seed, rounds=rounds)
    with reproducible_settings():
        advice = advise_scenario(parsed, parsed.scenario.build(parsed.seed), needs)
    if trial:
        folder = out or Path("runs") / f"advise-{config.stem}"
        with shared.output_folder(folder):
            show = partial(ProgressDisplay, quiet=quiet or as_json)
            advice = with_trial(advice, parsed, out=folder, jobs=jobs or 1, show=show)
    if as_json:
        shared.print_json(advice.facts())
        return
    title = f"{advice.diagnosis.name}: methods to try"
    columns = ("method", f"expected gain over {advice.evidence['baseline']}", "better", "measured gains", "costs")
    _print_section(title, columns, advice.rows(), advice.sentences(), advice.notes)
    if advice.first is not None:
        protocol = fitted(parsed, advice.first, advice.needs).evaluation.protocol
        words = [str(config), *(overrides or ()), f"method={advice.first}", f"evaluation.protocol={protocol}"]
        shared.print_lines(f"  to run {advice.first}: fedloom run {shlex.join(words)}")
    for rung in () if advice.trial is None else advice.trial.rungs:
        best = ", ".join(f"{arm.name} {score:.3f}" for arm, score in list(rung.scores.items())[:3])
        shared.print_lines(f"  {counted(rung.rounds, 'round')}, best on validation data: {best}")
