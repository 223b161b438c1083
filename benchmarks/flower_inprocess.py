"""Flower's FedAvg over an in-process grid, with a ClientApp that returns the weights it got. No Ray, no network.

The grid calls the app once per message, as Flower's own tests do; nothing is written to a socket. It is the least
that Flower's public classes cost; its simulation engine adds actors and serialisation on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Unpack the weights into a net, pack them again: what any Flower client does beside training."""
    arrays = message.content["arrays"]
    assert isinstance(arrays, ArrayRecord)
    weights = arrays.to_torch_state_dict()
    content = RecordDict({"arrays": ArrayRecord(weights), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)


class InProcess(Grid):
    """Calls the ClientApp of every node directly."""

    def __init__(self, nodes: int) -> None:
        self._contexts = {
            n: Context(run_id=1, node_id=n, node_config={}, state=RecordDict(), run_config={})
            for n in range(1, nodes + 1)
        }

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [app(m, self._contexts[m.metadata.dst_node_id]) for m in messages]

    def set_run(self, run_id: int) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return Message(*args, **kwargs)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise RuntimeError("not used by FedAvg")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise RuntimeError("not used by FedAvg")


def _identify() -> None:
    """New messages carry the task's identity, which Flower's runtime sets; here there is none but this process."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # type: ignore[method-assign, assignment]


def flower_rounds(size: int, clients: int, rounds: int) -> Callable[[], None]:
    """A function that runs `rounds` rounds of `clients` no-op clients."""
    strategy = FedAvg(fraction_train=1.0, min_train_nodes=clients, min_available_nodes=clients, fraction_evaluate=0.0)
    grid = InProcess(clients)
    _identify()
    weights = {"body": torch.randn(size - 2), "head.weight": torch.randn(1, 1), "head.bias": torch.randn(1)}

    def run() -> None:
        arrays = ArrayRecord(weights)
        for number in range(1, rounds + 1):
            messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
            averaged, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
            assert averaged is not None
            arrays = averaged

    return run
