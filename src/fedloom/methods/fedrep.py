"""FedRep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedloom.core.records import Record
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Start, Task
from fedloom.methods.contract.heads import require_trained_body
from fedloom.methods.contract.method import Method, Uploads, register
from fedloom.methods.contract.phases import TRAINABLE, Phase, Train
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.nets.net import Role


class Options(method.Options):
    """Options of FedRep."""

    head_epochs: int = Field(10, ge=0, description="Passes that train the head, whatever local_epochs says.")
    body_epochs: int = Field(1, ge=0, description="Passes that then train the body, whatever local_epochs says.")
    weights: Literal["samples", "uniform"] = Field(
        "samples",
        description="Weights of clients in the mean: by samples, as in released code, or all alike, as in the paper.",
    )


@register
class FedRep(Method):
    """FedRep: a client fits its own head, then moves the shared body under it. Collins et al., ICML 2021, 2102.07078.

    Down: the body.   Up: the body, number of samples.   Server: mean of bodies (Algorithm 1: all alike).
    First the private head alone, then the body alone. Batch norm is in training mode in both, as in released code.
    A client is tested with the server's body and its own head; one that never took part, with the first head.
    """

    spec = Spec(private=frozenset({Role.HEAD}), sends={"model": Sent(spread=2.0)})
    Options = Options
    presets = {  # noqa: RUF012
        "paper": {"weights": "uniform"},
        "authors": {},
        "sound": {},
        "feddw": {"head_epochs": 1, "body_epochs": 4},
    }
    citation = Citation(
        "Collins et al.",
        "ICML",
        2021,
        "arXiv 2102.07078",
        {"B": 1},
        {"B": 1},
        {"H": 1},
        compared_in=("feddw",),
        code="lgcollins/FedRep at d82e629",
    )

    def examine(self, tasks: Sequence[Task], participants: int) -> list[Diagnostic]:
        require_trained_body(tasks[0], self.name())
        return super().examine(tasks, participants)

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        head, body = frozenset({Role.HEAD}), TRAINABLE - {Role.HEAD}
        options = self.options
        return [
            Train(self.loss, options.head_epochs, trains=head),
            Train(self.loss, options.body_epochs, trains=body),
        ]

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        return {"model": self.mean(uploads, weights=self.options.weights)}
