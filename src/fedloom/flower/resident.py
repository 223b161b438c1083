"""A node's app, and its resident process. Flower starts a process for every message; to load torch, read the data and
build a net in each would take longer than many a round. So that process only hands the message to the resident one,
which it starts if there is none, and which ends with the SuperNode, or after a time without messages."""

import contextlib
import functools
import hashlib
import json
import os
import select
import socket
import stat
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, FedloomError, printable
from fedloom.core.files import private_umask, read_yaml, user_folder
from fedloom.flower.message import Message, from_content, require_flower, to_content

if TYPE_CHECKING:
    from fedloom.flower.inbox import Inbox

_TICK = 2.0  # seconds between two looks at whether there is still a reason to live
_LONGEST_BASE = 40  # characters, because the path of a socket has at most 107
_LENGTHS = struct.Struct(">QQ")  # of a message's facts and body


class _Node(NamedTuple):
    """folder: of its states. data: the file that names its data, or empty."""

    config: Path
    client: int
    folder: Path
    data: str


def client_app(config: Path) -> Any:
    """Return a `ClientApp` for the config file `config`. Keys of the node's Flower config: `partition-id`, its client;
    `state`, the folder of private states; `data`, the file that names its data."""
    require_flower()
    from flwr.app import Message as FlowerMessage
    from flwr.clientapp import ClientApp

    def answer(message: Any, context: Any) -> Any:
        reply = _reply_to(message, config, context.node_config)
        return FlowerMessage(to_content(reply), reply_to=message)

    app = ClientApp()
    for kind in (app.query, app.train, app.evaluate):
        kind()(answer)
    return app


def _reply_to(message: Any, config: Path, node_config: Mapping[str, Any]) -> Message:
    client, state, data = (node_config.get(key) for key in ("partition-id", "state", "data"))
    lost = False
    try:
        if not isinstance(client, int):
            raise ConfigError("this node has no partition-id; start it with --node-config 'partition-id=0'")
        folder = Path(str(state)) if state else user_folder("state", "FEDLOOM_STATE")
        node, request = _Node(config, client, folder, str(data or "")), from_content(message.content)
        if (parent := _parent()) is None:
            with private_umask():
                return _answer(_inbox(node), request)
        with contextlib.suppress(OSError), _connection(node, parent) as connection:
            _send(connection, request)
            if (reply := _receive(connection)) is not None:
                return reply
        lost = True
        why = "its resident process ended while it worked, as when it is killed or the memory is full"
        raise FedloomError(f"client {client}: {why}; the next message starts another one")
    except FedloomError as error:
        return _failure(client, error, lost)


def _failure(client: Any, error: FedloomError, lost: bool = False) -> Message:
    from fedloom.flower.wire import ErrorReply

    print(printable(str(error)), file=sys.stderr, flush=True)
    number = client if isinstance(client, int) else -1
    return ErrorReply(run="", client=number, error=str(error), lost=lost).to_message()


@functools.lru_cache(maxsize=64)
def _inbox(node: _Node, resident: bool = False) -> "Inbox":
    """Return a node's inbox, built once per process, because Ray sends the app to its actors, but not the node."""
    from fedloom.flower.inbox import Inbox
    from fedloom.flower.logs import to_stdout
    from fedloom.flower.node import Node
    from fedloom.runs.config.run_config import load, parse

    to_stdout()
    data = Path(node.data) if node.data else None
    return Inbox(Node(parse(load(node.config)), node.client, node.folder, data=data), node.folder, resident)


def _answer(inbox: "Inbox", request: Message) -> Message:
    """Answer a request, and print why that fails."""
    from fedloom.flower.wire import ErrorReply, MessageError, read

    reply = inbox.answer(request)
    with contextlib.suppress(MessageError):
        print(printable(read(reply, ErrorReply).error), file=sys.stderr, flush=True)
    return reply


# -- the process of one message ----------------------------------------------------------------------------------------
def _parent() -> int | None:
    """Return a descriptor of the process whose end is the node's; None in a simulation or a test, and without Linux."""
    if not Path(sys.argv[0]).name.startswith("flwr-clientapp") or not hasattr(os, "pidfd_open"):
        return None
    with contextlib.suppress(OSError):  # not every kernel has it
        return os.pidfd_open(os.getppid())
    return None


def _connection(node: _Node, parent: int) -> socket.socket:
    path = _socket_file(node)
    for _ in range(2):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
            return connection
        except OSError:  # nothing listens there
            connection.close()
            _start(node, path, parent)
    raise FedloomError(f"client {node.client}: its resident process does not listen at {path}")


def _socket_file(node: _Node) -> Path:
    """Return the socket of a node's process. One of another config, version or data has another socket."""
    base = tempfile.gettempdir()
    folder = Path(base if len(base) <= _LONGEST_BASE else "/tmp") / f"fedloom-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(f"{folder}: it must be a folder that only this user can enter (0700); remove it")
    files = [node.config, *([] if not node.data else _data_files(Path(node.data)))]
    stamps = [[str(file), status.st_mtime_ns, status.st_size] for file in files for status in [file.stat()]]
    seat = [node.client, str(node.folder.absolute()), sys.prefix]
    digests = (hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16] for facts in (seat, [__version__, stamps]))
    return folder / "-".join(digests)


def _data_files(file: Path) -> Iterator[Path]:
    """Yield the file of a node's data, and the files that it names."""
    if file.is_file():
        yield file
        with contextlib.suppress(FedloomError, OSError, ValueError):  # the resident process says what is wrong with it
            pending = [read_yaml(file)]
            while pending:
                value = pending.pop()
                if isinstance(value, dict | list):
                    pending += value.values() if isinstance(value, dict) else value
                elif isinstance(value, str) and value and (named := file.parent / value).exists():
                    yield named


def _start(node: _Node, path: Path, parent: int) -> None:
    """Start the resident process, which inherits a socket that listens already."""
    with socket.socket(socket.AF_UNIX) as listener:
        new = path.with_suffix(f".{os.getpid()}")
        listener.bind(str(new))
        listener.listen()
        new.replace(path)
        for descriptor in (listener.fileno(), parent):
            os.set_inheritable(descriptor, True)
        command = [sys.executable, "-m", "fedloom.flower.resident", str(path), *map(str, (listener.fileno(), parent))]
        os.posix_spawn(sys.executable, [*command, *map(str, node)], os.environ, setsid=True)


# -- the resident process ----------------------------------------------------------------------------------------------
def main(arguments: list[str]) -> None:
    """Answer messages at the socket of a node until its parent ends. arguments: as `_start` gives them."""
    path, listener, parent = Path(arguments[0]), socket.socket(fileno=int(arguments[1])), int(arguments[2])
    node = _Node(Path(arguments[3]), int(arguments[4]), Path(arguments[5]), arguments[6])
    os.umask(0o077)
    for other in path.parent.glob(f"{path.name.partition('-')[0]}-*"):
        if other != path:
            other.unlink(missing_ok=True)  # its process ends when it has nothing to do
    try:
        inbox = _inbox(node, resident=True)
    except FedloomError as error:
        path.unlink(missing_ok=True)
        with listener.accept()[0] as connection:
            if _receive(connection) is not None:
                _send(connection, _failure(node.client, error))
        return
    threading.Thread(target=_listen, args=(path, listener, parent, inbox), daemon=True).start()
    inbox.work()


def _listen(path: Path, listener: socket.socket, parent: int, inbox: "Inbox") -> None:
    while True:
        ready, _, _ = select.select([listener.fileno(), parent], [], [], _TICK)
        if listener.fileno() in ready:
            threading.Thread(target=_converse, args=(listener.accept()[0], inbox), daemon=True).start()
        elif parent in ready or inbox.is_idle(inbox.idle_seconds if path.exists() else 0.0):
            if parent not in ready:  # a SuperNode that was killed starts again, and goes on with the parts
                inbox.close()
            path.unlink(missing_ok=True)
            os._exit(0)  # also out of a training in the main thread


def _converse(connection: socket.socket, inbox: "Inbox") -> None:
    with connection, contextlib.suppress(OSError):
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user == os.getuid() and (request := _receive(connection)) is not None:
            _send(connection, _answer(inbox, request))


def _send(connection: socket.socket, message: Message) -> None:
    facts = message.facts.encode(errors="replace")
    connection.sendall(_LENGTHS.pack(len(facts), len(message.body)) + facts)
    if message.body:  # else the other process may have answered already and closed its end
        connection.sendall(message.body)


def _receive(connection: socket.socket) -> Message | None:
    """Return the next message; None if the other process has ended."""
    with connection.makefile("rb") as stream, contextlib.suppress(ConnectionError):
        header = stream.read(_LENGTHS.size)
        if len(header) == _LENGTHS.size:
            lengths = _LENGTHS.unpack(header)
            facts, body = (stream.read(length) for length in lengths)
            return Message(facts.decode(), body) if (len(facts), len(body)) == lengths else None
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
