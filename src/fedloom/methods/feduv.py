import torch
from torch import Tensor

import fedloom.methods as fm


@fm.register
class FedUV(fm.Method):
    """FedUV: classifier and features as spread as IID data would leave them. Son et al., CVPR 2024, arXiv 2402.18372.

    Local: CE + variance mean_c max(0, C^(-1/2) - std_c) + uniformity mean_{i<j} exp(-|z_i - z_j|^2 / sigma), std_c the
    unbiased standard deviation of the softmax output for class c over the batch, sigma the lower median of the batch's
    nonzero squared distances, with gradient as released. Batches of one are skipped."""

    spec = fm.Spec(batch_statistics=True, features=True, single_because="it spreads a softmax evenly over classes")

    class Options(fm.Options):
        variance: float = fm.option(
            2.5, "Weight of the classifier's term. With this and uniformity 0 the method is FedAvg.", ge=0
        )
        uniformity: float = fm.option(0.5, "Weight of the features' term.", ge=0)

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z = net.features(batch.x)
        logits = net.head(z)
        terms = {"ce": batch.mean(fm.cross_entropy(logits, batch.y))}
        terms["variance"] = self.options.variance * missing_spread(torch.softmax(logits, 1), batch)
        terms["uniformity"] = self.options.uniformity * nearness(z, batch)[0]
        return fm.Objective.sum(terms)


def missing_spread(outputs: Tensor, batch: fm.Batch) -> Tensor:
    """Return mean_c max(0, C^(-1/2) - std_c) of softmax outputs [B, C]; 0 for fewer than two samples."""
    samples = _counted(batch).sum()
    squares = batch.mean((outputs - batch.mean(outputs)).square()) * samples / (samples - 1).clamp(min=1)
    spread = torch.where(squares > 0, torch.where(squares > 0, squares, 1.0).sqrt(), 0.0)
    missing = (outputs.shape[1] ** -0.5 - spread).relu().mean()
    return torch.where(samples > 1, missing, 0.0)


def nearness(z: Tensor, batch: fm.Batch) -> tuple[Tensor, Tensor]:
    """Return the mean of exp(-|z_i - z_j|^2 / sigma) over the pairs of features [B, d], 0 without a pair; and sigma."""
    first, second = torch.triu_indices(len(z), len(z), 1, device=z.device)
    counted = _counted(batch)
    pairs = counted[first] & counted[second]
    distances = (z[first] - z[second]).square().sum(1)
    apart = pairs & (distances > 0)
    middle = (apart.sum() - 1).clamp(min=0) // 2
    ordered = torch.where(apart, distances, torch.inf).sort().values
    median = ordered.gather(0, middle.view(1)).squeeze(0) if len(ordered) else distances.sum()
    sigma = torch.where(apart.any(), median, 1.0)
    near = torch.where(pairs, torch.exp(-distances / sigma), 0.0)
    return near.sum() / pairs.sum().clamp(min=1), sigma


def _counted(batch: fm.Batch) -> Tensor:
    return torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
