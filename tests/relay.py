"""A relay on the loopback that counts the bytes which pass through it: what a socket really carries."""

import contextlib
import socket
import threading


class Relay:
    """Listens on `port`, and hands every connection on to another port. up, down: bytes to it, and from it."""

    def __init__(self, to: int) -> None:
        self._to, self._counted = to, {"up": 0, "down": 0}
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def up(self) -> int:
        return self._counted["up"]

    @property
    def down(self) -> int:
        return self._counted["down"]

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._server.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as far:
            back = threading.Thread(target=self._pump, args=("down", far, near), daemon=True)
            back.start()
            self._pump("up", near, far)
            back.join()

    def _pump(self, which: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    self._counted[which] += len(data)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
