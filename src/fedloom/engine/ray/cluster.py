"""Connect to an existing Ray cluster, call functions on it and store values in it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, FedloomError

ATTEMPTS = 3  # runs of a task whose node or process is lost
_REACHED = 5.0  # seconds until the head of a cluster must answer
Ref: TypeAlias = Any  # Ray's reference to a value that is in the cluster, or is being computed there
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lost:
    """The error in place of a result that Ray gave up: a reason of one line, and Ray's own message."""

    why: str
    detail: str


class Cluster:
    """Tasks and stored values of a cluster. A task takes one core; Ray pickles its arguments."""

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._called = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_of_this_version)

    def put(self, value: Any) -> Ref:
        """Put a value into the object store, and return its reference. Each node that uses it receives it once."""
        return self._ray.put(value)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Ref:
        """Start `function(*arguments)` on some node and return its result's reference. References arrive as values."""
        return self._called.remote(__version__, function, *arguments)

    def cores(self) -> int:
        """Cores of all nodes of the cluster at this moment."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def ended(
        self,
        calls: Iterable[tuple[T, Ref]],
        limit: int | None = None,
        *,
        patience: float | None = None,
        late: Callable[[list[T]], None] = lambda waiting: None,
    ) -> Iterator[tuple[T, Any]]:
        """Yield each call's label and result as calls end; the result is a `Lost` if Ray gave up the call.

        Args:
            calls: label and reference of each call, which starts when it is read.
            limit: calls that run at a time; None for no limit.
            patience: seconds until calls count as late; None for ever.
            late: called with the labels of running calls whenever none has ended for `patience` seconds.

        Raises the `FedloomError` that a call raised.
        """
        out: dict[Ref, T] = {}
        try:
            for beside, ref in calls:
                out[ref] = beside
                if len(out) == limit:
                    yield self._first(out, patience, late)
            while out:
                yield self._first(out, patience, late)
        finally:
            for ref in out:
                self._ray.cancel(ref)

    def _first(self, out: dict[Ref, T], patience: float | None, late: Callable[[list[T]], None]) -> tuple[T, Any]:
        while not (ready := self._ray.wait(list(out), timeout=patience)[0]):
            late(list(out.values()))
        return out.pop(ready[0]), self._result(ready[0])

    def _result(self, ref: Ref) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref)
        except errors.RayTaskError as error:
            if isinstance(error.cause, FedloomError):
                raise error.cause from None
            return Lost(f"{type(error.cause).__name__}: {' '.join(str(error.cause).split())}", str(error))
        except errors.RayError as error:
            return Lost(f"Ray has lost it {ATTEMPTS} times ({type(error).__name__}); out of memory?", str(error))


@contextlib.contextmanager
def connected(asks: str) -> Iterator[Cluster]:
    """Give the Ray cluster, connecting this process to it until the context ends if it is not connected yet.

    Args:
        asks: the setting that needs Ray, for messages.

    Raises `ConfigError` if Ray is not installed or no cluster is found.
    """
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # keeps Ray's messages about lost workers out of stdout
    try:
        import ray
    except ImportError:
        raise ConfigError(f"{asks}: Ray is not installed; pip install 'fedloom[ray]'") from None
    if ray.is_initialized():
        yield Cluster(ray)
        return
    _refuse_silence(asks)
    try:
        ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        why = f"Ray: {' '.join(str(error).split())[:300]}"
        raise ConfigError(f"{asks}: no Ray cluster is there; start one with `ray start --head` ({why})") from None
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()


def _refuse_silence(asks: str) -> None:
    """Raise `ConfigError` if the head does not answer. Ray itself would wait for minutes and then end the process."""
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACHED).close()
    except (OSError, OverflowError):
        raise ConfigError(
            f"{asks}: no cluster answers at RAY_ADDRESS = {address}; set it to the head of a cluster (`ray start "
            "--head` shows it), or unset it"
        ) from None


def _of_this_version(version: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """In a Ray worker, call a function if this node has the caller's versions of fedloom and torch."""
    if version != __version__:
        raise ConfigError(
            f"node {socket.gethostname()} has fedloom {__version__}, and this one {version}; install the same version"
        )
    return function(*arguments)
