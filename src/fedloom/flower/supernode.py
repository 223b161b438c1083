"""A SuperNode under supervision, which is started again when it has ended or gone offline.

The SuperNode runs in this module (`python -m fedloom.flower.supernode PIPE OPTIONS`), which writes a byte to the file
descriptor PIPE for each heartbeat that the SuperLink has answered: nothing else shows that it is online. When they
stop, the supervisor tests the connection itself. While that fails it leaves the SuperNode alone, which reconnects by
itself and may hold a trained model. The SuperNode is replaced if the SuperLink answers the supervisor, but not it."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, BinaryIO

from fedloom.core.text import seconds_text
from fedloom.flower.processes import ENVIRONMENT, end

HOST = "127.0.0.1"
MODULE = [sys.executable, "-P", "-m"]
_HEARTBEAT = "/send-node-heartbeat"  # how the URL of a heartbeat ends, in Flower 1.41 and 1.42
_LONGEST_PAUSE = 60.0  # seconds before a SuperNode is started again
_MOST_STARTS = 10  # in a row, without an answered heartbeat
_PROBES = 2  # tests of the connection, a heartbeat apart, that prove the SuperNode to be the one that is offline


def supernode_options(
    superlink: str, client: int, port: int, *, authority: Path | None, key: Path | None, **files: Path | None
) -> list[str]:
    """Return the options of `flower-supernode` for the node of a `client`.
    port: its own one on the loopback. authority: the server's ca.crt; None leaves out TLS and keys. files: paths of the
    node's config, by key."""
    config = [f"partition-id={client}", *(f'{key}="{path.absolute()}"' for key, path in files.items() if path)]
    options = ["--superlink", superlink, "--host", HOST, "--port", str(port), "--node-config", " ".join(config)]
    if authority is None:
        return [*options, "--insecure"]
    return [*options, "--root-certificates", str(authority), "--auth-supernode-private-key", str(key)]


def supervise(
    options: Sequence[str],
    find_fault: Callable[[], str],
    say: Callable[[str], None],
    *,
    missed: int,
    interval: float,
    first_pause: float = 5.0,
    command: Sequence[str] = (*MODULE, __name__),
) -> str:
    """Keep a SuperNode online. Return why it cannot be: it never joined, or was started in vain too many times.
    options: of the SuperNode. find_fault: tests the connection, and returns what is wrong with it. missed: heartbeats
    without an answer after which the SuperNode counts as offline. interval: seconds between two of them. first_pause:
    seconds before the second start. command: starts the SuperNode, and is followed by PIPE and its options."""
    joined, failures = False, 0
    while True:
        with _started(command, options) as (process, pipe):
            has_beaten, has_ended, reason = _watch(process, pipe, find_fault, say, missed, interval)
        joined, failures = joined or has_beaten, 0 if has_beaten else failures + 1
        if failures == _MOST_STARTS or (has_ended and not joined):
            return f"{reason}; its output above may say why"
        pause = min(first_pause * 2**failures, _LONGEST_PAUSE)
        say(f"{reason}; it is started again in {pause:g} s")
        time.sleep(pause)


@contextlib.contextmanager
def _started(command: Sequence[str], options: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], BinaryIO]]:
    """Start a SuperNode, and end it with all its processes; yield it with the pipe of its heartbeats."""
    pipe, reported = os.pipe()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, **ENVIRONMENT, "PATH": path}  # Flower starts its own programs by name
    shown: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL, "pass_fds": [reported], "umask": 0o077}
    with os.fdopen(pipe, "rb", buffering=0) as stream:
        # In a new session, which Ctrl-C on the terminal does not reach.
        process = subprocess.Popen([*command, str(reported), *options], start_new_session=True, **shown)
        os.close(reported)
        try:
            yield process, stream
        finally:
            end([process])


def _watch(
    process: subprocess.Popen[bytes],
    pipe: BinaryIO,
    find_fault: Callable[[], str],
    say: Callable[[str], None],
    missed: int,
    interval: float,
) -> tuple[bool, bool, str]:
    """Wait until a SuperNode has ended or must be replaced. Return whether a heartbeat was answered, whether the
    process ended by itself, and the reason in words."""
    has_beaten, unanswered, probes = False, 0, 0
    while True:
        if select.select([pipe], [], [], interval)[0]:
            if not pipe.read(1 << 10):
                return has_beaten, True, f"the SuperNode ended with code {process.wait()}"
            if unanswered >= missed:
                say("the SuperNode is online again")
            has_beaten, unanswered, probes = True, 0, 0
            continue
        unanswered += 1
        if unanswered < missed:
            continue
        silence = f"no heartbeat of the SuperNode was answered for {seconds_text(unanswered * interval)}"
        fault = find_fault()
        probes = 0 if fault else probes + 1
        if probes == _PROBES:
            return has_beaten, False, f"{silence}, although the SuperLink answers"
        if fault and unanswered % missed == 0:
            say(f"{silence}: {fault}")


def change_requests(pipe: int) -> None:
    """From now on, report each answered heartbeat on `pipe`, end when nobody reads it any more, and let Flower repeat
    requests whose TLS connection broke: it gives up for good on any error whose text names TLS."""
    import httpx

    client: Any = httpx.Client
    send = client.send

    def send_and_report(self: Any, request: Any, **options: Any) -> Any:
        try:
            response = send(self, request, **options)
        except httpx.TransportError as error:
            if "certificate" in str(error).lower():  # a wrong one stays wrong
                raise
            raise type(error)("the connection broke", request=request) from error
        if request.url.path.endswith(_HEARTBEAT) and response.is_success:
            try:
                os.write(pipe, b".")
            except BrokenPipeError:  # the supervisor was killed
                os.kill(os.getpid(), signal.SIGTERM)
        return response

    client.send = send_and_report


if __name__ == "__main__":
    descriptor = int(sys.argv.pop(1))
    os.set_inheritable(descriptor, False)  # the pipe must close when this process ends, and not when its children do
    change_requests(descriptor)
    script, *_ = entry_points(group="console_scripts", name="flower-supernode")
    sys.argv[0] = script.name
    script.load()()
    # Flower returns only after it has given up for good, and one of its threads would keep this process running.
    os._exit(1)
