"""One small, possible case of every partition, for tests that hold for all of them. Nothing here is checked itself."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.partitions import Partition, labels_only
from fedloom.data.partitions.classes import IID, NID2, Classes, Pachinko, Pathological, Quantity
from fedloom.data.partitions.dirichlet import Dirichlet, DirichletEqual, DirichletFedMA, ExtendedDirichlet
from fedloom.data.partitions.domains import DirichletDomains, Domains
from fedloom.data.partitions.natural import Natural


@dataclass(frozen=True)
class Case:
    """A partition with data that it can deal: no client below `least`; `complete` if every sample is dealt."""

    partition: Partition
    train: Dataset
    test: Dataset
    clients: int
    least: int
    complete: bool
    tests_overlap: bool = False


def shuffled(per_class: int, classes: int, seed: int, uneven: bool = False, domains: int = 3) -> Dataset:
    """`per_class` samples of a class, up to twice as many if uneven, in random order; every domain has all classes."""
    rng = np.random.default_rng(seed)
    sizes = per_class + (rng.integers(0, per_class + 1, classes) if uneven else 0)
    labels = np.repeat(np.arange(classes), sizes)
    order = rng.permutation(len(labels))
    names = [f"domain{d}" for d in range(domains)]
    return labels_only(labels[order], [str(c) for c in range(classes)], order % domains, names)


def pair(seed: int, per_class: int = 40, classes: int = 10, uneven: bool = True) -> tuple[Dataset, Dataset]:
    return shuffled(per_class, classes, seed, uneven), shuffled(per_class // 2, classes, seed + 1, uneven)


CASES: dict[str, Callable[[int], Case]] = {
    "iid": lambda s: Case(IID(), *pair(s), 7, 40, True),
    "dirichlet": lambda s: Case(Dirichlet(alpha=0.5, min_samples=12), *pair(s), 7, 12, True),
    "dirichlet plain": lambda s: Case(Dirichlet(alpha=1e-3, min_samples=0), *pair(s, 3), 30, 0, True),
    "dirichlet-fedma": lambda s: Case(DirichletFedMA(alpha=0.5, min_test=2), *pair(s), 7, 10, True),
    "dirichlet-equal": lambda s: Case(DirichletEqual(alpha=0.2), *pair(s), 23, 17, True),
    "extended-dirichlet": lambda s: Case(ExtendedDirichlet(classes_per_client=4, alpha=2.0), *pair(s), 7, 10, True),
    "nid2": lambda s: Case(NID2(), *pair(s), 6, 1, False),
    "classes": lambda s: Case(Classes(classes_per_client=4), *pair(s), 5, 20, True),
    "pathological": lambda s: Case(Pathological(classes_per_client=3), *pair(s), 10, 1, False),
    "pachinko": lambda s: Case(Pachinko(), *pair(s, 8, 100), 13, 1, False),
    "quantity": lambda s: Case(Quantity(alpha=0.5), *pair(s), 7, 10, True),
    "domains": lambda s: Case(Domains(clients_per_domain=2), *pair(s), 6, 1, True),
    "dirichlet-domains": lambda s: Case(
        DirichletDomains(alpha=3.0, domain_parts=2, clients_per_domain=2), *pair(s), 6, 20, True, tests_overlap=True
    ),
    "natural": lambda s: Case(Natural(), *pair(s), 3, 1, True),
    "natural subset": lambda s: Case(Natural(sample_ids=True), *pair(s), 2, 1, False),
}
