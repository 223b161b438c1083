"""Feature skew: every client sees one domain."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.partition import Dealt, Partition, partition, require_clients
from fedloom.data.views import Indices, Views, even_sizes


@partition("domains")
class Domains(Partition):
    """One domain per client, in the source's order; or several clients per domain, which share it evenly.

    Client k holds samples of domain floor(k / clients_per_domain) alone, dealt at random within the domain; its test
    view is of the same domain. FedBN (Li et al. 2021, arXiv 2102.07623) and Fed-CO2 (`clients_per_domain: 1`). The
    source must know the domain of each sample.

    Example:
        >>> data = labels_only([0, 1] * 10, domain=[0] * 12 + [1] * 8, domains=["photo", "sketch"])
        >>> Domains(clients_per_domain=2).deal(data, data, 4, rng).train.sizes
        array([6, 6, 4, 4])
    """

    clients_per_domain: int = Field(
        1,
        ge=1,
        description="Number of clients that share each domain evenly.",
    )

    def without_domain(self, domain: int, clients: int) -> tuple[Partition, int]:
        return self, clients - self.clients_per_domain

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        domain_ids, test_domain_ids = domains_of("domains", train), domains_of("domains", test)
        per_domain, domains = self.clients_per_domain, len(train.domains)
        require_clients(
            "domains", clients, per_domain * domains, f"gives each of {domains} domains {per_domain} client(s)"
        )
        sizes = np.bincount(domain_ids, minlength=domains)
        if sizes.min() < per_domain:
            raise ConfigError(
                f"partition domains: domain {train.domains[sizes.argmin()]} has {sizes.min()} training samples for "
                f"{per_domain} clients; lower clients_per_domain"
            )
        return Dealt(_deal(domain_ids, per_domain, clients, rng), _deal(test_domain_ids, per_domain, clients, rng))


def _deal(domain_ids: Indices, per_domain: int, clients: int, rng: np.random.Generator) -> Views:
    owner = np.empty(len(domain_ids), np.int64)
    for domain in range(clients // per_domain):
        members = rng.permutation(np.flatnonzero(domain_ids == domain))
        owner[members] = domain * per_domain + np.repeat(np.arange(per_domain), even_sizes(len(members), per_domain))
    return Views.from_owners(owner, clients)


def domains_of(name: str, data: Dataset) -> Indices:
    """Return the domain of each sample [n], int64. Raises `ConfigError` if the source knows none.

    Args:
        name: name of the partition, for the message.
        data: the training set.
    """
    if data.domain is None or not data.domains:
        instead = "use one that does, such as office-caltech10, or deal by label"
        if data.features:
            instead = "name the column of the rows' owner (`owner: COLUMN`), or deal by label"
        raise ConfigError(f"partition {name}: this source has no domains; {instead}")
    return data.domain.numpy()
