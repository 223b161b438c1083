"""Training on the pooled data."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.core.records import Record, get_number
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Start
from fedloom.methods.contract.method import Method, register
from fedloom.methods.contract.phases import Phase, Train
from fedloom.methods.contract.spec import Spec


@register
class Central(Method):
    """Central: one net trains on the data of all clients in one place. The reference above global models.

    It visits as many samples as the federated run: in each round it takes `local_epochs` passes over the share of the
    pooled samples that the round's participants would hold on average, drawn anew for each pass, with the run's
    optimiser and batch size. Nothing travels. Simulation only: over a network the data would have to leave the clients.
    """

    spec = Spec(sends={}, pooled=True)
    citation = Citation("", "", None, "", {}, {}, {})

    def select(self, server: Record, count: int, ctx: ServerContext) -> Sequence[int]:
        return [0]

    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        return {"model": server["model"], "share": ctx.participants / ctx.task.clients if ctx.participants else 1.0}

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        return Start(super().begin(payload, state, ctx).tree, {"share": get_number(payload, "share")})

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        return [Train(self.loss, ctx.task.local_epochs, share=start.consts["share"])]
