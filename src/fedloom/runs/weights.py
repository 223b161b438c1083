"""The weights of a running federation, as they are tested."""

from __future__ import annotations

from fedloom.core.errors import ConfigError
from fedloom.core.trees import Tree
from fedloom.engine import Federation


def copy_weights(federation: Federation, client: int | None = None) -> Tree:
    """A copy on the CPU of the server's weights, or of the personal ones of `client`, between two rounds.

    Raises `ConfigError` for a client that does not exist, and where the method has no such model.
    """
    clients = federation.scenario.clients
    if client is None:
        kind, state, context = "global", None, federation.server_context()
    elif 0 <= client < clients:
        kind, context = "personal", federation.server_context(client)
        state = federation.state_of(federation.client_context(client, federation.round))
    else:
        raise ConfigError(f"weights of client {client}: clients are 0 to {clients - 1}")
    offered = federation.method.predictors(federation.server, state, context)
    if kind not in offered:
        advice = "name a client" if client is None else "leave the client out"
        raise ConfigError(f"weights: {federation.method.name()} has no {kind} model; {advice}")
    return {name: value.detach().to("cpu", copy=True) for name, value in offered[kind].tree.items()}
