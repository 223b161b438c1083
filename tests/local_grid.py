"""A grid of Flower in this process, for tests."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any


def local_grid(answer: Callable[[Any, Any], Any], nodes: Iterable[int]) -> Any:
    """Return a `Grid` that calls a `ClientApp` in this process, with one context per node: for tests and debugging.

    answer: the app. nodes: partition ids; the node ids are these plus one.
    """
    from flwr.app import Context, RecordDict
    from flwr.app import Message as FlowerMessage
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity  # not public: messages need their run

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    contexts = {client + 1: Context(1, client + 1, {"partition-id": client}, RecordDict(), {}) for client in nodes}

    class LocalGrid(Grid):  # type: ignore[misc]
        """Calls the app when a reply is pulled."""

        def __init__(self) -> None:
            self._pending: dict[str, Any] = {}

        def set_run(self, run: Any) -> None:
            raise NotImplementedError("a grid of this process has one run")

        @property
        def run(self) -> Any:
            return SimpleNamespace(run_id=1)

        def create_message(
            self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: Any = None
        ) -> Any:
            return FlowerMessage(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

        def get_node_ids(self) -> Iterable[int]:
            return list(contexts)

        def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
            message_ids = []
            for message in messages:
                message_id = f"message-{len(self._pending)}"
                message.metadata.__dict__["_message_id"] = message_id
                self._pending[message_id] = message
                message_ids.append(message_id)
            return message_ids

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
            requests = [self._pending[name] for name in message_ids if self._pending.get(name) is not None]
            for request in requests:
                self._pending[request.metadata.message_id] = None
            return [answer(request, contexts[request.metadata.dst_node_id]) for request in requests]

        def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
            return self.pull_messages(self.push_messages(messages))

    return LocalGrid()
