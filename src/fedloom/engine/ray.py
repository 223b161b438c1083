"""The Ray engine: runs the clients of a round as tasks on the nodes of an existing cluster, bit for bit as serial."""

import contextlib
import functools
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from fedloom._version import __version__
from fedloom.core.errors import ClientError, ConfigError, FedloomError
from fedloom.core.process_settings import reproducible_settings
from fedloom.core.records import Record, Value
from fedloom.engine.client import Worker
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult
from fedloom.engine.processes import WorkerLost
from fedloom.engine.processes.engine import Request, answer
from fedloom.engine.processes.shared_memory import dumps, loads
from fedloom.engine.serial import PATIENCE, Engine, Jobs, Serial
from fedloom.engine.speedups import keep_freed_memory
from fedloom.methods.contract.contexts import ClientContext, Task

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
        return int(self._ray.cluster_resources().get("CPU", 0))

    def ended(
        self,
        calls: Iterable[tuple[T, Ref]],
        limit: int | None = None,
        *,
        patience: float | None = None,
        late: Callable[[list[T]], None] = lambda waiting: None,
    ) -> Iterator[tuple[T, Any]]:
        """Yield each call's label and result as calls end (a `Lost` if Ray gave it up), at most `limit` at a time.
        `late` gets labels of running calls if none ends in `patience` seconds. Raises a call's `FedloomError`."""
        out: dict[Ref, T] = {}
        try:
            for label, ref in calls:
                out[ref] = label
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
    """Give the Ray cluster, to which this process is connected at least until the context ends. Raises `ConfigError`,
    in the name of the setting that `asks` for Ray, if it is not installed or no cluster is found."""
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
        remedy = "set it to the head of a cluster (`ray start --head` shows it), or unset it"
        raise ConfigError(f"{asks}: no cluster answers at RAY_ADDRESS = {address}; {remedy}") from None


def _of_this_version(version: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """In a Ray worker, call a function if this node has the caller's versions of fedloom and torch."""
    if version != __version__:
        remedy = "install the same version"
        raise ConfigError(f"node {socket.gethostname()} has fedloom {__version__}, and this one {version}; {remedy}")
    return function(*arguments)


def work(run: Sequence[Ref], message: bytes, names: Sequence[str], *values: bytes) -> bytes | Exception:
    """Run the job of a message, and return the message of its result or error. `run` has a reference to `(worker,
    tasks)`; `names` and `values` are those of the record that clients of the round share."""
    with reproducible_settings():
        engine, tasks = _ready(run[0])
        request = loads(message, tasks=tasks)
        shared = dict(zip(names, map(loads, values), strict=True))
        results = answer([_with_shared(request, shared)], engine)
    return results if isinstance(results, Exception) else bytes(dumps(results[0]))


def _with_shared(request: Request, record: Record) -> Request:
    """Put another record in the place of the one that clients of a round share."""
    return replace(request, payload=record) if isinstance(request, Job) else replace(request, server=record)


@functools.lru_cache(maxsize=1)
def _ready(run: Ref) -> tuple[Serial, list[Task]]:
    import ray

    keep_freed_memory()
    worker, tasks = ray.get(run)
    return Serial(worker.copy()), tasks  # a copy, because pickling detaches loaded nets from their parameters


_AHEAD = 2  # running clients per core, so that no core waits for the driver


class OnRay(Engine):
    """Run clients as tasks of an existing Ray cluster, up to `workers` at a time (None: all cores), bit for bit equal
    to the serial engine. Nets and data are stored there once a run. A client whose node is lost is run again: its round
    depends on its job alone. Raises `ConfigError` if Ray is not installed or no cluster is found."""

    name = "ray"

    def __init__(
        self,
        worker: Worker,
        tasks: Iterable[Task],
        *,
        workers: int | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._connection = contextlib.ExitStack()
        self._cluster = self._connection.enter_context(connected("engine: ray"))
        self._run = [self._cluster.put((worker, list(tasks)))]
        self._stored: dict[int, tuple[Value, Ref]] = {}  # by id; the value is kept, so that no other gets its id
        self._workers, self._note = workers, note

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        return self._executed(jobs)

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        return self._executed(tests)

    def _executed(self, requests: Iterable[Request]) -> Iterator[Any]:
        self._stored.clear()
        limit = self._workers or max(1, _AHEAD * self._cluster.cores())  # the cluster may grow and shrink
        calls = ((request.ctx, self._call(request)) for request in requests)
        for ctx, reply in self._cluster.ended(calls, limit, patience=PATIENCE, late=self._tell):
            if isinstance(reply, Exception):
                raise reply
            if isinstance(reply, Lost):
                lost = WorkerLost(reply.why)
                lost.add_note(reply.detail)
                raise ClientError(ctx.client, ctx.round, "on Ray", lost)
            yield loads(reply)

    def close(self) -> None:
        """Leave the cluster, unless this process was connected before."""
        self._connection.close()

    def _call(self, request: Request) -> Ref:
        shared = request.payload if isinstance(request, Job) else request.server
        for value in shared.values():
            if id(value) not in self._stored:
                self._stored[id(value)] = value, self._cluster.put(bytes(dumps(value)))
        refs = [self._stored[id(value)][1] for value in shared.values()]
        message = bytes(dumps(_with_shared(request, {})))
        return self._cluster.call(work, self._run, message, list(shared), *refs)

    def _tell(self, waiting: list[ClientContext]) -> None:
        who = "clients " + ", ".join(str(ctx.client) for ctx in waiting)
        who = who if waiting[0].client >= 0 else "the test of the server's model"
        waited = f"round {waiting[0].round} has waited {PATIENCE:.0f} s for {who}"
        self._note(f"{waited}; `ray status` shows what the cluster does")
