"""Hooks that few methods change. Each default is what FedAvg does: nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from fedloom.core.records import Record
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Start, Work
from fedloom.methods.contract.phases import Phase, Predictor
from fedloom.nets.net import Net

if TYPE_CHECKING:
    from fedloom.methods.contract.method import Method, Uploads


class OptionalHooks:
    """Hooks that a method may override beside those of the round."""

    def extra(self, net: Net) -> nn.Module | None:
        """Create trainable tensors beside the net, e.g. a mixing weight or a second head: `net.extra` in a loss.

        Their entries are called "extra...." and have the role `Role.EXTRA`: shared unless `Spec.private` has it. `net`
        is as it will be trained, and is not changed. Drawn from the same stream as the first weights.
        """
        return None

    def select(self, server: Record, count: int, ctx: ServerContext) -> Sequence[int]:
        """Draw the clients of this round, without replacement. Those without data sit out, whatever this says.

        Args:
            server: the state before the round.
            count: how many of the ids 0 to N - 1 to draw.
            ctx: the round and the task. Draw from `ctx.task.streams.numpy(purpose, ctx.round)` only.
        """
        clients = ctx.task.clients
        if count == clients:
            return range(clients)
        drawn = ctx.task.streams.numpy("participants", ctx.round).choice(clients, count, replace=False)
        return [int(client) for client in np.sort(drawn)]

    def pack(
        self, upload: Record, state: Record, received: Record, before: Record, ctx: ClientContext
    ) -> tuple[Record, Record]:
        """Encode an upload for travel, and return it with the client's next state.

        Args:
            upload: the upload that `end` returned.
            state: the next state that `end` returned.
            received: the payload that the server sent.
            before: the client's state before the round.
            ctx: the client, the round and the task.
        """
        return upload, state

    def unpack(self, server: Record, uploads: Uploads, of: Callable[[int], ServerContext]) -> Uploads:
        """Decode the uploads that travelled: as `end` left them, or near to it.

        Args:
            server: the state before the round.
            uploads: the packed uploads by client id.
            of: returns the context in which `down` made a client's payload.
        """
        return uploads

    def figures(self, server: Record, ctx: ServerContext) -> Mapping[str, float]:
        """Return figures of the method's own after a round, by name, for the results: a privacy budget that is spent.

        Args:
            server: the server's state after the round.
            ctx: the round and the task.
        """
        return {}

    def tested(self, server: Record, ctx: ServerContext) -> Record:
        """Return the server's state with the weights that are tested, where the next round starts from others.

        An average of iterates, say. `predictors` reads it; clients still get what `down` takes from the state itself.

        Args:
            server: the server's state after the last round.
            ctx: the round and the task.
        """
        return server

    def adapt(self, start: Start, ctx: ClientContext) -> list[Phase]:
        """Return the phases on its training data that a client runs on a personal model before its test.

        They run on a copy that is thrown away. `start` has the predictor's weights and constants. Their time counts
        as evaluation, their operations as the run's.
        """
        return []

    def adapted(self, work: Work, predictor: Predictor, ctx: ClientContext) -> Predictor:
        """Return the predictor of a client's test, made from what the phases of `adapt` left: by default their weights.

        Args:
            work: the weights after the phases, and the statistics that they collected.
            predictor: the personal model before them.
            ctx: the client, the round and the task.
        """
        return replace(predictor, tree=work.tree)

    def opening(self) -> Method | None:
        """Return the method of an opening round, over all clients with data, before the first; None for no such round.

        It gets the server's state of `server_init`, and what its `aggregate` returns is the state that the first round
        starts from. Clients keep the states that its `end` returns. Its hooks see round 0. `select` is not asked.

        Hooks of the other rounds must be able to do without what the opening brings: a client may miss it, and a
        federation over Flower tries uploads on the state of `server_init`.
        """
        return None

    def closing(self) -> Method | None:
        """Return the method of a closing round, over all clients with data; None for no such round.

        It gets the server's state as this method left it, and what its `aggregate` returns is the final state. Its
        hooks see round T + 1.
        """
        return None
