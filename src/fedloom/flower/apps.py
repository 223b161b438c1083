"""Flower's two apps, from a config: what an exported app's modules call, and nothing more."""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from pathlib import Path
from typing import Any

from fedloom.config.run_config import load, parse
from fedloom.core.errors import ClientError, ConfigError, FedloomError, printable
from fedloom.core.files import json_text, private_umask, write_atomic
from fedloom.flower.grid import GridTransport, from_content, require_flower, to_content
from fedloom.flower.logs import to_stdout
from fedloom.flower.node import Node
from fedloom.flower.server import serve
from fedloom.flower.store import state_dir
from fedloom.flower.wire import ErrorReply, Message, MessageError, read
from fedloom.report import write_report

FAILED = "flower-failed.json"


def client_app(config: Path) -> Any:
    """A `ClientApp` that trains and tests as the file `config` says.

    The node's own config names its client, `partition-id`, and may name the folder of its private states, `state`, and
    the file that names its own data, `data`.
    """
    require_flower()
    from flwr.app import Message as FlowerMessage
    from flwr.clientapp import ClientApp

    def answer(message: Any, context: Any) -> Any:
        to_stdout()  # here: Ray sends the app to other processes
        with private_umask():
            letter = _answered(message, context)
        with contextlib.suppress(MessageError):
            print(printable(read(letter, ErrorReply).error), file=sys.stderr, flush=True)
        return FlowerMessage(to_content(letter), reply_to=message)

    def _answered(message: Any, context: Any) -> Message:
        client = -1
        try:
            client, state, data = (context.node_config.get(key) for key in ("partition-id", "state", "data"))
            if not isinstance(client, int):
                raise ConfigError("this node has no partition-id; start it with --node-config 'partition-id=0'")
            folder = Path(str(state)) if state else state_dir()
            there = _node(config, client, folder, Path(str(data)) if data else None)
            return there.answer(from_content(message.content))
        except (FedloomError, MessageError) as error:
            named = client if isinstance(client, int) else -1
            return ErrorReply(run="", client=named, error=str(error)).to_message()

    app = ClientApp()
    for kind in (app.query, app.train, app.evaluate):
        kind()(answer)
    return app


@functools.lru_cache(maxsize=64)
def _node(config: Path, client: int, folder: Path, data: Path | None) -> Node:
    """A client's node, once in a process: Ray sends the app to its actors, but not this."""
    return Node(parse(load(config)), client, folder, data=data)


def server_app(config: Path) -> Any:
    """A `ServerApp` that runs the file `config`; the run's folder is the app's key `out`, and the file that names the
    server's own test data its key `test`.

    The app's key `keys` names a folder with the public keys of clients, or is "none" where the SuperLink checks no
    keys. A report is written into the run's folder at its end. What ends the run earlier is kept there, too: Flower's
    own commands do not say it.
    """
    require_flower()
    to_stdout()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    def main(grid: Any, context: Any) -> None:
        out = Path(str(context.run_config.get("out") or "runs/flower"))
        test, keys = context.run_config.get("test"), str(context.run_config.get("keys", ""))
        (out / FAILED).unlink(missing_ok=True)
        try:
            tests = Path(str(test)) if test else None
            link, folder = GridTransport(grid, keys=keys != "none"), None if keys in ("", "none") else Path(keys)
            with private_umask():
                result = serve(parse(load(config)), link, tests=tests, out=out, keys=folder)
                write_report([result], out / "report.html")
        except Exception as error:
            write_atomic(out / FAILED, json_text(_ended(error)), private=True)
            raise

    app.main()(main)
    return app


def _ended(error: Exception) -> dict[str, Any]:
    """What ended a run: a traceback where it is not something that a person can correct."""
    cause = error.__cause__ if isinstance(error, ClientError) else error
    plain = isinstance(error, FedloomError) and not isinstance(error, ClientError)
    told = "" if plain else "".join(traceback.format_exception(cause))
    code = error.exit_code if isinstance(error, FedloomError) else 1
    return {"error": str(error), "traceback": told, "exit_code": code}
