from typing import Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts.prototypes import shares


@fm.register
class FedDisco(fm.Method):
    """FedDisco: clients weigh by size and by how even their labels are. Ye et al., ICML 2023, arXiv 2305.19229.

    Down, local: as FedAvg.   Up: weights, number of samples, discrepancy d_k (one number that tells of the labels).
    Server: p_k in proportion to max(0, n_k / n - a d_k + b), n over the participants; w <- sum_k p_k w_k."""

    spec = fm.Spec(
        sends={
            "model": fm.Sent(),
            "discrepancy": fm.Sent(
                per_client=True, labels=True, statistic="distance of the label mix from equal shares"
            ),
        },
        single_because="its weights compare shares of classes that exclude each other",
    )

    class Options(fm.Options):
        a: float = fm.option(
            0.5, "Factor of a client's discrepancy, which is subtracted from its share of samples.", ge=0
        )
        b: float = fm.option(0.1, "Number added to every client's weight.", ge=0)
        distance: Literal["l2", "kl"] = fm.option("l2", "Distance of the client's label shares from 1 / C.")
        normalised: bool = fm.option(
            False, "Divide the distance by its sum over the participants, so that a means the same for both distances."
        )

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, state = super().end(work, state, ctx)
        return payload | {"discrepancy": discrepancy(ctx.class_counts, self.options.distance)}, state

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        numbers = (fm.numbers_of(uploads, key) for key in ("samples", "discrepancy"))
        samples, distances = (torch.tensor(values, dtype=torch.float64) for values in numbers)
        if self.options.normalised:
            distances = distances / distances.sum().clamp(min=1e-12)
        # a client whose labels are far from even can fall below 0 and is then left out
        weights = (shares(samples) - self.options.a * distances + self.options.b).relu()
        return {"model": self.mean(uploads, weights=weights.tolist() if weights.any() else "samples")}


def discrepancy(counts: Tensor, distance: str) -> float:
    """Return how far the label shares of counts [C] are from 1 / C: the 2-norm, or KL(shares || uniform)."""
    label_shares, even = shares(counts), 1 / len(counts)
    if distance == "l2":
        return float((label_shares - even).norm())
    return float(torch.xlogy(label_shares, label_shares / even).sum())
