"""Commands for real federations: `fedloom flower export`, `up`, `keys`, `check`, `status`, `metrics`, `admit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloom.cli import federation, preflight
from fedloom.cli.shared import (
    AsJson,
    Config,
    FromRound,
    Overrides,
    Quiet,
    config_path,
    echo,
    overrides_with_options,
    print_json,
    rewind_run,
    say,
)
from fedloom.core.console import console_of

if TYPE_CHECKING:
    from fedloom.runs.config.run_config import RunConfig
    from fedloom.runs.storage.run_data import RunData

group = typer.Typer(help="Run a config as a real federation over Flower.", no_args_is_help=True)
Clients = Annotated[int | None, typer.Option(min=1, help="Number of clients, as scenario.clients=... says it.")]


@group.command()
def export(
    config: Config,
    folder: Annotated[Path, typer.Argument(help="The app's folder.")],
    overrides: Overrides = None,
    clients: Clients = None,
) -> None:
    """Write a config as a Flower app: `flwr run FOLDER` runs it."""
    from fedloom.flower.export import export as write

    for path in write(_parsed(config, overrides, clients), folder):
        echo(path)


@group.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Where certificates and keys go.")],
    host: Annotated[list[str], typer.Option(help="Name or address of the server; may be given several times.")],
    clients: Annotated[int, typer.Option(min=0, help="Nodes to make keys for.")] = 0,
) -> None:
    """Make a certificate for the server and a key for each node."""
    from fedloom.flower.certificates import check, create

    create(folder, host, clients)
    check(folder, host[0], say)
    for path in sorted(folder.iterdir()):
        echo(path)


@group.command()
def rewind(
    run: Annotated[Path, typer.Argument(help="The run's folder on the server.")],
    from_round: Annotated[int, typer.Option(min=1, help="The round whose checkpoint the run goes on from.")],
) -> None:
    """Take a run back to an earlier checkpoint, e.g. to one from before a node spoiled it. The server must be stopped;
    it goes on from there when it starts again."""
    echo(rewind_run(run, from_round))


@group.command()
def up(
    config: Config,
    overrides: Overrides = None,
    clients: Clients = None,
    out: Annotated[Path, typer.Option(help="The run's folder; logs, keys and states go beside it.")] = Path(
        "runs/federation"
    ),
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no node keys.")] = False,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="The SuperLink's port; a free one.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="For source nodes: a folder with node-000000.yaml and so on, and perhaps server.yaml."),
    ] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="All nodes in this process, without Flower.")
    ] = False,
    from_round: FromRound = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a federation of real processes on this machine, with TLS and node keys; the same command goes on with it."""
    from fedloom.cli.terminal import print_result

    parsed = _parsed(config, overrides, clients)
    if from_round is not None:
        say(rewind_run(out, from_round))
    if in_process:
        from fedloom.flower.in_process import run_in_process
        from fedloom.results.report import write_report
        from fedloom.results.report.drift_section import drift_sections
        from fedloom.runs.studies.live_progress import Forward, ProgressDisplay

        states = out.with_name(out.name + ".flower") / "states"
        with ProgressDisplay([parsed], quiet=quiet or as_json) as live:
            watching = [Forward(0, live)]
            result: RunData = run_in_process(
                parsed, out=out, states=states, data=data, callbacks=watching, progress=False
            )
        write_report([result], out / "report.html", parts=drift_sections([result]))
    else:
        from fedloom.flower.log_sentences import as_json_line, log_sentence
        from fedloom.flower.up import up as run

        in_words = as_json_line if as_json else log_sentence

        def tell(line: str) -> None:
            if not quiet:
                say(in_words(line))

        result = run(parsed, out, insecure=insecure, port=port, data=data, say=tell)
    if as_json:
        print_json(result.numbers)
    else:
        print_result(console_of(as_json), result, brief=quiet)
        echo(f"  report: {out / 'report.html'}")


group.add_typer(preflight.group, name="check")
group.command()(federation.status)
group.command()(federation.metrics)
group.command()(federation.admit)


def _parsed(config: Path, overrides: list[str] | None, clients: int | None) -> RunConfig:
    from fedloom.runs.config.run_config import load, parse

    words = overrides_with_options(overrides)
    words += [] if clients is None else [f"scenario.clients={clients}"]
    return parse(load(config_path(config), words))
