import torch
from torch import Tensor
from torch.nn.functional import normalize

import fedloom.methods as fm
from fedloom.methods.parts.one_shot import MeansRound, OneShotHead, OneShotOptions, masking_bias


class CovarianceHead(MeansRound):
    """The closing round of FedCOF."""

    class Options(OneShotOptions):
        gamma: float = fm.option(0.1, "gamma, added to the variance of every feature within a class.", ge=0)

    def head(self, uploads: fm.Uploads, classes: int) -> tuple[Tensor, Tensor]:
        means, counts = self.class_means(uploads)
        spread, totals = covariances(fm.tables_of(uploads, "means"), counts, means), counts.sum(0)
        # all classes are one problem, and so are the two sides of each of several labels
        parts = torch.arange(len(totals)).view(-1, classes)
        rows = torch.empty_like(means.values)
        for part in parts.T if len(parts) > 1 else parts:
            gram = self.gram(fm.ClassTable(means.values[part], means.held[part]), spread[part], totals[part])
            if not gram.isfinite().all():
                return torch.full_like(means.values, torch.nan), masking_bias(means.held)
            sums = totals[part].unsqueeze(1) * means.values[part]
            rows[part] = sums @ torch.linalg.pinv(gram, hermitian=True)
        return normalize(rows, dim=1, eps=1e-12), masking_bias(means.held)

    def gram(self, means: fm.ClassTable, spread: Tensor, totals: Tensor) -> Tensor:
        """Return sum_c (n_c - 1) (Sigma_c + gamma I) + N mu mu^T [d, d], with `spread` Sigma_c and `totals` n_c."""
        # degrees of freedom: a class of one sample has no spread
        free = (totals - 1).clamp(min=0)
        centre = (totals / totals.sum().clamp(min=1)) @ means.values
        identity = torch.eye(len(centre), dtype=centre.dtype)
        within = torch.einsum("c,cij->ij", free, spread) + free.sum() * self.options.gamma * identity
        gram: Tensor = within + totals.sum() * torch.outer(centre, centre)
        return gram

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        holders = fm.tables_of(uploads, "means").held.sum(0)[: ctx.task.num_classes]
        alone = int((holders <= 1).sum())
        if not alone:
            return []
        message = f"{alone} classes have at most one holder: gamma takes the place of their covariance"
        return [fm.Diagnostic("fedcof.one_holder", message, float(alone))]


def covariances(tables: fm.ClassTable, counts: Tensor, means: fm.ClassTable) -> Tensor:
    """Estimate the covariance within each class [C, d, d] from the clients' class means alone (`tables` [m, C, d],
    class `counts` [m, C]): Sigma_c = sum_k n_k^c (mu_k^c - mu_c)(...)^T / (K_c - 1) over the K_c holders."""
    apart = torch.where(tables.held.unsqueeze(2), tables.values.double() - means.values, 0.0)
    scatter: Tensor = torch.einsum("kc,kci,kcj->cij", counts, apart, apart)
    holders = tables.held.sum(0)
    # division by infinity gives the 0 of a class with one holder
    divisor = torch.where(holders > 1, holders - 1, torch.inf)
    return scatter / divisor.view(-1, 1, 1)


@fm.register
class FedCOF(OneShotHead):
    """FedCOF: FedAvg, whose head is replaced at the end by a regression whose covariances come from class means alone.
    Goswami et al., NeurIPS 2025, arXiv 2412.14326.

    In a closing round clients send class means of z and class counts. The spread of the clients' means estimates the
    covariance Sigma_c within class c. With G = sum_c (n_c - 1) (Sigma_c + gamma I) + N mu mu^T, the head's rows are G^+
    n_c mu_c, made unit, without bias. Few clients make Sigma_c poor in rank, and gamma does the work."""

    Options = CovarianceHead.Options
    head_round = CovarianceHead
