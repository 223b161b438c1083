"""FedBABU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedloom.core.records import Record
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Start, Task, Work
from fedloom.methods.contract.heads import require_trained_body
from fedloom.methods.contract.method import Method, register
from fedloom.methods.contract.phases import TRAINABLE, Phase, Predictor, Train
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import Role


class Options(method.Options):
    """Options of FedBABU."""

    tuned: Literal["all", "head", "body"] = Field(
        "all", description="Entries that a client tunes before its personal model is tested."
    )
    tuning_epochs: int = Field(
        5,
        ge=0,
        description="Passes over the client's training data that tune them; 5 is our choice, the paper tries 1 to 20.",
    )


@register
class FedBABU(Method):
    """FedBABU: only the body is trained; a client tunes a copy at the end. Oh et al., ICLR 2022, arXiv 2106.06042.

    Down: the body.   Up: the body, number of samples.   Server: mean of bodies by samples (Algorithm 1).
    The head stays as it was drawn, to the bit, on all clients: no weight decay, no momentum moves it.
    Global: the server's body under the first head. Personal: a copy of that, tuned on the client's training data.
    """

    spec = Spec(private=frozenset({Role.HEAD}))
    Options = Options
    citation = Citation("Oh et al.", "ICLR", 2022, "arXiv 2106.06042", {"B": 1}, {"B": 1}, compared_in=("feddw",))

    def examine(self, tasks: Sequence[Task], participants: int) -> list[Diagnostic]:
        require_trained_body(tasks[0], self.name())
        return super().examine(tasks, participants)

    def client_init(self, ctx: ClientContext) -> Record:
        return {}

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        return Start(self._joined(payload, self._first_head(ctx), ctx.task), {})

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        return [Train(self.loss, ctx.task.local_epochs, trains=TRAINABLE - {Role.HEAD})]

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        return super().end(work, state, ctx)[0], {}

    def adapt(self, start: Start, ctx: ClientContext) -> list[Phase]:
        head = frozenset({Role.HEAD})
        moved = {"all": TRAINABLE, "head": head, "body": TRAINABLE - head}[self.options.tuned]
        return [Train(self.loss, self.options.tuning_epochs, trains=moved)]

    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        tree = self._joined(server, self._first_head(ctx), ctx.task)
        return {"global" if state is None else "personal": Predictor(tree)}

    def _first_head(self, ctx: ClientContext | ServerContext) -> Record:
        return {"model": self._private(ctx.task.init, ctx.task)}
