"""What a worker of Ray does: one client, with nets and data that it has got once a run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from fedloom.core.errors import ClientError
from fedloom.core.process_settings import reproducible_settings
from fedloom.engine.memory import keep_freed
from fedloom.engine.processes.messages import Found, Left, Order, asked_of
from fedloom.engine.processes.shared_memory import SharedMemory
from fedloom.engine.processes.worker import answer
from fedloom.engine.ray.cluster import Ref
from fedloom.engine.serial import Serial
from fedloom.methods.contract.contexts import Task


def work(run: Sequence[Ref], order: Order, names: Sequence[str], *values: Any) -> Left | Found | ClientError:
    """What the client of an order leaves, or its error.

    run: one reference to `(worker, tasks)`, in a list, so that it is not fetched for each client. names, values: the
    order's payload.
    """
    with reproducible_settings():
        engine, tasks = _ready(run[0])
        whole = order._replace(payload=dict(zip(names, values, strict=True)))
        memory = SharedMemory(reserve=False)
        found = answer([asked_of(whole, tasks, memory.view)], engine, memory)
    return found if isinstance(found, ClientError) else found[0][0]


@functools.lru_cache(maxsize=1)
def _ready(run: Ref) -> tuple[Serial, list[Task]]:
    import ray

    keep_freed()
    worker, tasks = ray.get(run)
    return Serial(worker.twin()), tasks  # whose live nets hold their own parameters: pickled ones hold copies
