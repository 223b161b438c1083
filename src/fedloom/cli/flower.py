"""Commands for real federations over Flower: `fedloom flower ...`."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.cli import shared
from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError

if TYPE_CHECKING:
    from fedloom.flower.findings import Finding
    from fedloom.flower.status import Failure, Status
    from fedloom.runs.config.run_config import RunConfig
    from fedloom.runs.storage.run_data import RunData


group = typer.Typer(help="Run a config as a real federation over Flower.", no_args_is_help=True)
checks = typer.Typer(help="Check a server or a node before it starts; exit code 1 if something would fail.")
group.add_typer(checks, name="check")

Run = Annotated[Path, typer.Argument(help="The run's folder on the server.")]
Clients = Annotated[int | None, typer.Option(min=1, help="Number of clients; short for scenario.clients=...")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Use neither TLS nor node keys.")]
_WATCH_SECONDS = 2.0
_ROUNDS = 5  # the last ones, in the output of `status`


def status(run: Run, watch: bool = False, keys: Path | None = None, as_json: shared.AsJson = False) -> None:
    """Show the state of a run over Flower: nodes, round, waits, bytes, refused uploads, last error. Works offline."""
    from fedloom.flower.status import Failure, read_status
    from fedloom.flower.up import expiring_certificates, folder_of

    console = console_of(False)
    while True:
        snapshot, failure = read_status(run), Failure.read(run)
        certificates = expiring_certificates(keys or folder_of(run) / "keys")
        if as_json:
            age = round(time.time() - snapshot.written, 3)
            facts = {"age_seconds": age, "certificates": certificates, "failure": failure and failure.model_dump()}
            shared.print_json(snapshot.model_dump() | facts)
        else:
            if watch and console.is_terminal:
                console.clear()
            _print_status(snapshot, certificates, failure)
        if not watch or snapshot.state != "running":
            return
        time.sleep(_WATCH_SECONDS)


Port = Annotated[int, typer.Option(min=1, max=65535, help="The port.")]


def watch(run: Run, port: Port = 8400) -> None:
    """Serve a page about a run on a local port of the server, until Ctrl-C."""
    _serve(run, port, "127.0.0.1", "")


def metrics(run: Run, port: Port = 9105, host: str = "127.0.0.1") -> None:
    """Serve the state of a run to Prometheus on a local port, until Ctrl-C."""
    _serve(run, port, host, "metrics")


def _serve(run: Path, port: int, host: str, page: str) -> None:
    from fedloom.flower.status import Failure, read_status
    from fedloom.flower.watch import served

    with served(lambda: (read_status(run), Failure.read(run)), port, host):
        shared.say(f"http://{host}:{port}/{page}; stop with Ctrl-C")
        # Another thread answers requests; this one only waits for Ctrl-C.
        while True:
            time.sleep(3600)


def admit(run: Run, client: int, key: str | None = None) -> None:
    """Let a node with another key or another disk join as a client, also during a run."""
    from fedloom.flower.bindings import admit as admit_client

    admit_client(run, client, key)
    node_text = f"the node with the key {key}" if key else "the next node that joins as this client"
    shared.say(f"client {client} of {run}: bound to {node_text}, from any disk")


def _print_status(snapshot: "Status", certificates: list[str], failure: "Failure | None") -> None:
    from fedloom.cli.terminal import print_grid
    from fedloom.flower.watch import client_table, round_table, status_lines

    head = f"{snapshot.method}, run {snapshot.run}: {snapshot.state}, round {snapshot.round} of {snapshot.rounds}"
    shared.print_lines(head, *(f"  {line}" for line in [*status_lines(snapshot, failure), *certificates]))
    for columns, rows in (round_table(snapshot, _ROUNDS), client_table(snapshot)):
        if rows:
            print_grid(console_of(False), columns, rows)


def server(
    app: Path | None = None,
    host: list[str] | None = None,
    keys: Path = Path("keys"),
    port: int = 8000,
    out: Path = Path("runs/flower"),
    config: Path | None = None,
    insecure: Insecure = False,
    as_json: shared.AsJson = False,
) -> None:
    """Check versions, certificates, keys, port, disk and config of a server before its SuperLink starts."""
    from fedloom.flower import preflight
    from fedloom.flower.findings import Finding

    if not insecure and not host:
        raise ConfigError("name the server with --host, as its nodes do, e.g. --host server.example.org")
    if config is not None and app is None:
        raise ConfigError(f"--config {config}: name the app that should contain this config")
    app_config, findings = None, list[Finding]()
    if app is not None:
        expected = None if config is None else preflight.read_app(config).fingerprint()
        app_config, finding = preflight.check_app(app, expected, f"{config} is")
        findings.append(finding)
    if app is None or app_config is not None:
        folder = None if insecure else keys
        findings += preflight.check_server(app_config, keys=folder, hosts=host or [], port=port, out=out)
    _print_findings(findings, as_json, preflight.requirements(app_config))


def check_node(
    superlink: str,
    root_certificates: Path = Path("ca.crt"),
    key: Path | None = None,
    app: Path | None = None,
    client: int = 0,
    data: Path | None = None,
    state: Path | None = None,
    port: int = 9094,
    server_report: Path | None = None,
    insecure: Insecure = False,
    as_json: shared.AsJson = False,
) -> None:
    """Check a node before its SuperNode starts: the connection, certificate, clocks, key, data and disk."""
    from fedloom.flower import preflight

    for option, path in (("--data", data), ("--state", state)):
        if path is not None and app is None:
            raise ConfigError(f"{option} {path}: this check needs the config; name it with --app")
    _require_key(key, insecure)
    authority = None if insecure else root_certificates
    files: dict[str, Path | None] = {"authority": authority, "key": key, "app": app, "data": data, "state": state}
    findings = preflight.check_node(superlink, client=client, port=port, server_report=server_report, **files)
    _print_findings(findings, as_json)


def node(
    superlink: str,
    client: int,
    root_certificates: Path = Path("ca.crt"),
    key: Path | None = None,
    app: Path | None = None,
    data: Path | None = None,
    state: Path | None = None,
    port: int = 9094,
    server_report: Path | None = None,
    insecure: Insecure = False,
    missed: int = 4,
    heartbeat: Annotated[float, typer.Option(min=0.1, help="Seconds between heartbeats; Flower's are 30.")] = 30.0,
) -> None:
    """Check a node, then run its SuperNode until Ctrl-C; start it again whenever it ends or stays offline.

    Exit codes: 1 if the check fails or the SuperNode never joins, 2 for a wrong option, 130 after Ctrl-C and 143 after
    SIGTERM.
    """
    import subprocess

    from fedloom.flower import processes, supernode

    _require_key(key, insecure)
    trust = ["--insecure"] if insecure else [f"--root-certificates={root_certificates}", f"--key={key}"]
    # A process of its own, because the check needs much more memory than this one, which stays.
    check = [*supernode.MODULE, "fedloom", "flower", "check", "node", superlink, *trust]
    files = {"app": app, "data": app and data, "state": app and state, "server-report": server_report}
    words = [f"--{name}={path}" for name, path in files.items() if path is not None]
    if code := subprocess.run([*check, f"--client={client}", f"--port={port}", *words], check=False).returncode:
        raise typer.Exit(code)

    def find_fault() -> str:
        (free,) = processes.free_ports(1)
        done = subprocess.run([*check, f"--port={free}"], capture_output=True, text=True, check=False)
        errors = [line for line in done.stdout.splitlines() if line.startswith("error")]
        return " ".join(" ".join(errors or [done.stderr]).split()) if done.returncode else ""

    authority = None if insecure else root_certificates
    options = supernode.supernode_options(superlink, client, port, authority=authority, key=key, state=state, data=data)
    shared.say(supernode.supervise(options, find_fault, shared.say, missed=missed, interval=heartbeat))
    raise typer.Exit(1)


def _require_key(key: Path | None, insecure: bool) -> None:
    if not insecure and key is None:
        raise ConfigError("name the node's private key with --key, e.g. --key node-000000, or add --insecure")


def _print_findings(findings: "Sequence[Finding]", as_json: bool, required: dict[str, str] | None = None) -> None:
    failed = any(finding.level == "error" for finding in findings)
    if as_json:
        requires = {} if required is None else {"requires": required}
        shared.print_json({"ok": not failed, **requires, "findings": [asdict(finding) for finding in findings]})
    else:
        shared.print_lines(*(f"{finding.level:7} {finding.subject}: {finding.text}" for finding in findings))
    if failed:
        raise typer.Exit(1)


def export(
    config: shared.Config,
    folder: Annotated[Path, typer.Argument(help="The app's folder.")],
    overrides: shared.Overrides = None,
    clients: Clients = None,
) -> None:
    """Export a config as a Flower app, which `flwr run FOLDER` runs."""
    from fedloom.flower.apps import export as write

    shared.print_lines(*map(str, write(_parsed(config, overrides, clients), folder)))


def keys(
    folder: Annotated[Path, typer.Argument(help="The folder for certificates and keys.")],
    host: list[str],
    clients: int = 0,
) -> None:
    """Create a certificate for the server, and a key for each node."""
    from fedloom.flower.certificates import create, server_certificate_findings
    from fedloom.flower.findings import refuse_errors

    create(folder, host, clients)
    refuse_errors(server_certificate_findings(folder, host[:1]), shared.say)
    shared.print_lines(*map(str, sorted(folder.iterdir())))


def rewind(run: Run, from_round: int) -> None:
    """Take a stopped run back to an earlier checkpoint, e.g. from before a node spoiled it; the next start continues
    from there."""
    shared.print_lines(shared.rewind_run(run, from_round))


def up(
    config: shared.Config,
    overrides: shared.Overrides = None,
    clients: Clients = None,
    out: Path = Path("runs/federation"),
    insecure: Insecure = False,
    port: int | None = None,
    data: Path | None = None,
    in_process: bool = False,
    from_round: shared.FromRound = None,
    quiet: shared.Quiet = False,
    as_json: shared.AsJson = False,
) -> None:
    """Run a federation of real processes on this machine, with TLS and node keys; repeat the command to continue."""
    from fedloom.cli.terminal import print_result

    parsed = _parsed(config, overrides, clients)
    if from_round is not None:
        shared.say(shared.rewind_run(out, from_round))
    if in_process:
        from fedloom.flower.in_process import run_in_process
        from fedloom.results.report import write_report
        from fedloom.runs.studies.live_progress import Forward, ProgressDisplay

        states = out.with_name(out.name + ".flower") / "states"
        with ProgressDisplay([parsed], quiet=quiet or as_json) as live:
            options: dict[str, Any] = {"callbacks": [Forward(0, live)], "progress": False}
            result: RunData = run_in_process(parsed, out=out, states=states, data=data, **options)
        write_report([result], out / "report.html")
    else:
        from fedloom.flower.logs import as_json_line, log_sentence
        from fedloom.flower.up import up as run

        def show(line: str) -> None:
            if not quiet:
                shared.say(as_json_line(line) if as_json else log_sentence(line))

        result = run(parsed, out, insecure=insecure, port=port, data=data, say=show)
    if as_json:
        shared.print_json(result.numbers)
    else:
        print_result(console_of(as_json), result, brief=quiet)
        shared.print_lines(f"  report: {out / 'report.html'}")


def _parsed(config: Path, overrides: list[str] | None, clients: int | None) -> "RunConfig":
    keys = [] if clients is None else [f"scenario.clients={clients}"]
    return shared.parse_config(config, [*(overrides or ()), *keys])


for command in (status, watch, metrics, admit, node, export, keys, rewind, up):
    group.command()(shared.described(command, f"flower {command.__name__}"))
checks.command("server")(shared.described(server, "flower check server"))
checks.command("node")(shared.described(check_node, "flower node"))
