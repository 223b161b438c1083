import torch
from torch import Tensor
from torch.nn.functional import normalize

import fedloom.methods as fm
from fedloom.methods.parts.one_shot import OneShotHead, OneShotOptions, SumsRound, masking_bias


class RidgeHead(SumsRound):
    """The closing round of Fed3R."""

    class Options(OneShotOptions):
        ridge: float = fm.option(0.01, "lambda, the ridge penalty of the regression on labels.", gt=0)

    def head(self, uploads: fm.Uploads, classes: int) -> tuple[Tensor, Tensor]:
        means, shares, squares, samples = self.means(uploads)
        gram = samples * squares + self.options.ridge * torch.eye(len(squares), dtype=squares.dtype)
        sums = samples * shares.unsqueeze(1) * means.values
        if len(sums) > classes:  # targets of several labels are 1 and -1
            sums = sums[:classes] - sums[classes : 2 * classes]
        return normalize(torch.linalg.solve(gram, sums.T).T, dim=1, eps=1e-12), masking_bias(means.held[:classes])


@fm.register
class Fed3R(OneShotHead):
    """Fed3R: FedAvg, whose head is replaced at the end by a ridge regression on the labels, solved from sums. Fani et
    al., ICML 2024, arXiv 2406.01116.

    In a closing round clients send sums over their samples: of z by class and of z z^T. The rows of the head are (sum z
    z^T + lambda I)^-1 n_c mu_c, made unit, with mu_c the mean of class c over all clients; it has no bias."""

    Options = RidgeHead.Options
    head_round = RidgeHead
