"""Five biased clients and one that sees every class."""

from __future__ import annotations

import numpy as np

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.dealing import deal_by_counts
from fedloom.data.partitions.partition import Dealt, Partition, partition, require_clients
from fedloom.data.views import Indices

_BIASED = 5


@partition("nid2")
class NID2(Partition):
    """FedSC's second setting (after FedDisco's `noniid-2`): 5 biased clients with C/5 classes each, 1 with all classes.

    With n_c samples of class c and s_c = floor(n_c / 6): client i in 0 .. 4 gets 5 s_c samples of each class from
    i C/5 to (i+1) C/5 - 1, client 5 gets s_c of every class. On balanced data all six hold C s samples (CIFAR-10:
    8,330); the n_c - 6 s_c left over go to nobody. Test views follow the same rule.

    Example:
        >>> data = labels_only(list(range(5)) * 12)
        >>> NID2().deal(data, data, 6, rng).train.class_counts(data.y.numpy(), 5).diagonal()
        array([10, 10, 10, 10, 10])
    """

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        require_clients("nid2", clients, _BIASED + 1, "has 5 biased clients and one with all classes")
        if train.num_classes % _BIASED:
            raise ConfigError(
                f"partition nid2: gives each of 5 clients a fifth of the classes; need a multiple of 5 classes, the "
                f"source has {train.num_classes}"
            )
        labels, test_labels = train.y.numpy(), test.y.numpy()
        counts = np.bincount(labels, minlength=train.num_classes)
        if counts.min() <= _BIASED:
            raise ConfigError(
                f"partition nid2: class {counts.argmin()} has {counts.min()} training samples; 6 clients need 6 or more"
            )
        test_counts = np.bincount(test_labels, minlength=train.num_classes)
        return Dealt(
            deal_by_counts(labels, _counts(counts), rng), deal_by_counts(test_labels, _counts(test_counts), rng)
        )


def _counts(available: Indices) -> Indices:
    """Samples per client and class [6, C] of `available` [C]."""
    sixths, classes = available // (_BIASED + 1), np.arange(len(available))
    counts = np.zeros((_BIASED + 1, len(available)), np.int64)
    counts[classes * _BIASED // len(available), classes] = _BIASED * sixths
    counts[_BIASED] = sixths
    return counts
