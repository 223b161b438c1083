"""The function that a Ray worker runs: one client, with nets and data that arrive once a run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from fedloom.core.errors import ClientError
from fedloom.core.process_settings import reproducible_settings
from fedloom.engine.memory import keep_freed_memory
from fedloom.engine.processes.messages import PackedMessage, unpacked
from fedloom.engine.processes.shared_memory import SharedMemory
from fedloom.engine.processes.worker import answer
from fedloom.engine.ray.cluster import Ref
from fedloom.engine.serial import Serial
from fedloom.methods.contract.contexts import Task


def work(run: Sequence[Ref], message: PackedMessage, names: Sequence[str], *values: Any) -> PackedMessage | ClientError:
    """Run the job of a message, and return its result or the error of the client.

    Args:
        run: a reference to `(worker, tasks)`, in a list so that Ray does not fetch it for each client.
        message: the message of the job.
        names: names of the record's values that clients of the round share.
        values: these values.
    """
    with reproducible_settings():
        engine, tasks = _ready(run[0])
        whole = message._replace(shared=dict(zip(names, values, strict=True)))
        memory = SharedMemory(reserve=False)
        results = answer([unpacked(whole, memory.view, tasks)], engine, memory)
    return results if isinstance(results, ClientError) else results[0][0]


@functools.lru_cache(maxsize=1)
def _ready(run: Ref) -> tuple[Serial, list[Task]]:
    import ray

    keep_freed_memory()
    worker, tasks = ray.get(run)
    return Serial(worker.copy()), tasks  # a copy, because pickling detaches loaded nets from their parameters
