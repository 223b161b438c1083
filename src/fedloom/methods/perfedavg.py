from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call

import fedloom.methods as fm
from fedloom.methods.parts.parameters import gradients_at
from fedloom.nets.net import has_batch_norm


@fm.register
class PerFedAvg(fm.Method):
    """Per-FedAvg: first weights that are good after one step of a client. Fallah et al., NeurIPS 2020, 2002.07948.

    A step takes one batch in two parts (hf: three): w' = w - alpha grad l(w; B1), then w <- w - beta grad l(w'; B2); hf
    multiplies the gradient by I - alpha H, with H v = (grad l(w + delta v; B3) - grad l(w - delta v; B3)) / (2 delta)
    (Eq. 8). Server: the uniform mean (Algorithm 1). Personal: the server's weights after one step on a batch."""

    spec = fm.Spec(batch_statistics=True, unstackable="its steps take gradients inside the loss", labels="multi")

    class Options(fm.Options):
        alpha: float = fm.option(0.01, "Learning rate of the inner step.", gt=0)
        beta: float | None = fm.option(None, "Learning rate of the outer step. Null takes the run's.", gt=0)
        variant: Literal["fo", "hf"] = fm.option(
            "fo", "fo drops second derivatives; hf takes the Hessian from the difference of two gradients."
        )
        delta: float = fm.option(1e-3, "Distance between the points of these two gradients.", gt=0)

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        rate = ctx.lr if self.options.beta is None else self.options.beta
        return [fm.Train(self.loss, ctx.task.local_epochs, optimizer=fm.OptimizerSpec(lr=rate))]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        options, parts = self.options, 2 if self.options.variant == "fo" else 3
        few = len(batch.y) < 2 * parts and has_batch_norm(net)  # which needs two samples in each part
        halves = list(zip(split(batch.x, parts), split(batch.y, parts), strict=True))
        pieces = [(batch.x, batch.y)] * parts if few else halves
        weights = dict(net.named_parameters())
        # the inner step on B1; the outer gradient is taken at the moved weights on B2
        inner = gradients_at(net, weights, *pieces[0])
        moved = {name: weight - options.alpha * inner[name] for name, weight in weights.items()}
        ce = fm.cross_entropy(functional_call(net, moved, (pieces[1][0],)), pieces[1][1]).mean()
        if options.variant == "fo":
            return fm.Objective(ce, {"ce": ce})
        outer = gradients_at(net, moved, *pieces[1])
        # Hessian times vector by central differences, which needs two gradients and no second derivative
        points = ({n: w + sign * options.delta * outer[n] for n, w in weights.items()} for sign in (1, -1))
        ahead, behind = (gradients_at(net, point, *pieces[2]) for point in points)
        pull = [(w * (ahead[n] - behind[n])).sum() * (-options.alpha / (2 * options.delta)) for n, w in weights.items()]
        hessian = torch.stack(pull).sum()
        return fm.Objective(ce + hessian - hessian.detach(), {"ce": ce})  # the correction has a gradient and no value

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        return {"model": self.mean(uploads, weights="uniform")}

    def adapt(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [fm.Train(super().loss, steps=1, optimizer=fm.OptimizerSpec(lr=self.options.alpha))]


def split(values: Tensor, parts: int) -> list[Tensor]:
    """`values` [B, ...] in two halves, the second the larger, or in three parts as numpy's `array_split` cuts them."""
    half = len(values) // 2
    pieces = [values[:half], values[half:]] if parts == 2 else list(torch.tensor_split(values, parts))
    nonempty = [piece for piece in pieces if len(piece)]
    return nonempty + [nonempty[-1]] * (parts - len(nonempty))
