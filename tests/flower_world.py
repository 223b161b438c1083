"""A small federation of digits, and links that do what networks do."""

import socket
from collections.abc import Callable, Collection

import pytest

from fedloom.flower.node import Node
from fedloom.flower.node_data import nodes_of_scenario
from fedloom.flower.transport import InProcessTransport
from fedloom.flower.wire import JoinReply, Message, Request, read
from fedloom.methods import METHODS
from fedloom.methods.catalogue import abilities
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import parse

DEALT = {"source": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": 4, "val": 0.0}


def config_of(method="fedavg", **keys):
    """A config over four clients with digits; it ends in seconds."""
    values = {
        "method": method,
        "model": "mlp",
        "rounds": 3,
        "local_epochs": 1,
        "scenario": DEALT,
        "evaluation": {"every": 3},
        "engine": "serial",
        **keys,
    }
    return parse(values)


def settings_of(method):
    """What a method needs: a protocol that it has a model for, images where it augments them, data at the server."""
    kind = METHODS.get(method)
    base = METHODS.get(method.partition("+")[0])
    protocol = "global/global" if "global" in abilities(base).predicts else "personal/local"
    views = {"model": "digits-cnn", "augment": {"crop": 1}} if kind.spec.views == 2 else {}
    public = {"scenario": {**DEALT, "public": 0.05}} if kind.spec.public else {}
    return {"participation": 0.6, "evaluation": {"every": 3, "protocol": protocol}, **views, **public}


class Notes(Callback):
    """Keeps what is told, and calls `after(round)` after each round."""

    def __init__(self, after: Callable[[int], None] = lambda round_: None) -> None:
        self.texts: list[str] = []
        self._after = after

    def on_note(self, config, text):
        self.texts.append(text)

    def on_round(self, config, round_, rows):
        self._after(round_)


class Faulty(InProcessTransport):
    """A link on which some answers change or do not come: `fault(order, answer)` gives what comes, None for nothing."""

    in_process = False  # as over a network: anybody with a key may join

    def __init__(self, nodes, fault=lambda request, answer: answer) -> None:
        super().__init__(nodes)
        self._fault = fault
        self.gone: set[int] = set()
        self.requests: list[Request] = []

    def nodes(self) -> set[int]:
        return super().nodes() - self.gone

    def receive(self, names: Collection[str]) -> list[tuple[str, Message | str]]:
        for name in names:
            if name in self._waiting:
                node, message = self._waiting.pop(name)
                request = read(message, Request)
                self.requests.append(request)
                answer = self._fault(request, self._nodes[node].answer(message))
                if answer is not None:
                    return [(name, answer)]
        return []


def forged(do, client, change, rounds=range(1, 100)):
    """A fault: answers of one client to one kind of request become `change(request, answer)`."""

    def fault(request, answer):
        if request.do != do or (do != "join" and request.round not in rounds):
            return answer
        asked = read(answer, JoinReply).client if do == "join" else request.client
        return change(request, answer) if asked == client else answer

    return fault


@pytest.fixture
def nodes_of(tmp_path):
    """All nodes of a config, with states below a folder."""

    def made(config, folder=None):
        scenario = config.scenario.build(config.seed)
        folder = folder or tmp_path / "states"
        return {client: Node(config, client, folder, scenario) for client in range(nodes_of_scenario(scenario))}

    return made


def listens(port: int) -> bool:
    """Whether a program of this machine accepts connections at a port."""
    with socket.socket() as sock:
        sock.settimeout(1.0)
        return sock.connect_ex(("127.0.0.1", port)) == 0
