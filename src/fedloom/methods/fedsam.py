import torch

import fedloom.methods as fm


@fm.register
class FedSAM(fm.Method):
    """FedSAM, FedASAM: steps by the gradient at the worst point nearby. Caldarola et al., ECCV 2022, arXiv 2203.11834.

    Local: g = grad l(w), e = rho T^2 g / |T g| over all parameters together, then a step with grad l(w + e). T is 1;
    with `adaptive` it is |w| + eta for entries called "weight". Both gradients are of the same batch and dropout. Batch
    norm counts the batch once. A step costs two forward and two backward passes."""

    class Options(fm.Options):
        rho: float = fm.option(0.1, "Length of the ascent. With 0 the method is FedAvg.", ge=0)
        adaptive: bool = fm.option(
            False,
            "FedASAM: scale the ascent by the size of each weight, so that rescaling a layer changes nothing. The "
            "authors then take rho 0.7.",
        )
        eta: float = fm.option(0.2, "Number that the adaptive ascent adds to the size of each weight.", ge=0)

    spec = fm.Spec(labels="multi")

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [fm.Train(self.loss, ctx.task.local_epochs, ascent=self.ascent if self.options.rho else None)]

    def ascent(self, gradients: fm.Tree, parameters: fm.Tree, consts: fm.Consts) -> fm.Tree:
        """Return e, the move from `parameters` along `gradients` to the worst point nearby."""
        scaled = gradients
        if self.options.adaptive:
            scaled = {name: gradient * self._scale(name, parameters) for name, gradient in gradients.items()}
        # one length over all tensors: the ascent is along the whole gradient
        length = torch.stack([value.square().sum() for value in scaled.values()]).sum().sqrt().clamp(min=1e-12)
        moves = {name: value * (self.options.rho / length) for name, value in scaled.items()}
        if self.options.adaptive:
            return {name: move * self._scale(name, parameters) for name, move in moves.items()}
        return moves

    def _scale(self, name: str, parameters: fm.Tree) -> torch.Tensor | float:
        return parameters[name].abs() + self.options.eta if name.rpartition(".")[2] == "weight" else 1.0
