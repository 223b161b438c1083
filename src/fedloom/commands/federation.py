"""How a federation is, for people and for machines: `fedloom flower status` and `metrics`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloom.commands.shared import AsJson, console_of, print_json, say

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
    """How a run over Flower is: nodes, round, waits, bytes, refused uploads, the last error. Needs no connection."""
    from fedloom.flower.certificates import ending
    from fedloom.flower.status import read_status
    from fedloom.flower.up import folder_of

    console = console_of(as_json)
    while True:
        now, certificates = read_status(run), ending(keys or folder_of(run) / "keys")
        if as_json:
            age = round(time.time() - now.written, 3)
            print_json(now.model_dump() | {"age_seconds": age, "certificates": certificates})
        else:
            if watch and console.is_terminal:
                console.clear()
            _page(console, now, certificates)
        if not watch or now.state != "running":
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


def _page(console: Console, now: Status, certificates: list[str]) -> None:
    from fedloom.flower.node_registry import listed
    from fedloom.report import bytes_text
    from fedloom.terminal import grid

    def line(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    line(f"{now.method}, run {now.run}: {now.state}, round {now.round} of {now.rounds}")
    line(f"  {_alive(now)}")
    if now.wait is not None:
        clients = listed(now.wait.clients)
        since, left = _seconds(now.written - now.wait.since), _seconds(now.wait.until - now.written)
        line(f"  waits for {now.wait.what} of clients {clients}: since {since}, at most {left} more")
    line(f"  payloads: up {bytes_text(now.bytes_up)}, down {bytes_text(now.bytes_down)}")
    line(f"  refused: {now.refused}; exceptions of clients: {now.failures}")
    if (error := now.last_error) is not None:
        line(f"  last error ({error.event}, {_clock(error.time)}): {error.text}")
    for text in certificates:
        line(f"  {text}")
    if now.nodes:
        rows = [
            (str(seat.client), "there" if seat.there else "away", str(seat.samples), str(seat.round or ""), seat.node)
            for seat in now.nodes
        ]
        grid(console, ("client", "node is", "samples", "last round", "node"), rows)
    for absence in now.absent:
        line(f"  node {absence.node} is left out: {absence.reason}")


def _alive(now: Status) -> str:
    from fedloom.flower.status import SILENT

    age = time.time() - now.written
    told = f"last written {_seconds(age)} ago, {_clock(now.written)}"
    if now.state == "running" and age > SILENT:
        told += ": the server is dead, or busy with a long step of its own"
    return told


def _seconds(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s"


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
