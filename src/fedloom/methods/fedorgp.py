from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

import fedloom.methods as fm
from fedloom.methods.fedtgp import FedTGP
from fedloom.methods.parts import measures
from fedloom.methods.parts.contrast import unit


@fm.register
class FedORGP(FedTGP):
    """FedORGP: the server turns the global prototypes to right angles. Guo et al., 2025, arXiv 2502.16119.

    Local: CE + lambda_c mean over the batch of 1 - cos(z, row_y), from round 2 on. Server: FedTGP's generator, with
    steps on lambda_s mean (1 - cos(r, P_y)) + gamma mean over other classes c of |cos(r, P_c)|, r the round's rows."""

    class Options(fm.Options):
        weight: float = fm.option(10.0, "lambda_c, the strength of the clients' pull; 0 is local training.", ge=0)
        near: float = fm.option(
            1.0, "lambda_s, the weight of the server's term that turns prototypes to their clients' rows.", ge=0
        )
        apart: float = fm.option(
            10.0, "gamma, the weight of the server's term against cosines to rows of other classes.", ge=0
        )
        adaptive: bool = fm.option(
            False, "Whether both terms weigh more where rows of other classes are near, as in newer released code."
        )
        filtered: bool = fm.option(
            False,
            "Whether features that lie apart from the others of their class are left out of the class means, as in "
            "newer released code.",
        )
        distance_share: float = fm.option(
            0.5,
            "alpha, the weight of a feature's distance to its class mean, against its cosine, when `filtered`.",
            gt=0,
            lt=1,
        )
        server_lr: float = fm.option(0.01, "Learning rate of the server's steps.", gt=0)
        server_epochs: int = fm.option(
            1,
            "Steps of the server in a round, each over all rows of the round (our choice: released code takes batches "
            "of 32).",
            ge=0,
        )

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics, task = super().examine(tasks, participants), tasks[0]
        if task.num_classes > task.feature_dim:
            message = f"{task.num_classes} prototypes of {task.feature_dim} features cannot all be at right angles"
            diagnostics.append(fm.Diagnostic("fedorgp.more_classes_than_features", message, float(task.num_classes)))
        return diagnostics

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        phases = super().phases(start, ctx)
        return [*phases[:-1], fm.Collect({"rows": fm.Rows(measures.features)})] if self.options.filtered else phases

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        if not self.options.filtered:
            return super().end(work, state, ctx)
        rows: fm.LabelledRows = work.collected["rows"]
        means = means_of_kept(rows, ctx.task.num_classes, self.options.distance_share)
        return {"prototypes": means}, {"model": work.tree}

    def distance(self, z: Tensor, rows: Tensor) -> Tensor:
        return 1 - (unit(z) * unit(rows)).sum(1)

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        tables = fm.tables_of(uploads, "prototypes")
        generator, options = fm.get_tree(server, "generator"), self.options
        rows, labels = measures.labelled_rows(tables, generator["embedding"].dtype)

        def loss(tree: fm.Tree) -> Tensor:
            near, apart = angle_terms(rows, labels, measures.generated(tree), adaptive=options.adaptive)
            return cast(Tensor, options.near * near + options.apart * apart)

        generator = measures.descended(loss, generator, options.server_lr, options.server_epochs)
        return {"prototypes": measures.generated_table(generator), "generator": generator}


def means_of_kept(rows: fm.LabelledRows, classes: int, share: float) -> fm.ClassTable:
    """Return the mean [C, d] of the `rows` of each class that `kept` keeps, with `share` the weight of the distance."""
    sums = torch.zeros(classes, rows.values.shape[1], dtype=torch.float64)
    counts = torch.zeros(classes, dtype=torch.float64)
    for label in range(classes):
        is_own = rows.labels == label if rows.labels.dim() == 1 else rows.labels[:, label] == 1
        own = rows.values[is_own].double()
        own = own[kept(own, share)] if len(own) else own
        sums[label], counts[label] = own.sum(0), len(own)
    return fm.ClassTable.from_sums(sums, counts).to(torch.float32)


def kept(rows: Tensor, share: float) -> Tensor:
    """Return which features [n, d] of one class lie within 1.5 interquartile ranges of the quartiles of a score [n]: a
    mix of distance and cosine to their mean, scaled to [0, 1], in which the one that varies less weighs more."""
    mean = rows.mean(0, keepdim=True)
    distances, cosines = (rows - mean).norm(dim=1), (unit(rows) @ unit(mean).T).squeeze(1)
    # two rows have no quartiles that tell them apart
    if len(rows) < 3 or not rows.isfinite().all():
        return torch.ones(len(rows), dtype=torch.bool)
    ratio = _variation(distances) / _variation(cosines)
    weight = (share * (1 - 0.3 * torch.tanh(0.5 * (ratio - 1))).clamp(0.4, 1.6)).clamp(0.1, 0.9)
    scores = weight * (1 - _scaled(distances)) + (1 - weight) * _scaled(cosines)
    first, third = scores.quantile(0.25), scores.quantile(0.75)
    reach = 1.5 * (third - first)
    return (scores >= first - reach) & (scores <= third + reach)


def _variation(values: Tensor) -> Tensor:
    return values.std().clamp(min=1e-8) / values.mean().abs().clamp(min=1e-8)


def _scaled(values: Tensor) -> Tensor:
    return (values - values.min()) / (values.max() - values.min() + 1e-8)


def angle_terms(rows: Tensor, labels: Tensor, prototypes: Tensor, *, adaptive: bool) -> tuple[Tensor, Tensor]:
    """Return the mean of 1 - cos(r, P_y) over `rows` r [R, d] with `labels` y, and the mean of |cos(r, P_c)| over other
    classes c. With `adaptive`, entries weigh 1 + sigmoid((a - 0.3) / 0.5), a the |cos| with other classes."""
    cosines = unit(rows) @ unit(prototypes).T
    is_other = functional.one_hot(labels, len(prototypes)) == 0
    # orthogonal is neither near nor opposite, so the sign of a cosine does not matter
    others = torch.where(is_other, cosines.abs(), 0.0)
    distances = 1 - cosines.gather(1, labels.unsqueeze(1)).squeeze(1)
    number = max(1, len(prototypes) - 1)
    if adaptive:
        distances = distances * _crowded(others.sum(1) / number)
        others = others * _crowded(others)
    return distances.mean(), others.sum() / (max(1, len(rows)) * number)


def _crowded(cosines: Tensor) -> Tensor:
    return 1 + torch.sigmoid((cosines - 0.3) / 0.5)
