"""FedAvg whose head is replaced at the end by one that a single round makes from class statistics of features.

The published methods start from pre-trained bodies. Here FedAvg trains the body, so they differ in the head."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.contract.sample_statistics import unit_rows
from fedloom.methods.parts.measures import features
from fedloom.methods.parts.prototypes import UNKNOWN


class OneShotOptions(fm.Options):
    """Options of methods that make the head in one round."""

    body: Literal["fedavg", "first"] = fm.option(
        "fedavg",
        "The body below the head: trained as FedAvg in the rounds before, or the first weights as they are, for a "
        "model that comes pre-trained; then the rounds before do nothing.",
    )


class OneShotHead(fm.Method):
    """The rounds before the head: FedAvg, or no training."""

    Options = OneShotOptions
    spec = fm.Spec(requires=("linear_head",), features=True, labels="multi")
    head_round: "ClassVar[type[HeadRound]]"

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        if self.options.body == "first":
            self.spec = replace(self.spec, sends={})

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        return {} if self.options.body == "first" else super().down(server, client, ctx)

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        return fm.Start(ctx.task.init, {}) if self.options.body == "first" else super().begin(payload, state, ctx)

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [fm.Train(self.loss, steps=0)] if self.options.body == "first" else super().phases(start, ctx)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        upload, state = super().end(work, state, ctx)
        return ({"samples": ctx.samples} if self.options.body == "first" else upload), state

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        return server if self.options.body == "first" else super().aggregate(server, uploads, ctx)

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        offered = super().predictors(server, state, ctx)
        head = fm.get_tree(server, "head") if "head" in server else {}
        return {kind: replace(predictor, tree=predictor.tree | head) for kind, predictor in offered.items()}

    def closing(self) -> fm.Method:
        return self.head_round(self.options)


class HeadRound(fm.Method):
    """The closing round: all clients with data send statistics of the features, and the server makes the head."""

    Options = OneShotOptions

    @classmethod
    def name(cls) -> str:
        return cls.__module__.rpartition(".")[2]  # the method, in whose file the round is

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        model, classes = fm.get_tree(server, "model"), ctx.task.num_classes
        rows, bias = self.head(uploads, classes)
        if len(rows) > classes:  # a label is a problem of two classes: the score of its positives less the negatives'
            rows, bias = (of[:classes] - of[classes : 2 * classes] for of in (rows, bias))
        if not rows.isfinite().all():  # the run diverged: there is nothing to make a head of
            return server
        made = {"head.weight": rows} | ({"head.bias": bias} if "head.bias" in model else {})
        # an entry of its own: a federation would take the far step of a replaced head for a hostile node
        return server | {"head": {name: value.to(model[name].dtype) for name, value in made.items()}}

    def head(self, uploads: fm.Uploads, classes: int) -> tuple[Tensor, Tensor]:
        """Return the head's rows [C, d] and its bias [C], float64, from the clients' statistics; of several labels,
        whose number is `classes`, maybe also those of the negatives of each [2 L, d]."""
        raise NotImplementedError


class SumsRound(HeadRound):
    """A head from sums over all samples: the server needs no single client's."""

    spec = fm.Spec(
        features=True,
        sends={
            "squares": fm.Sent(labels=True, statistic="second moments of features"),
            "class_sums": fm.Sent(labels=True, statistic="class sums of features"),
            "class_shares": fm.Sent(labels=True),
        },
    )

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [fm.Collect({"moments": fm.Moments(features_and_label)})]

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        moments: fm.Tree = work.collected["moments"]
        # means and not sums, because `Method.mean` multiplies them by the samples again
        outer, width = moments["outer"] / moments["count"].clamp(min=1), ctx.task.feature_dim
        sent: fm.Record = {
            "squares": outer[:width, :width].contiguous(),
            "class_sums": outer[width:, :width].contiguous(),
            "class_shares": outer.diagonal()[width:].contiguous(),
        }
        return sent | {"samples": ctx.samples}, state

    def means(self, uploads: fm.Uploads) -> tuple[fm.ClassTable, Tensor, Tensor, float]:
        """Return means over all N samples in float64: z by class [C, d], class shares [C], z z^T [d, d]; and N. Classes
        of several labels are the positives, then the negatives of each, then all samples [2 L + 1]."""
        squares, class_sums, shares = (self.mean(uploads, name) for name in self.spec.sends)
        samples = sum(fm.get_number(upload, "samples") for upload in uploads.values())
        return fm.ClassTable.from_sums(class_sums, shares), shares, squares, samples


class MeansRound(HeadRound):
    """A head from the clients' class means and class counts."""

    spec = fm.Spec(
        features=True,
        sends={
            "means": fm.Sent(per_client=True, labels=True, statistic="class means of features"),
            "class_counts": fm.Sent(per_client=True, labels=True),
        },
    )

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [fm.Collect({"means": fm.ClassMeans(features, sides=True), "labels": fm.Moments(sides)})]

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        return {"means": work.collected["means"], "class_counts": work.collected["labels"]["sum"].long()}, state

    def class_means(self, uploads: fm.Uploads) -> tuple[fm.ClassTable, Tensor]:
        """Return the means [C, d] over all samples of each class, float64, and the clients' class counts [m, C]."""
        counts = fm.tensors_of(uploads, "class_counts").double()
        means: fm.ClassTable = self.mean(uploads, "means", counts)
        return means, counts


def features_and_label(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    """Return the head's input and the one-hot label [B, d + C] of a `batch` by `net`; outer products hold all class
    sums. Of several labels it is both `sides`, and a 1 for any sample [B, d + 2 L + 1]."""
    z = net.features(batch.x).double()
    of_all = [torch.ones_like(z[:, :1])] if batch.y.dim() == 2 else []
    return torch.cat([z, sides(net, batch, consts), *of_all], 1)


def sides(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    """Return the one-hot labels [B, C] of a `batch` for `net`; of several their positives and negatives [B, 2 L]."""
    return unit_rows(batch.y, net.head.out_features, sides=True)


def masking_bias(held: Tensor) -> Tensor:
    """Return a bias [C] of 0, and of `UNKNOWN` for classes without holders."""
    return torch.where(held, 0.0, UNKNOWN).double()


def gaussian_head(means: fm.ClassTable, covariance: Tensor, priors: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows S^-1 m_c [C, d] and bias -1/2 m_c . S^-1 m_c + log prior_c [C], in float64: the softmax of this head
    is the posterior of the classes, with the `priors`, for z ~ N(mean_c, covariance S). A class without holder gets a
    row of zeros and the bias `UNKNOWN`. Raises `torch.linalg.LinAlgError` for a singular `covariance`."""
    values, held = means.values.double(), means.held
    # solved, not inverted: an inverse loses digits where S is nearly singular
    solved: Tensor = torch.linalg.solve(covariance.double(), values.T)
    rows = torch.where(held.unsqueeze(1), solved.T, 0.0)
    # log 0 would make the gradient of a class without holders NaN, also where it is replaced
    log_priors = torch.where(held, priors.double(), 1.0).log()
    return rows, torch.where(held, log_priors - (values * rows).sum(1) / 2, UNKNOWN)


def shrunk(covariance: Tensor, share: float) -> Tensor:
    """Return (1 - share) S + share (tr S / d) I in float64, which is positive definite for every S but 0."""
    matrix = covariance.double()
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return (1 - share) * matrix + share * matrix.diagonal().mean() * identity


def conditioned(covariance: Tensor, largest: float) -> tuple[Tensor, float]:
    """Return a covariance that can be inverted, and the condition of S, its largest variance over its smallest. Above
    the condition `largest`, smaller variances are raised to the largest over `largest`, at least 1e-12."""
    matrix = covariance.double()
    if not matrix.isfinite().all():
        return matrix, torch.inf
    variances, axes = torch.linalg.eigh(matrix)
    smallest, greatest = float(variances[0]), float(variances[-1])
    # a variance below 0 is rounding: S has none
    condition = greatest / smallest if smallest > 0 else torch.inf
    if condition <= largest:
        return matrix, condition
    raised = variances.clamp(min=max(greatest / largest, 1e-12))
    return (axes * raised) @ axes.T, condition
