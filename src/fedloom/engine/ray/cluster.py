"""The Ray cluster that is there. Ray says where a task runs and runs it again if its process or its node is lost."""

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

ATTEMPTS = 3  # of one task, if it is lost each time
_REACHED = 5.0  # seconds in which the head of a cluster must answer
Ref: TypeAlias = Any  # of Ray: what stands for a value that lies somewhere in the cluster, or will
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lost:
    """What there is in place of a result: why it will not come, in a line, and all that Ray says."""

    why: str
    detail: str


class Cluster:
    """Tasks and objects of a cluster. A task takes one core; Ray pickles its arguments."""

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._called = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_of_this_version)

    def put(self, value: Any) -> Ref:
        """The value in the object store. It goes to a node once, when a task there asks for it."""
        return self._ray.put(value)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Ref:
        """Start `function(*arguments)` on some node; the reference to its result. References arrive there as values."""
        return self._called.remote(__version__, function, *arguments)

    def cores(self) -> int:
        """Cores of all nodes that are there now."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def ended(
        self,
        calls: Iterable[tuple[T, Ref]],
        limit: int | None = None,
        *,
        patience: float | None = None,
        late: Callable[[list[T]], None] = lambda waiting: None,
    ) -> Iterator[tuple[T, Any]]:
        """Results of calls as they come, each with what stood beside it; a `Lost` where Ray gave one up.

        limit: calls that are under way at once; the next one is made when one has ended. late: is told what is waited
        for whenever nothing has come for `patience` seconds. Raises the `FedloomError` that a call raised.
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
    """The cluster that this process is connected to, or gets connected to until the context ends.

    asks: what needs it, for messages. Raises `ConfigError` where Ray is not installed, and where no cluster is there.
    """
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # stdout is ours: Ray would tell there of lost workers
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
    """Ray waits for minutes for a head that is not there, and then ends the process."""
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACHED).close()
    except (OSError, OverflowError):
        raise ConfigError(
            f"{asks}: nobody answers at RAY_ADDRESS = {address}; set it to the head of a cluster (`ray start --head` "
            "shows it), or unset it"
        ) from None


def _of_this_version(version: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """In a worker of Ray: the call, if this node computes what the caller would."""
    if version != __version__:
        raise ConfigError(
            f"node {socket.gethostname()} has fedloom {__version__}, and this one {version}; install the same version"
        )
    return function(*arguments)
