from typing import Literal

import fedloom.methods as fm


@fm.register
class FedBABU(fm.Method):
    """FedBABU: only the body is trained; a client tunes a copy at the end. Oh et al., ICLR 2022, arXiv 2106.06042.

    The head stays as it was drawn on all clients. Server: the mean of bodies by samples (Algorithm 1). Personal: a copy
    of the global model, tuned on the client's training data."""

    spec = fm.Spec(requires=("trained_body",), private=frozenset({fm.Role.HEAD}), labels="multi")

    class Options(fm.Options):
        tuned: Literal["all", "head", "body"] = fm.option(
            "all", "Entries that a client tunes before its personal model is tested."
        )
        tuning_epochs: int = fm.option(
            5, "Passes over the client's training data that tune them; 5 is our choice, the paper tries 1 to 20.", ge=0
        )

    def client_init(self, ctx: fm.ClientContext) -> fm.Record:
        return {}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        return fm.Start(self._full(payload, None, ctx.task), {})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [fm.Train(self.loss, ctx.task.local_epochs, trains=fm.TRAINABLE - {fm.Role.HEAD})]

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        return super().end(work, state, ctx)[0], {}

    def adapt(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        head = frozenset({fm.Role.HEAD})
        moved = {"all": fm.TRAINABLE, "head": head, "body": fm.TRAINABLE - head}[self.options.tuned]
        return [fm.Train(self.loss, self.options.tuning_epochs, trains=moved)]

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        return {"global" if state is None else "personal": fm.Predictor(self._full(server, None, ctx.task))}
