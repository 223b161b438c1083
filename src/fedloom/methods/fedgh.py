from torch import Tensor
from torch.nn import functional

import fedloom.methods as fm
from fedloom.methods.parts.measures import descended, features, labelled_rows


@fm.register
class FedGH(fm.Method):
    """FedGH: the server trains a shared head on the clients' class means. Yi et al., ACM MM 2023, arXiv 2303.13137.

    Local: CE on all layers, then the class means of z. Server: steps of the head on the mean CE(head(row), class) over
    the round's rows, one for each client and class. Bodies are private and may differ, if heads have one shape."""

    spec = fm.Spec(
        requires=("linear_head", "same_heads"),
        private=fm.ALL_ROLES - {fm.Role.HEAD},
        architectures="any",
        sends={"prototypes": fm.Sent(per_client=True, labels=True)},
        labels="multi",
    )

    class Options(fm.Options):
        server_lr: float = fm.option(0.01, "Learning rate of the server's steps.", gt=0)
        server_epochs: int = fm.option(
            100,
            "Steps of the server in a round, each over all rows of the round (our choice: HtFLlib takes batches). With"
            " 0 the head stays as it was.",
            ge=0,
        )

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [*super().phases(start, ctx), fm.Collect({"prototypes": fm.ClassMeans(features, sides=True)})]

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        _, next_state = super().end(work, state, ctx)
        return {"prototypes": work.collected["prototypes"]}, next_state

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        head, classes = fm.get_tree(server, "model"), ctx.task.num_classes
        tables = fm.tables_of(uploads, "prototypes")
        rows, labels = labelled_rows(tables, head["head.weight"].dtype)
        several = tables.held.shape[1] > classes

        def loss(tree: fm.Tree) -> Tensor:
            logits = functional.linear(rows, tree["head.weight"], tree.get("head.bias"))
            if several:  # a row is of the positives or the negatives of one label, and tells nothing of the others
                of_label = logits.gather(1, labels.unsqueeze(1) % classes).squeeze(1)
                return functional.binary_cross_entropy_with_logits(of_label, (labels < classes).to(logits.dtype))
            return functional.cross_entropy(logits, labels)

        return {"model": descended(loss, head, self.options.server_lr, self.options.server_epochs)}
