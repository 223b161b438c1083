"""The driver's side of the Ray engine: runs clients as tasks, and holds all states, as the serial engine does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fedloom.core.errors import ClientError
from fedloom.core.records import Record, Value
from fedloom.engine.client import Worker
from fedloom.engine.jobs import EvalJob, EvalResult, JobResult
from fedloom.engine.processes import WorkerLost
from fedloom.engine.processes.messages import Request, packed, unpacked
from fedloom.engine.processes.shared_memory import Packed, Packer, SharedMemory
from fedloom.engine.ray.cluster import Cluster, Lost, Ref, connected
from fedloom.engine.ray.task import work
from fedloom.engine.serial import Jobs
from fedloom.engine.slow_clients import PATIENCE
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, Task

_AHEAD = 2  # running clients per core, so that no core waits for the driver


class OnRay:
    """Run clients as tasks of an existing Ray cluster, bit for bit equal to the serial engine.

    Nets and data are stored there once a run. A client whose node is lost is run again: its round depends on its job
    alone. workers: clients that run at a time; None for all cores. note: called with a message on clients that a round
    waits for. Raises `ConfigError` if Ray is not installed or no cluster is found.
    """

    name = "ray"
    reason = None
    may_drop_clients = False

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
        self._store = _Store(self._cluster)
        self._workers, self._note = workers, note

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        """Yield the `JobResult` of each job, as they finish. Raises `ClientError` at the first failure."""
        return self._executed(jobs)

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        """Yield the `EvalResult` of each test, as they finish. Raises `ClientError` if adapting fails."""
        return self._executed(tests)

    def _executed(self, requests: Iterable[Request]) -> Iterator[Any]:
        self._store.clear()
        limit = self._workers or max(1, _AHEAD * self._cluster.cores())  # the cluster may grow and shrink
        calls = ((request.ctx, self._call(request)) for request in requests)
        view = SharedMemory(reserve=False).view
        for ctx, reply in self._cluster.ended(calls, limit, patience=PATIENCE, late=self._tell):
            if isinstance(reply, ClientError):
                raise reply
            if isinstance(reply, Lost):
                lost = WorkerLost(reply.why)
                lost.add_note(reply.detail)
                raise ClientError(ctx.client, ctx.round, "on Ray", lost)
            yield unpacked(reply, view)

    def keep(self, record: Record) -> Record:
        return record

    def notes(self) -> list[Diagnostic]:
        return []

    def close(self) -> None:
        """Leave the cluster, unless this process was connected before."""
        self._connection.close()

    def _call(self, request: Request) -> Ref:
        """Start the task of a job and return the reference to its result."""
        message = packed(request, self._store)
        shared = message.shared
        return self._cluster.call(work, self._run, message._replace(shared={}), list(shared), *shared.values())

    def _tell(self, waiting: list[ClientContext]) -> None:
        who = "clients " + ", ".join(str(ctx.client) for ctx in waiting)
        if waiting[0].client < 0:
            who = "the test of the server's model"
        self._note(
            f"round {waiting[0].round} has waited {PATIENCE:.0f} s for {who}; `ray status` shows what the cluster does"
        )


class _Store(Packer):
    """Pack records for messages. Values that clients of a round share are put into the object store once."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(SharedMemory(reserve=False))
        self._cluster = cluster
        self._refs: dict[
            int, tuple[Value, Ref]
        ] = {}  # by id; the value is kept alive, so that its id is not used again

    def clear(self) -> None:
        """Forget the references of the last round."""
        super().clear()
        self._refs.clear()

    def pack(self, record: Record, *, shared: bool = True) -> Packed:
        """Return a record as plain values and bytes, or as references to them if other records may share its values."""
        if not shared:
            return super().pack(record, shared=False)
        for value in record.values():
            if id(value) not in self._refs:
                (plain,) = super().pack({"": value}, shared=False).values()
                self._refs[id(value)] = value, self._cluster.put(plain)
        return {name: self._refs[id(value)][1] for name, value in record.items()}
