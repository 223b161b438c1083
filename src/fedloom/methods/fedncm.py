from torch import Tensor
from torch.nn.functional import normalize

import fedloom.methods as fm
from fedloom.methods.parts.one_shot import MeansRound, OneShotHead, masking_bias


class MeansHead(MeansRound):
    """The closing round of FedNCM."""

    def head(self, uploads: fm.Uploads, classes: int) -> tuple[Tensor, Tensor]:
        means, _ = self.class_means(uploads)
        return normalize(means.values, dim=1, eps=1e-12), masking_bias(means.held)


@fm.register
class FedNCM(OneShotHead):
    """FedNCM: FedAvg, whose head is replaced at the end by the unit means of the classes' features. Legate et al.,
    NeurIPS 2023, arXiv 2306.03937.

    In a closing round clients send class means of z and class counts. Row c of the head is mu_c / |mu_c|, with mu_c the
    mean of class c over all clients; it has no bias."""

    head_round = MeansHead
