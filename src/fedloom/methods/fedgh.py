"""FedGH."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedloom.core.records import Record, get_table, get_tree
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Start, Task, Work
from fedloom.methods.contract.heads import require_linear_head, require_same_heads
from fedloom.methods.contract.method import Method, Uploads, register
from fedloom.methods.contract.phases import Collect, Phase
from fedloom.methods.contract.sample_statistics import ClassMeans
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.parts.measures import descended, features
from fedloom.nets.net import ALL_ROLES, Role


class Options(method.Options):
    """Options of FedGH."""

    server_lr: float = Field(0.01, gt=0, description="Learning rate of the server's steps.")
    server_epochs: int = Field(
        100,
        ge=0,
        description="Steps of the server in a round, each over all rows of the round (our choice: HtFLlib takes "
        "batches). With 0 the head stays as it was.",
    )


@register
class FedGH(Method):
    """FedGH: the server trains a shared head on the clients' class means. Yi et al., ACM MM 2023, arXiv 2303.13137.

    Down: the head.   Up: class means of z, the head's input, and mask.
    Local: CE on all layers, from the own body and the received head; then the class means, in evaluation mode.
    Server: from its last head, gradient steps on the mean CE(head(row), class) over the round's rows, one row for each
    client and class it holds. Bodies are private and may differ, if their heads have one shape.
    A client is tested with its own body and the server's head.
    """

    spec = Spec(
        private=ALL_ROLES - {Role.HEAD},
        architectures="any",
        sends={"prototypes": Sent(per_client=True, labels=True)},
    )
    Options = Options
    citation = Citation("Yi et al.", "ACM MM", 2023, "arXiv 2303.13137", {"H": 1}, {"Cd": 1, "mask": 1}, {"B": 1})

    def examine(self, tasks: Sequence[Task], participants: int) -> list[Diagnostic]:
        for task in tasks:
            require_linear_head(task, self.name())
        require_same_heads(tasks, self.name())
        return super().examine(tasks, participants)

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        return [*super().phases(start, ctx), Collect({"prototypes": ClassMeans(features)})]

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        _, next_state = super().end(work, state, ctx)
        return {"prototypes": work.collected["prototypes"]}, next_state

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        tables = ClassTable.stack([get_table(upload, "prototypes") for upload in uploads.values()])
        labels = tables.held.nonzero()[:, 1]
        head = get_tree(server, "model")
        rows = tables.values[tables.held].to(head["head.weight"].dtype)

        def loss(tree: Tree) -> Tensor:
            logits = functional.linear(rows, tree["head.weight"], tree.get("head.bias"))
            return functional.cross_entropy(logits, labels)

        return {"model": descended(loss, head, self.options.server_lr, self.options.server_epochs)}
