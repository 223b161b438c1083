"""The report of a finished round, the round that an observer sees, and the balance of a loss's terms."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from fedloom.core.records import Record
from fedloom.engine.jobs import Job, JobResult
from fedloom.methods.contract.contexts import Diagnostic, ServerContext
from fedloom.methods.contract.method import Method, Uploads


@dataclass(slots=True)
class Seconds:
    """Wall-clock seconds of a round: clients' work, aggregation, and everything between server and clients."""

    train: float = 0.0
    aggregate: float = 0.0
    move: float = 0.0

    @staticmethod
    def of_round(
        started: float, arrived: float, aggregated: float, observed: float, ended: float, of_clients: float
    ) -> "Seconds":
        """Divide a round by the times at which it started, all results arrived, the server had aggregated, the observer
        had observed, and the round ended. The observer's time counts nowhere. `of_clients`: the sum of their times."""
        # clients that train side by side take wall-clock time once
        train = min(of_clients, arrived - started)
        aggregate = aggregated - arrived + ended - observed
        return Seconds(train, aggregate, max(0.0, aggregated - started + ended - observed - train - aggregate))

    def __add__(self, seconds: "Seconds") -> "Seconds":
        return Seconds(self.train + seconds.train, self.aggregate + seconds.aggregate, self.move + seconds.move)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One finished round. An opening round is part of the report of the first round, a closing round of the last one.

    Attributes:
        bytes_up, bytes_down: serialised uploads and payloads.
        terms: mean of each loss term over the clients, weighted by samples.
        steps, samples: gradient steps and samples that all clients processed.
        samples_by_group: training samples of the participating clients, by architecture group; those of an opening and
            a closing round are separate, and their bytes, steps and samples are included above.
        figures: numbers that the method reports (`Method.figures`).
    """

    round: int
    participants: tuple[int, ...]
    bytes_up: int
    bytes_down: int
    terms: Mapping[str, float]
    steps: int
    samples: int
    samples_by_group: Mapping[int, int]
    seconds: Seconds
    diagnostics: list[Diagnostic] = field(default_factory=list)
    closing_samples_by_group: Mapping[int, int] = field(default_factory=dict)
    opening_samples_by_group: Mapping[int, int] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)

    def with_stages(self, opening: "RoundReport | None", closing: "RoundReport | None") -> "RoundReport":
        """Return this report with the costs and diagnostics of the opening and closing round, if they ran, added."""
        report = self
        for other in filter(None, (opening, closing)):
            names = "bytes_up", "bytes_down", "steps", "samples", "seconds", "diagnostics"
            report = replace(report, **{name: getattr(report, name) + getattr(other, name) for name in names})
            if virtual := other.figures.get("virtual_seconds"):
                total = virtual + report.figures["virtual_seconds"]
                report = replace(report, figures={**report.figures, "virtual_seconds": total})
        first, last = (stage.samples_by_group if stage else {} for stage in (opening, closing))
        return replace(report, opening_samples_by_group=first, closing_samples_by_group=last)


@dataclass(frozen=True, slots=True)
class ObservedRound:
    """A round whose uploads were aggregated, before the federation takes the new states over."""

    method: Method
    ctx: ServerContext
    before: Record  # the server's states
    after: Record
    payloads: Mapping[int, Record]  # of the participants, by client id
    uploads: Uploads  # unpacked
    samples: Mapping[int, int]  # of every client that has some
    job: Callable[[int], Job]  # returns any client's job in this round, from the states before the round


class RoundObserver(Protocol):
    """Watches the rounds of a federation, without those before the first and after the last. It changes nothing."""

    def observe(self, observed: ObservedRound) -> None: ...


# Rounds in which gradients are measured: early, but not in round 1, in which many methods have no server knowledge yet.
# Inactive terms are reported in the last of them, because some terms grow.
ROUNDS = range(2, 6)
MOST_CLIENTS = 20  # of a round; measured steps are not replayed, and a hundred of them take longer than the round
INACTIVE, DOMINATING = 0.01, 10.0
CE = "ce"


def measured_clients(round_: int, clients: Sequence[int]) -> frozenset[int]:
    """Return the clients of round `round_` whose gradients are measured: all if they are few, else some of all parts.

    Example:
        >>> sorted(measured_clients(2, range(50)))
        [0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45, 48]
    """
    return frozenset(clients[:: -(-len(clients) // MOST_CLIENTS)]) if clients and round_ in ROUNDS else frozenset()


def gradient_norms(
    terms: Mapping[str, Tensor], parameters: Sequence[Tensor], *, stacked: bool = False
) -> dict[str, Tensor]:
    """Return the norm [] of each term's gradient by the parameters, terms "ce..." summed; empty unless there are others
    too. The graph is kept. With `stacked`, terms, norms [K] and parameters [K, ...] are of K clients."""
    cross_entropies = [term for name, term in terms.items() if name.startswith(CE)]
    other_terms = {name: term for name, term in terms.items() if not name.startswith(CE)}
    if not cross_entropies or not other_terms:
        return {}
    compared = {CE: torch.stack(cross_entropies).sum(0)} | other_terms
    return {name: _gradient_norm(term, parameters, stacked) for name, term in compared.items()}


def gradient_ratios(norms: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each term's norm over that of cross-entropy, both summed over clients: one of a single class has none."""
    measured = [client for client in norms if client]
    reference = max(sum(client[CE] for client in measured), 1e-12)
    names = dict.fromkeys(name for client in measured for name in client if name != CE)
    return {name: sum(client.get(name, 0.0) for client in measured) / reference for name in names}


def balance_diagnostics(method: str, ratios: Mapping[str, float], round_: int, rounds: int) -> list[Diagnostic]:
    """Return diagnostics of the loss terms that dominate or are inactive, by the ratios measured in round `round_`.
    Inactive ones are reported in the last of `ROUNDS`, or of the run's rounds. Codes start with the method's name."""
    diagnostics = []
    for name, ratio in ratios.items():
        if ratio > DOMINATING:
            message = f"{method}: the loss term {name} dominates: its gradient is {ratio:.1f} times cross-entropy's"
            diagnostics.append(Diagnostic(f"{method}.dominating_{name}", message, ratio))
        if ratio < INACTIVE and round_ == min(ROUNDS[-1], rounds):
            message = f"{method}: the loss term {name} is inactive: its gradient is {ratio:.1e} of cross-entropy's"
            diagnostics.append(Diagnostic(f"{method}.inactive_{name}", message, ratio))
    return diagnostics


def _gradient_norm(term: Tensor, parameters: Sequence[Tensor], stacked: bool) -> Tensor:
    if not term.requires_grad:
        return torch.zeros(term.shape)
    gradients = torch.autograd.grad(term.sum(), parameters, retain_graph=True, allow_unused=True)
    squares = [gradient.double().square() for gradient in gradients if gradient is not None]
    sums = [square.flatten(1).sum(1) if stacked else square.sum() for square in squares]
    return torch.stack(sums).sum(0).sqrt() if sums else torch.zeros(term.shape)


def mean_terms(results: Sequence[JobResult]) -> dict[str, float]:
    """Return loss terms averaged over the clients that report them, in order of ids, weighted by samples processed."""
    names = dict.fromkeys(name for result in results for name in result.terms)
    means = {}
    for name in names:
        pairs = [(r.terms[name], r.samples) for r in results if name in r.terms and r.samples]
        total = sum(weight for _, weight in pairs)
        means[name] = sum(value * weight for value, weight in pairs) / total if total else 0.0
    return means


def divergence(method: str, results: Sequence[JobResult], round_: int) -> list[Diagnostic]:
    """Return a diagnostic if losses of participants are not finite in round `round_`. The run continues as it is. The
    method's name begins its code; `results` are those of the participants."""
    diverged = sum(not all(math.isfinite(value) for value in result.terms.values()) for result in results)
    if not diverged:
        return []
    message = f"diverged: in round {round_} the losses of {diverged} of {len(results)} participants are not finite"
    return [Diagnostic(f"{method}.diverged", message, float(diverged))]
