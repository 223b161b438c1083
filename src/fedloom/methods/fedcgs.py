from typing import Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts.one_shot import OneShotHead, OneShotOptions, SumsRound, conditioned, gaussian_head

LARGEST_CONDITION = 1e8


class GaussianHead(SumsRound):
    """The closing round of FedCGS."""

    class Options(OneShotOptions):
        gamma: float = fm.option(
            0.1, "gamma, added to the variance of every feature; the released code adds nothing.", ge=0
        )
        covariance: Literal["all", "within"] = fm.option(
            "all", "Covariance of all features, as in released code, or within classes, as in LDA."
        )

    def head(self, uploads: fm.Uploads, classes: int) -> tuple[Tensor, Tensor]:
        means, shares, covariance = self.gaussians(uploads, classes)
        return gaussian_head(means, conditioned(covariance, LARGEST_CONDITION)[0], shares)

    def gaussians(self, uploads: fm.Uploads, classes: int) -> tuple[fm.ClassTable, Tensor, Tensor]:
        """Return class means [C, d], class shares [C] and the covariance [d, d] with gamma added."""
        means, shares, squares, samples = self.means(uploads)
        several, weights = len(shares) > classes, shares
        if several:  # the covariance within the two sides of a label is a mean over labels
            recorded = shares[:-1].view(2, classes).sum(0).repeat(2)
            weights = shares[:-1] / recorded.clamp(min=1e-300) / (recorded > 0).sum().clamp(min=1) * 2
        if self.options.covariance == "all":
            centre = means.values[-1] if several else shares @ means.values
            between = torch.outer(centre, centre)
        else:
            rows = means.values[: len(weights)]
            between = (rows.T * weights) @ rows
        scatter = samples * (squares - between)
        identity = torch.eye(len(squares), dtype=squares.dtype)
        return means, shares, scatter / max(samples - 1, 1) + self.options.gamma * identity

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        means, _, covariance = self.gaussians(uploads, ctx.task.num_classes)
        missing = int((~means.held[: ctx.task.num_classes]).sum())
        condition, diagnostics = conditioned(covariance, LARGEST_CONDITION)[1], list[fm.Diagnostic]()
        if condition > LARGEST_CONDITION:
            message = (
                f"the covariance of the features has the condition {condition:.1e}: directions without variance got a "
                "little; fewer features, more samples or a larger gamma would make the head certain"
            )
            diagnostics.append(fm.Diagnostic("fedcgs.condition", message, condition))
        if missing:
            message = f"{missing} classes have no sample at any client: the head never names them"
            diagnostics.append(fm.Diagnostic("fedcgs.missing_classes", message, float(missing)))
        return diagnostics


@fm.register
class FedCGS(OneShotHead):
    """FedCGS: FedAvg, whose head is replaced at the end by one of class Gaussians, made in one round of sums. Guan et
    al., AAAI 2025, arXiv 2503.06962.

    In a closing round clients send sums over their samples: of z by class, of z z^T, and class counts. With the means
    M_c and the covariance S of all features, gamma I added, the head's rows are S^-1 M_c, its bias -M_c S^-1 M_c / 2 +
    log(n_c / N). Any split of the same samples over clients gives the same head."""

    Options = GaussianHead.Options
    head_round = GaussianHead

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        if "head.bias" not in tasks[0].init:
            raise fm.ConfigError(f"{self.name()} needs a head with a bias, which has the shares of the classes in it")
        return super().examine(tasks, participants)
