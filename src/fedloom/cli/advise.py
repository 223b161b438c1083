"""The command `advise`: which methods to try on a federation's data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedloom.cli.shared import (
    AsJson,
    Config,
    Jobs,
    Overrides,
    Quiet,
    Rounds,
    Seed,
    config_path,
    output_folder,
    overrides_with_options,
    print_json,
)
from fedloom.core.console import console_of

if TYPE_CHECKING:
    from fedloom.diagnosis.advice.advice import Advice

# A test holds these texts to the descriptions of fedloom.diagnosis.advice.evidence.Needs, whose import takes a second.
_GOAL = "One model for all (global), or a model for each client (personal); null reads the config's protocol."
_NETS = "Whether the clients' networks are equal or different; null reads the config's models."


def advise(
    config: Config,
    overrides: Overrides = None,
    goal: Annotated[str | None, typer.Option(help=_GOAL)] = None,
    nets: Annotated[str | None, typer.Option(help=_NETS)] = None,
    traffic: Annotated[float | None, typer.Option(help="Most traffic of a round, as a multiple of FedAvg's.")] = None,
    stateless: Annotated[bool, typer.Option("--stateless", help="Clients keep nothing between rounds.")] = False,
    newcomers: Annotated[
        bool, typer.Option("--newcomers", help="A client that never trained gets a trained model at once.")
    ] = False,
    secure_sums: Annotated[
        bool, typer.Option("--secure-sums", help="The server sees sums over clients only (secure aggregation).")
    ] = False,
    dp: Annotated[bool, typer.Option("--dp", help="Uploads are made differentially private (the wrapper dp).")] = False,
    trial: Annotated[
        bool, typer.Option("--trial", help="Train the short list and the reference, and recommend by validation data.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the trial's runs; by default below runs/.")] = None,
    seed: Seed = None,
    rounds: Rounds = None,
    jobs: Jobs = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Which methods to try on these data: a short list with measured reasons, and if wanted a trial."""
    from functools import partial

    from fedloom.core.process_settings import reproducible_settings
    from fedloom.diagnosis.advice.advice import advise_scenario
    from fedloom.diagnosis.advice.evidence import read_needs
    from fedloom.diagnosis.advice.trial import with_trial
    from fedloom.runs.config.run_config import load, parse
    from fedloom.runs.studies.live_progress import ProgressDisplay

    keys = {"goal": goal, "nets": nets, "traffic": traffic, "stateless": stateless, "newcomers": newcomers}
    needs = read_needs(keys | {"secure_sums": secure_sums, "dp": dp})
    parsed = parse(load(config_path(config), overrides_with_options(overrides, seed=seed, rounds=rounds)))
    with reproducible_settings():
        advice = advise_scenario(parsed, parsed.scenario.build(parsed.seed), needs)
    if trial:
        folder = out or Path("runs") / f"advise-{config.stem}"
        with output_folder(folder):
            show = partial(ProgressDisplay, quiet=quiet or as_json)
            advice = with_trial(advice, parsed, out=folder, jobs=jobs or 1, show=show)
    if as_json:
        print_json(advice.facts())
    else:
        _print(console_of(as_json), advice)


def _print(console: Console, advice: Advice) -> None:
    from fedloom.cli.terminal import print_grid
    from fedloom.core.text import counted

    console.print(f"{advice.diagnosis.name}: methods to try", style="italic", markup=False)
    if advice.suggestions:
        print_grid(console, ("method", "measured there", "against the baseline there", "costs"), advice.rows())
    for sentence in advice.sentences():
        console.print(f"  {sentence}", markup=False, soft_wrap=True)
    for note in advice.notes:
        console.print(f"  note: {note}", markup=False, soft_wrap=True)
    if advice.trial is not None:
        for rung in advice.trial.rungs:
            best = ", ".join(f"{arm.name} {score:.3f}" for arm, score in list(rung.scores.items())[:3])
            console.print(
                f"  {counted(rung.rounds, 'round')}, best on validation data: {best}", markup=False, soft_wrap=True
            )
