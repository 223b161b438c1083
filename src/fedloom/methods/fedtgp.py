from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

import fedloom.methods as fm
from fedloom.methods.parts.measures import descended, first_generator, generated, generated_table, labelled_rows
from fedloom.methods.parts.prototypes import PrototypePull


@fm.register
class FedTGP(PrototypePull):
    """FedTGP: the server trains the global prototypes to lie apart. Zhang et al., AAAI 2024, arXiv 2401.03230.

    As FedProto, but prototypes come from a generator at the server: embedding [C, d] -> linear -> ReLU -> linear. It
    takes gradient steps on CE(-(distance + margin on the row's own class)) of the round's rows, one for each client and
    class, to the generated ones. margin is the largest distance of a class mean to the nearest other one, and `margin`
    at most."""

    spec = replace(PrototypePull.spec, sends={"prototypes": fm.Sent(per_client=True, labels=True)}, labels="multi")

    class Options(fm.Options):
        weight: float = fm.option(10.0, "Strength of the clients' pull. The default is HtFLlib's.", ge=0)
        server_lr: float | None = fm.option(None, "Learning rate of the server's steps. Null takes the run's.", gt=0)
        server_epochs: int = fm.option(
            100,
            "Steps of the server in a round, each over all rows of the round (our choice: released code takes "
            "batches). The default is HtFLlib's.",
            ge=0,
        )
        margin: float = fm.option(
            100.0, "Largest value of the margin between prototypes. The default is HtFLlib's.", ge=0
        )

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return super().server_init(ctx) | {"generator": first_generator(ctx.task)}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        tables = fm.tables_of(uploads, "prototypes")
        generator, lr = fm.get_tree(server, "generator"), self.options.server_lr
        rows, labels = labelled_rows(tables, generator["embedding"].dtype)
        margins = margin_of(tables, self.options.margin) * functional.one_hot(labels, ctx.task.num_classes)

        def loss(tree: fm.Tree) -> Tensor:
            # exact differences, without a tensor [rows, C, d]; the gradient of a distance of 0 is 0
            distances = torch.cdist(rows, generated(tree), compute_mode="donot_use_mm_for_euclid_dist")
            return functional.cross_entropy(-(distances + margins), labels)

        lr = ctx.task.optimizer.lr_in(ctx.round) if lr is None else lr
        generator = descended(loss, generator, lr, self.options.server_epochs)
        return {"prototypes": generated_table(generator), "generator": generator}


def margin_of(tables: fm.ClassTable, largest: float) -> float:
    """Return min(largest, max over classes of the distance of the class mean to the nearest other)."""
    means = tables.to(torch.float64).mean_over_clients()
    rows = means.values[means.held]
    gaps = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = gaps.masked_fill(torch.eye(len(rows), dtype=torch.bool), torch.inf).min(1).values
    return min(float(nearest.max()), largest)
