"""Bad network links on the loopback: slow, far, broken off, half open, and links that lose one HTTP message."""

import asyncio
import contextlib
import math
import ssl
import subprocess
import threading
import time
from pathlib import Path

from fedloom.flower.supernode import HOST, MODULE
from fedloom.flower.up import LocalFederation

_CHUNK = 1 << 14
_EMPTY = 100  # bytes of a reply to a poll that has no message, or fewer
_AHEAD = 0.25  # seconds of traffic that a link takes before the sender has to wait


class Listener:
    """Listens on `port`, and serves every connection in a thread of its own loop."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._wait(asyncio.start_server(self._accept, HOST, 0, ssl=context))
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self.reset()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def reset(self) -> None:
        """Break all connections off."""
        self._wait(self._break())

    def _wait(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _break(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close their sockets in the next turn of the loop

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


class Link(Listener):
    """A link to another port.
    rate: bytes per second in each direction. latency: seconds from one end to the other. silent: directions ("up",
    "down") in which nothing arrives any more: connections stay open, also those that are made meanwhile, and one that
    has lost something stays dead. carried: bytes that arrived in each direction."""

    def __init__(self, to: int, *, rate: float = math.inf, latency: float = 0.0) -> None:
        self._to, self._rate, self._latency = to, rate, latency
        self._free_at = {"up": 0.0, "down": 0.0}  # when the last byte that was sent has left
        self.carried = {"up": 0, "down": 0}
        self.silent: set[str] = set()
        super().__init__()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, self._to)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump("up", reader, far_writer))
                group.create_task(self._pump("down", far_reader, writer))
        except* OSError:
            pass
        finally:
            far_writer.transport.abort()

    async def _pump(self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry what one end sends to the other one, until it closes its side."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivery = asyncio.create_task(self._deliver(direction, under_way, writer))
        try:
            while data := await reader.read(_CHUNK):
                now = time.monotonic()
                leaves = max(now, self._free_at[direction]) + len(data) / self._rate
                self._free_at[direction] = leaves
                under_way.put_nowait((leaves + self._latency, data))
                await asyncio.sleep(max(0.0, leaves - now - _AHEAD))
            under_way.put_nowait((time.monotonic() + self._latency, b""))
            await delivery
        finally:
            delivery.cancel()

    async def _deliver(self, direction: str, under_way: asyncio.Queue, writer: asyncio.StreamWriter) -> None:
        is_dead = False
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            is_dead = is_dead or direction in self.silent
            if is_dead:
                continue
            if not data:
                writer.write_eof()
                return
            self.carried[direction] += len(data)
            writer.write(data)
            await writer.drain()


class Losses(Listener):
    """Carries HTTP with TLS to a SuperLink, and loses single messages.
    keys: the folder of `fedloom flower keys`. lose: by the last part of a request's path, what is lost next: the
    "request", the "reply" to it, or the first reply with a "message", as most polls have none; the connection then
    breaks off. lost: the kinds that have been lost so far."""

    def __init__(self, to: int, keys: Path) -> None:
        self._to, self.lose, self.lost = to, dict[str, str](), list[str]()
        near = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        near.load_cert_chain(keys / "server.crt", keys / "server.key")
        self._far = ssl.create_default_context(cafile=keys / "ca.crt")
        super().__init__(near)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, self._to, ssl=self._far, server_hostname=HOST)
        try:
            while request := await _message(reader):
                kind = request.split(b" ", 2)[1].decode().rpartition("/")[2]
                if self.lose.get(kind) == "request":
                    self.lost.append(kind)
                    del self.lose[kind]
                    return
                far_writer.write(request)
                reply = await _message(far_reader, has_body=not request.startswith(b"HEAD "))
                has_message = len(reply.partition(b"\r\n\r\n")[2]) > _EMPTY
                if self.lose.get(kind) == "reply" or (self.lose.get(kind) == "message" and has_message):
                    self.lost.append(kind)
                    del self.lose[kind]
                    return
                writer.write(reply)
                await writer.drain()
        finally:
            far_writer.transport.abort()


async def _message(reader: asyncio.StreamReader, has_body: bool = True) -> bytes:
    """Return the next HTTP message with its body, or b"" at the end. Raises `EOFError` in the middle of one."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as problem:
        if problem.partial:
            raise
        return b""
    if not has_body:
        return head
    headers = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if line)
    return head + await reader.readexactly(int(headers.get(b"content-length", b"0")))


class OverBadLinks(LocalFederation):
    """A federation whose nodes run under `fedloom flower node`, each behind a link and a loser of messages of its own.
    rate, latency: of each link, as in `Link`."""

    rate, latency = math.inf, 0.0
    links: list[Link]
    losses: list[Losses]

    def _start_superlink(self) -> None:
        super()._start_superlink()
        self.losses = [Losses(self.port, self.folder / "keys") for _ in range(self.clients)]
        self.links = [Link(losses.port, rate=self.rate, latency=self.latency) for losses in self.losses]

    def start_node(self, client: int, key: Path | None = None, name: str | None = None) -> subprocess.Popen[bytes]:
        """Start the supervised node of a `client`."""
        keys, node = self.folder / "keys", f"node-{client:06d}"
        files = ["--root-certificates", keys / "ca.crt", "--key", key or keys / node]
        files += ["--state", self.folder / "states" / node]
        address = [f"{HOST}:{self.links[client].port}", "--port", self._node_ports[client], "--client", client]
        words = [str(word) for word in (*MODULE, "fedloom", "flower", "node", *address, *files)]
        return self.processes.start(name or node, words)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for listener in (*self.links, *self.losses):
            listener.close()
