from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import normalize

import fedloom.methods as fm
from fedloom.core import trees
from fedloom.methods.parts.contrast import same_and_other

_LEFT_OUT = -1e9  # the score of a row that does not count: finite, so that gradients are


@fm.register
class FedClassAvg(fm.Method):
    """FedClassAvg: an averaged head over private bodies that learn features by contrast. Jang et al., ICPP 2022, arXiv
    2210.14226.

    Local: CE of the first view + supervised contrast of both views + rho |head - received head|^2. The contrast is of
    unit features at temperature tau. A client begins its first round with `pretraining` epochs of plain CE. Server: the
    mean of heads by samples. Bodies may differ, if the heads have one shape."""

    private = fm.ALL_ROLES - {fm.Role.HEAD}
    spec = fm.Spec(requires=("same_heads",), private=private, architectures="any", views=2, labels="multi")

    class Options(fm.Options):
        tau: float = fm.option(0.07, "Temperature of the contrast.", gt=0)
        base_tau: float | None = fm.option(
            None, "The contrast is multiplied by tau / base_tau, as in released code. Null: by 1.", gt=0
        )
        rho: float = fm.option(0.1, "Strength of the pull of the head to the received one (0.1 is our choice).", ge=0)
        pretraining: int = fm.option(
            1, "Epochs of cross-entropy alone when a client takes part for the first time.", ge=0
        )

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        return fm.Start(start.tree, {"received": fm.get_tree(payload, "model"), "first": "met" not in state})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        first = [fm.Train(super().loss, self.options.pretraining)] if start.consts["first"] else []
        return [*first, fm.Train(self.loss, ctx.task.local_epochs)]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        views = [net.features(x) for x in (batch.x, cast(Tensor, batch.second))]
        ce = batch.mean(fm.cross_entropy(net.head(views[0]), batch.y))
        scale = 1.0 if self.options.base_tau is None else self.options.tau / self.options.base_tau
        contrast = batch.by_label(views[0])[1].mean(supervised_contrast(views, batch, self.options.tau))
        head = trees.select(dict(net.named_parameters()), consts["received"])
        proximal = trees.squared_distance(head, consts["received"])
        return fm.Objective.sum({"ce": ce, "contrast": scale * contrast, "proximal": self.options.rho * proximal})

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, next_state = super().end(work, state, ctx)
        return payload, next_state | {"met": True}


def supervised_contrast(views: Sequence[Tensor], batch: fm.Batch, tau: float) -> Tensor:
    """Return the supervised contrastive loss [B] of the features [B, d] of several `views`, a mean over views (Khosla
    et al. 2020, Eq. 2), or that of the rows of `Batch.by_label`. Positives are all other rows of the label; without any
    the loss is 0. Padded rows of `batch` do not count."""
    z = normalize(torch.cat(list(views)), dim=1)
    of_views = fm.Batch(z, torch.cat([batch.y] * len(views)))
    others = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    if batch.mask is not None:
        others = others & batch.mask.repeat(len(views))
    others, (is_same, is_other) = of_views.by_label(others)[0], same_and_other(of_views)
    scores = torch.where(others & (is_same | is_other), of_views.by_label(z @ z.T / tau)[0], _LEFT_OUT)
    positive = others & is_same
    shares = torch.where(positive, torch.log_softmax(scores, 1), 0.0).sum(1) / positive.sum(1).clamp(min=1)
    return -shares.view(len(views), -1).mean(0)
