"""Clients that each belong to one domain, whole or cut by Dirichlet draws."""

import numpy as np
from pydantic import Field

from fedloom.data.dataset import Dataset
from fedloom.data.partitions.dirichlet import balanced_cut
from fedloom.data.partitions.partition import Alpha, Dealt, Partition, partition, shuffled_classes
from fedloom.data.views import Indices, Views, even_sizes, matched_counts


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

    takes_multi = True
    deals = "domains"
    clients_per_domain: int = Field(1, ge=1, description="Number of clients that share each domain evenly.")

    def without_domain(self, domain: int, clients: int) -> tuple[Partition, int]:
        return self, clients - self.clients_per_domain

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        domain_ids, test_domain_ids = domains_of(self, train), domains_of(self, test)
        per_domain, domains = self.clients_per_domain, len(train.domains)
        self.require_clients(clients, per_domain * domains, f"gives each of {domains} domains {per_domain} client(s)")
        sizes = np.bincount(domain_ids, minlength=domains)
        if sizes.min() < per_domain:
            raise self.refusal(
                f"domain {train.domains[sizes.argmin()]} has {sizes.min()} training samples for "
                f"{per_domain} clients; lower clients_per_domain"
            )
        return Dealt(_deal(domain_ids, per_domain, clients, rng), _deal(test_domain_ids, per_domain, clients, rng))


def _deal(domain_ids: Indices, per_domain: int, clients: int, rng: np.random.Generator) -> Views:
    # Every sample gets an owner: clients / per_domain is the number of domains, as `deal` has checked.
    owner = np.empty(len(domain_ids), np.int64)
    for domain in range(clients // per_domain):
        members = rng.permutation(np.flatnonzero(domain_ids == domain))
        owner[members] = domain * per_domain + np.repeat(np.arange(per_domain), even_sizes(len(members), per_domain))
    return Views.from_owners(owner, clients)


def domains_of(dealer: Partition, data: Dataset) -> Indices:
    """Return the domain of each sample [n], int64. Raises `ConfigError`, for the partition, if data have none."""
    if data.domain is None or not data.domains:
        instead = "use one that does, such as office-caltech10, or deal by label"
        if data.features:
            instead = "name the column of the rows' owner (`owner: COLUMN`), or deal by label"
        raise dealer.refusal(f"this source has no domains; {instead}")
    return data.domain.numpy()


@partition("dirichlet-domains")
class DirichletDomains(Partition):
    """Every domain cut into parts by Dirichlet(alpha), class by class; a client holds one part of one domain.

    Fed-CO2's label plus feature skew (Digits 3 parts, alpha 0.3; DomainNet 5, 2.0; Office 2, 1.0). Within a domain the
    cut is that of `dirichlet-fedma`. Draws are counted over all domains.

    The test view is random test images of the domain in the client's own mix, as many as there are: floor(r train_c)
    of class c, r = min_c test_c / train_c. Clients of one domain may share test images.

    Example:
        >>> data = labels_only([0, 1] * 100, domain=[0] * 100 + [1] * 100, domains=["photo", "sketch"])
        >>> dealt = DirichletDomains(alpha=1.0, domain_parts=2).deal(data, data, 2, rng)
        >>> np.unique(data.domain[dealt.test[1]])
        array([1])
    """

    deals = "domains"
    alpha: Alpha = Field(examples=[0.3])
    domain_parts: int = Field(ge=2, description="Number of parts that each domain is cut into.", examples=[3])
    clients_per_domain: int = Field(1, ge=1)
    domain_part: int | tuple[int, ...] = 0
    one_in: int | tuple[int, ...] = 1
    min_per_class: int = Field(2, ge=1)
    max_draws: int = Field(100_000, ge=1, description="Largest number of draws before the partition is refused.")

    def without_domain(self, domain: int, clients: int) -> tuple[Partition, int]:
        lists = {key: value for key in ("domain_part", "one_in") if isinstance(value := getattr(self, key), tuple)}
        shorter = {key: (*value[:domain], *value[domain + 1 :]) for key, value in lists.items()}
        return self.model_copy(update=shorter), clients - self.clients_per_domain

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        domain_ids, test_domain_ids = domains_of(self, train), domains_of(self, test)
        per_domain, domains = self.clients_per_domain, train.domains
        self.require_clients(
            clients, per_domain * len(domains), f"gives each of {len(domains)} domains {per_domain} client(s)"
        )
        if per_domain > self.domain_parts:
            raise self.refusal(f"{per_domain} clients per domain, but only {self.domain_parts} parts")
        first_parts = self._per_domain("domain_part", self.domain_part, len(domains), 0, self.domain_parts - 1)
        one_in = self._per_domain("one_in", self.one_in, len(domains), 1, len(train))
        lists, tests, draws = [], [], 0
        for domain, name in enumerate(domains):
            rows, test_rows = np.flatnonzero(domain_ids == domain), np.flatnonzero(test_domain_ids == domain)
            class_rows = shuffled_classes(train.y.numpy()[rows], train.num_classes, rng)
            test_class_rows = shuffled_classes(test.y.numpy()[test_rows], train.num_classes, rng)
            test_sizes = [len(rows_of_class) for rows_of_class in test_class_rows]
            sizes, domain_draws = self._cut(np.array([*map(len, class_rows)]), name, train.classes, rng)
            draws += domain_draws
            for number in range(per_domain):
                part = (first_parts[domain] + number) % self.domain_parts
                first_samples, train_counts = sizes[:part].sum(0), np.maximum(1, sizes[part] // one_in[domain])
                lists.append(rows[_take(class_rows, first_samples, train_counts)])
                # Shuffled for each client: those of one domain may share test images, and each draws independently.
                shuffled_test_rows = [rng.permutation(rows_of_class) for rows_of_class in test_class_rows]
                test_counts = matched_counts(train_counts, np.array(test_sizes))
                if not test_counts.any():
                    missing = train.classes[test_sizes.index(0)]
                    detail = f"no test view can match client {len(lists) - 1}'s mix"
                    raise self.refusal(f"domain {name} has no test sample of class {missing}; {detail}")
                tests.append(test_rows[_take(shuffled_test_rows, np.zeros_like(test_counts), test_counts)])
        return Dealt(Views.from_lists(lists), Views.from_lists(tests), draws, len(domains))

    def _cut(
        self, counts: Indices, domain: str, classes: tuple[str, ...], rng: np.random.Generator
    ) -> tuple[Indices, int]:
        """Sizes of the parts of one domain [P, C], and the number of draws."""
        needed = self.domain_parts * self.min_per_class
        if counts.min() < needed:
            raise self.refusal(
                f"domain {domain} has {counts.min()} training samples of class {classes[int(counts.argmin())]}; "
                f"{self.domain_parts} parts of {self.min_per_class} need {needed}"
            )
        goal = (
            f"{self.domain_parts} parts of domain {domain} {self.min_per_class} samples of every class; raise alpha or "
            "max_draws, or lower domain_parts or min_per_class"
        )
        least = self.min_per_class
        cut = balanced_cut(self, counts, self.domain_parts, lambda _, sizes: sizes.min((1, 2)) >= least, goal, rng)
        return cut.sizes, cut.draws

    def _per_domain(self, key: str, value: int | tuple[int, ...], domains: int, low: int, high: int) -> list[int]:
        values = [value] * domains if isinstance(value, int) else list(value)
        if len(values) != domains or not all(low <= number <= high for number in values):
            raise self.refusal(f"{key} = {value}; need one number or {domains} of them, from {low} to {high}")
        return values


def _take(class_rows: list[Indices], first_samples: Indices, counts: Indices) -> Indices:
    """Return `counts` [C] samples of each class, from position `first_samples` [C] on."""
    pieces = zip(class_rows, first_samples, counts, strict=True)
    return np.concatenate([rows[first : first + count] for rows, first, count in pieces])
