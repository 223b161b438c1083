"""The status of a federation, for people and for Prometheus: `fedloom flower status` and `metrics`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloom.cli.shared import AsJson, print_json, say
from fedloom.core.console import console_of

if TYPE_CHECKING:
    from rich.console import Console

    from fedloom.flower.status import Status

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
    as_json: AsJson = False,
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
            print_json(snapshot.model_dump() | {"age_seconds": age, "certificates": certificates})
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
    from fedloom.flower.prometheus import serve_metrics

    end = serve_metrics(run, port, host)
    say(f"http://{host}:{port}/metrics; Ctrl-C ends it")
    try:
        while True:
            time.sleep(3600)
    finally:
        end()


def admit(
    run: Run,
    client: Annotated[int, typer.Option(min=0, help="The client whose key or disk has changed.")],
    key: Annotated[
        str | None,
        typer.Option(help="The only key that may take its seat: SHA256:..., or the file of the public key."),
    ] = None,
) -> None:
    """Let another key or another disk take a client's seat, also while the run goes on."""
    from fedloom.flower.bindings import admit as admit_client

    admit_client(run, client, key)
    whom = f"the node with the key {key}" if key else "the next node that joins as this client"
    say(f"client {client} of {run}: bound to {whom}, from any disk")


def _page(console: Console, snapshot: Status, certificates: list[str]) -> None:
    from fedloom.cli.terminal import print_grid
    from fedloom.flower.node_registry import client_list
    from fedloom.results.report import bytes_text

    def line(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    line(f"{snapshot.method}, run {snapshot.run}: {snapshot.state}, round {snapshot.round} of {snapshot.rounds}")
    line(f"  {_alive(snapshot)}")
    if snapshot.wait is not None:
        clients = client_list(snapshot.wait.clients)
        since, limit = (
            _seconds(snapshot.written - snapshot.wait.since),
            _seconds(snapshot.wait.until - snapshot.written),
        )
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


def _alive(snapshot: Status) -> str:
    from fedloom.flower.status import SILENT

    age = time.time() - snapshot.written
    text = f"last written {_seconds(age)} ago, {_clock(snapshot.written)}"
    if snapshot.state == "running" and age > SILENT:
        text += ": the server is dead, or busy with a long step of its own"
    return text


def _seconds(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s"


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
