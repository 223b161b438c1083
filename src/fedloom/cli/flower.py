"""Commands for real federations: `fedloom flower export`, `up`, `keys`, `check`, `status`, `metrics`, `admit`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloom.cli import shared
from fedloom.core.console import console_of

if TYPE_CHECKING:
    from rich.console import Console

    from fedloom.flower.preflight.finding import Finding
    from fedloom.flower.status import Status
    from fedloom.runs.config.run_config import RunConfig
    from fedloom.runs.storage.run_data import RunData


Run = Annotated[Path, typer.Argument(help="The run's folder on the server.")]
_EVERY = 2.0  # seconds between two looks


def status(
    run: Run,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again every two seconds, until the run has ended.")
    ] = False,
    keys: Annotated[
        Path | None, typer.Option(help="Folder of the certificates; that of `fedloom flower up` unless given.")
    ] = None,
    as_json: shared.AsJson = False,
) -> None:
    """Show a run over Flower: nodes, round, waits, bytes, refused uploads, the last error. Needs no connection."""
    from fedloom.flower.certificates import expiring
    from fedloom.flower.status import read_status
    from fedloom.flower.up import folder_of

    console = console_of(as_json)
    while True:
        snapshot, certificates = read_status(run), expiring(keys or folder_of(run) / "keys")
        if as_json:
            age = round(time.time() - snapshot.written, 3)
            shared.print_json(snapshot.model_dump() | {"age_seconds": age, "certificates": certificates})
        else:
            if watch and console.is_terminal:
                console.clear()
            _page(console, snapshot, certificates)
        if not watch or snapshot.state != "running":
            return
        time.sleep(_EVERY)


def metrics(
    run: Run,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port.")] = 9105,
    host: Annotated[str, typer.Option(help="The address to listen on: the loopback unless given.")] = "127.0.0.1",
) -> None:
    """The same for Prometheus, on a local port, until Ctrl-C."""
    from fedloom.flower.status import serve_metrics

    end = serve_metrics(run, port, host)
    shared.say(f"http://{host}:{port}/metrics; Ctrl-C ends it")
    try:
        while True:
            time.sleep(3600)
    finally:
        end()


def admit(
    run: Run,
    client: Annotated[int, typer.Option(min=0, help="The client whose key or disk has changed.")],
    key: Annotated[
        str | None, typer.Option(help="The only key that may take its seat: SHA256:..., or the file of the public key.")
    ] = None,
) -> None:
    """Let another key or another disk take a client's seat, also while the run goes on."""
    from fedloom.flower.bindings import admit as admit_client

    admit_client(run, client, key)
    whom = f"the node with the key {key}" if key else "the next node that joins as this client"
    shared.say(f"client {client} of {run}: bound to {whom}, from any disk")


def _page(console: Console, snapshot: Status, certificates: list[str]) -> None:
    from fedloom.cli.terminal import print_grid
    from fedloom.flower.absences import client_list
    from fedloom.flower.status import SILENT
    from fedloom.results.report import bytes_text

    line = partial(shared.print_lines, console)
    line(f"{snapshot.method}, run {snapshot.run}: {snapshot.state}, round {snapshot.round} of {snapshot.rounds}")
    age = time.time() - snapshot.written
    is_silent = snapshot.state == "running" and age > SILENT
    silence = ": the server is dead, or busy with a long step" if is_silent else ""
    line(f"  last written {_seconds(age)} ago, {_clock(snapshot.written)}{silence}")
    if snapshot.wait is not None:
        clients = client_list(snapshot.wait.clients)
        since = _seconds(snapshot.written - snapshot.wait.since)
        limit = _seconds(snapshot.wait.until - snapshot.written)
        line(f"  waits for {snapshot.wait.purpose} of clients {clients}: since {since}, at most {limit} more")
    line(f"  payloads: up {bytes_text(snapshot.bytes_up)}, down {bytes_text(snapshot.bytes_down)}")
    line(f"  refused: {snapshot.refused}; exceptions of clients: {snapshot.failures}")
    if (error := snapshot.last_error) is not None:
        line(f"  last error ({error.event}, {_clock(error.time)}): {error.text}")
    for text in certificates:
        line(f"  {text}")
    if snapshot.nodes:
        rows = [
            (str(node.client), "there" if node.online else "away", str(node.samples), str(node.round or ""), node.node)
            for node in snapshot.nodes
        ]
        print_grid(console, ("client", "node is", "samples", "last round", "node"), rows)
    for absence in snapshot.absent:
        line(f"  node {absence.node} is left out: {absence.reason}")


def _seconds(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s"


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))


checks = typer.Typer(help="Check a server or a node before it starts; exit code 1 if something would fail.")
_SIGNS = {"ok": "ok     ", "warning": "warning", "error": "error  "}
Insecure = Annotated[bool, typer.Option("--insecure", help="The SuperLink has no TLS and no node keys.")]


@checks.command()
def server(
    app: Annotated[
        Path | None,
        typer.Argument(help="The app that `fedloom flower export` wrote, or a config file, for disk and config."),
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address at which nodes reach the server; may come several times.")
    ] = None,
    keys: Annotated[Path, typer.Option(help="The folder of `fedloom flower keys`.")] = Path("keys"),
    port: Annotated[int, typer.Option(min=1, max=65535, help="The SuperLink's port.")] = 8000,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/flower"),
    config: Annotated[Path | None, typer.Option(help="The config that the app should have.")] = None,
    insecure: Insecure = False,
    as_json: shared.AsJson = False,
) -> None:
    """Check versions, certificates, keys, port, disk and config of a server before its SuperLink starts."""
    from fedloom.core.errors import ConfigError
    from fedloom.flower.preflight.app import fingerprint_findings, read_app, read_app_or_explain, version_findings
    from fedloom.flower.preflight.finding import Finding, has_error
    from fedloom.flower.preflight.sides import check_server, requirements

    if not insecure and not host:
        raise ConfigError("name the server with --host, as its nodes do, e.g. --host server.example.org")
    if config is not None and app is None:
        raise ConfigError(f"--config {config}: name the app that should have this config")
    app_config, findings = None if app is None else read_app_or_explain(app), list[Finding]()
    if isinstance(app_config, Finding):
        _finish([app_config], as_json)
        return
    if app is not None and app_config is not None:
        wanted = None if config is None else read_app(config).fingerprint()
        findings = fingerprint_findings(app, app_config, wanted, f"{config} is")
    findings += check_server(app_config, keys=None if insecure else keys, hosts=host or [], port=port, out=out)
    _finish(findings, as_json, None if has_error(version_findings()) else requirements(app_config))


@checks.command()
def node(
    superlink: Annotated[str, typer.Argument(help="The SuperLink's address, e.g. server.example.org:8000.")],
    root_certificates: Annotated[Path, typer.Option(help="The server's ca.crt.")] = Path("ca.crt"),
    key: Annotated[Path | None, typer.Option(help="The node's private key.")] = None,
    app: Annotated[Path | None, typer.Option(help="The exported app, or a config file, if the node has it.")] = None,
    client: Annotated[int, typer.Option(min=0, help="The node's partition-id.")] = 0,
    data: Annotated[Path | None, typer.Option(help="The file that names the node's data; needs --app.")] = None,
    state: Annotated[Path | None, typer.Option(help="The folder of private states; needs --app.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The SuperNode's own port on the loopback.")] = 9094,
    server_report: Annotated[
        Path | None, typer.Option(help="What `fedloom flower check server --json` printed, to compare with.")
    ] = None,
    insecure: Insecure = False,
    as_json: shared.AsJson = False,
) -> None:
    """Check a node before its SuperNode starts: the way to the server, its certificate, clocks, key, data and disk."""
    from fedloom.core.errors import ConfigError
    from fedloom.flower.preflight.sides import NodeFiles, check_node

    for option, path in (("--data", data), ("--state", state)):
        if path is not None and app is None:
            raise ConfigError(f"{option} {path}: the config says what is needed; name it with --app")
    if not insecure and key is None:
        raise ConfigError("name the node's private key with --key, e.g. --key node-000000; --insecure has none")
    authority = None if insecure else root_certificates
    _finish(
        check_node(superlink, NodeFiles(authority, key, app, client, data, state, server_report), port=port), as_json
    )


def _finish(findings: Sequence[Finding], as_json: bool, required: dict[str, str] | None = None) -> None:
    """Print findings, and exit with 1 if one is an error."""
    from fedloom.flower.preflight.finding import has_error

    failed = has_error(findings)
    if as_json:
        requires = {} if required is None else {"requires": required}
        shared.print_json({"ok": not failed, **requires, "findings": [finding.facts() for finding in findings]})
    else:
        console = console_of(as_json)
        texts = (f"{_SIGNS[finding.level]} {finding.subject}: {finding.text}" for finding in findings)
        shared.print_lines(console, *texts)
    if failed:
        raise typer.Exit(1)


group = typer.Typer(help="Run a config as a real federation over Flower.", no_args_is_help=True)
Clients = Annotated[int | None, typer.Option(min=1, help="Number of clients, as scenario.clients=... says it.")]


@group.command()
def export(
    config: shared.Config,
    folder: Annotated[Path, typer.Argument(help="The app's folder.")],
    overrides: shared.Overrides = None,
    clients: Clients = None,
) -> None:
    """Write a config as a Flower app: `flwr run FOLDER` runs it."""
    from fedloom.flower.apps import export as write

    for path in write(_parsed(config, overrides, clients), folder):
        shared.echo(path)


@group.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Where certificates and keys go.")],
    host: Annotated[list[str], typer.Option(help="Name or address of the server; may be given several times.")],
    clients: Annotated[int, typer.Option(min=0, help="Nodes to make keys for.")] = 0,
) -> None:
    """Make a certificate for the server and a key for each node."""
    from fedloom.flower.certificates import check, create

    create(folder, host, clients)
    check(folder, host[0], shared.say)
    for path in sorted(folder.iterdir()):
        shared.echo(path)


@group.command()
def rewind(
    run: Annotated[Path, typer.Argument(help="The run's folder on the server.")],
    from_round: Annotated[int, typer.Option(min=1, help="The round whose checkpoint the run goes on from.")],
) -> None:
    """Take a run back to an earlier checkpoint, e.g. to one from before a node spoiled it. The server must be stopped;
    it goes on from there when it starts again."""
    shared.echo(shared.rewind_run(run, from_round))


@group.command()
def up(
    config: shared.Config,
    overrides: shared.Overrides = None,
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
    from_round: shared.FromRound = None,
    quiet: shared.Quiet = False,
    as_json: shared.AsJson = False,
) -> None:
    """Run a federation of real processes on this machine, with TLS and node keys; the same command goes on with it."""
    from fedloom.cli.terminal import print_result

    parsed = _parsed(config, overrides, clients)
    if from_round is not None:
        shared.say(shared.rewind_run(out, from_round))
    if in_process:
        from fedloom.flower.in_process import run_in_process
        from fedloom.results.report import write_report
        from fedloom.results.report.drift import drift_sections
        from fedloom.runs.studies.live_progress import Forward, ProgressDisplay

        states = out.with_name(out.name + ".flower") / "states"
        with ProgressDisplay([parsed], quiet=quiet or as_json) as live:
            watching = [Forward(0, live)]
            result: RunData = run_in_process(
                parsed, out=out, states=states, data=data, callbacks=watching, progress=False
            )
        write_report([result], out / "report.html", parts=drift_sections([result]))
    else:
        from fedloom.flower.logs import as_json_line, log_sentence
        from fedloom.flower.up import up as run

        in_words = as_json_line if as_json else log_sentence

        def tell(line: str) -> None:
            if not quiet:
                shared.say(in_words(line))

        result = run(parsed, out, insecure=insecure, port=port, data=data, say=tell)
    if as_json:
        shared.print_json(result.numbers)
    else:
        print_result(console_of(as_json), result, brief=quiet)
        shared.echo(f"  report: {out / 'report.html'}")


group.add_typer(checks, name="check")
group.command()(status)
group.command()(metrics)
group.command()(admit)


def _parsed(config: Path, overrides: list[str] | None, clients: int | None) -> RunConfig:
    keys = [] if clients is None else [f"scenario.clients={clients}"]
    return shared.parse_config(config, [*(overrides or ()), *keys])
