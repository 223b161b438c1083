"""Training on the pooled data."""

from collections.abc import Sequence

import fedloom.methods as fm


@fm.register
class Central(fm.Method):
    """Central: one net trains on the data of all clients in one place. The reference above global models.

    It visits as many samples as the federated run: in each round it takes `local_epochs` passes over the share of the
    pooled samples that the round's participants would hold on average, drawn again for each pass, with the run's
    optimiser and batch size. Nothing travels. Simulation only: elsewhere the data would have to leave the clients."""

    spec = fm.Spec(sends={}, pooled=True, labels="multi")

    def select(self, server: fm.Record, count: int, ctx: fm.ServerContext) -> Sequence[int]:
        return [0]

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        return {"model": server["model"], "share": ctx.participants / ctx.task.clients if ctx.participants else 1.0}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        return fm.Start(super().begin(payload, state, ctx).tree, {"share": fm.get_number(payload, "share")})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [fm.Train(self.loss, ctx.task.local_epochs, share=start.consts["share"])]
