"""Measures the drift of every round, and splits it into its local, sampling and server parts.

Delta is the change of the global model in the round, u_k the change of client k's weights in training, p_k its share of
the samples, S the participants, N all clients, and c the change in the centralised round (`synchronous_round`). Then

    Delta - c  =  (sum_N p_k u_k - c)  +  (sum_S p_k u_k / sum_S p_k - sum_N p_k u_k)  +  (Delta - sum_S ...)
    drift      =  local                +  sampling                                     +  server

All clients train once more for it, so it is for simulations."""

import copy
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record, get_tree
from fedloom.core.streams import GlobalGenerators
from fedloom.core.trees import Tree
from fedloom.engine import Federation, Worker
from fedloom.engine.batch_sampler import BatchSampler, EpochBatches, PhasePlan
from fedloom.engine.jobs import Draws, Job
from fedloom.engine.optimizer import Optimizer
from fedloom.engine.round_report import ObservedRound
from fedloom.engine.steps import trainable_names
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Batch, Consts, Predictor, Train, cross_entropy
from fedloom.nets.net import Net, deep_copy
from fedloom.nets.user_model import error_line
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.drift.updates import client_updates, flat, ratio, update_figures, weight_names
from fedloom.runs.storage.log import DriftLog, DriftRound, DriftValue, Row, new_row
from fedloom.runs.storage.run_folder import RunFolder


@dataclass(slots=True)
class _Client:
    """A client's share of the samples, its draws as in its own round, and the batches of its present epoch."""

    share: float
    job: Job
    draws: Draws
    random_numbers: GlobalGenerators
    plan: PhasePlan
    batches: EpochBatches | None = None
    epoch: int = 0

    def next_batch(self, sampler: BatchSampler) -> Batch | None:
        """The next batch of the client's passes over its data; None after the last."""
        while self.batches is None or not len(self.batches):
            if self.epoch == self.plan.epochs or not self.plan.epoch_batches:
                return None
            self.batches = sampler.batches(self.job, self.draws, 1.0, self.epoch, self.plan.batches(self.epoch))
            self.epoch += 1
        return self.batches.take()


def synchronous_round(worker: Worker, predictor: Predictor, jobs: Mapping[int, Job]) -> Tree:
    """Train on the data of all clients for one round without letting them move apart, and return the weights:
    synchronous (minibatch) SGD with the run's optimiser (Woodworth et al., ICML 2020, arXiv 2002.07839). Each step
    averages, by samples, the clients' gradients on their next batches at the common weights; `jobs`, by client, have
    batches and random numbers, and start at the model `predictor`."""

    def loss(net: Net, batch: Batch, consts: Consts) -> Tensor:
        return batch.mean(cross_entropy(predictor.logits(net, batch.x), batch.y))

    first = next(iter(jobs.values())).ctx
    loaded_net, sampler = worker.loaded_nets[first.task.group], worker.sampler
    phase = Train(loss, first.task.local_epochs)
    loaded_net.load(predictor.tree)
    names = trainable_names(loaded_net.parameters, phase, first)
    parameters = [loaded_net.parameters[name] for name in names]
    optimizer = Optimizer(worker.local_training.optimizer, parameters, first.round)
    total = sum(job.ctx.samples for job in jobs.values())
    clients = []
    for job in jobs.values():
        random_numbers = first.task.streams.resumable("dropout", job.ctx.round, job.ctx.client, worker.device)
        plan = PhasePlan.of(sampler, phase, job)
        share = job.ctx.samples / total
        clients.append(_Client(share, job, sampler.generators(job), random_numbers, plan))
    worker.set_modes(loaded_net.net, phase, first.task.roles)
    while gradients := _mean_gradient(loaded_net.net, phase, parameters, clients, sampler):
        optimizer.step(gradients)
    loaded_net.net.eval()
    return loaded_net.weights()


def _mean_gradient(
    net: Net, phase: Train, parameters: Sequence[Tensor], clients: Sequence[_Client], sampler: BatchSampler
) -> list[Tensor]:
    """The mean of the gradients on each client's next batch, summed in float64; empty where no client has one left."""
    sums = list[Tensor]()
    for client in clients:
        batch = client.next_batch(sampler)
        if batch is None:
            continue
        with client.random_numbers.active():
            loss = phase.loss(net, batch, {})
        assert isinstance(loss, Tensor)
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        # in float64: over many clients, float32 would round away what small ones add
        sums = sums or [torch.zeros_like(gradient, dtype=torch.float64) for gradient in gradients]
        torch._foreach_add_(sums, [gradient.double() for gradient in gradients], alpha=client.share)
    return [total.to(parameter.dtype) for total, parameter in zip(sums, parameters, strict=True)] if sums else []


# A drift that is no longer than this multiple of the weights is their rounding, and has no shares.
_ROUNDING = 2.0**-22


class Decomposition:
    """Splits the drift of every `every`-th round, from the first on. The worker is copied."""

    def __init__(self, worker: Worker, every: int) -> None:
        self._worker, self._every = worker, every
        self._copy: Worker | None = None

    def is_due(self, round_: int) -> bool:
        return (round_ - 1) % self._every == 0

    def figures(self, observed: ObservedRound) -> list[DriftValue] | str:
        """Return the parts of a round's drift; or say in one line why it cannot be split."""
        method, ctx = observed.method, observed.ctx
        if len({observed.job(client).ctx.task.group for client in observed.samples}) > 1:
            return "clients have several architectures: no decomposition"
        start, end = (_global_model(method, state, observed) for state in (observed.before, observed.after))
        if start is None or end is None:
            return f"{method.name()} has no global model: no decomposition"
        if start.labels_only:
            return f"the global model of {method.name()} votes, and has no loss: no decomposition"
        names = weight_names(start.tree, ctx.task, method.private_names(ctx.task))
        jobs = {client: observed.job(client) for client in observed.samples}
        origin = flat(start.tree, names)
        worker = self._training_worker(method)
        if not names or not all(name in tree for tree in (worker.loaded_nets[0].tree, end.tree) for name in names):
            return f"the global model of {method.name()} is no net that clients train: no decomposition"
        central = flat(synchronous_round(worker, start, jobs), names) - origin
        parts = _Parts(jobs.keys() & observed.uploads.keys(), central)
        for client, job in jobs.items():
            trained = get_tree(worker.run(job).upload, "after")
            if any(trained[name].shape != start.tree[name].shape for name in names):
                return "clients train slices of the global model: no decomposition"
            parts.add(client, job.ctx.samples, flat(trained, names) - origin)
        return parts.figures(flat(end.tree, names) - origin, float(origin.norm()))

    def _training_worker(self, method: Method) -> Worker:
        """A worker on copies of the nets, whose clients return their trained weights instead of an upload."""
        if self._copy is None:
            recorder, worker = copy.copy(method), self._worker
            recorder.end = lambda work, state, ctx: ({"after": work.tree}, {})  # type: ignore[method-assign]
            recorder.pack = lambda upload, state, *_: (upload, state)  # type: ignore[method-assign]
            nets = [deep_copy(loaded.net) for loaded in worker.loaded_nets]
            parts = recorder, nets, worker.data, worker.local_training, worker.device
            self._copy = Worker(*parts, bfloat16=worker.bfloat16, speedups=worker.speedups)
        return self._copy


class _Parts:
    """Sums of the clients' updates, all float64. `central`: the change of the weights in the centralised round [P]."""

    def __init__(self, participants: Collection[int], central: Tensor) -> None:
        self._participants, self._central, self._sizes = participants, central, dict[int, int]()
        self._sum, self._sum_of_participants = torch.zeros_like(central), torch.zeros_like(central)
        self._of_clients = list[DriftValue]()

    def add(self, client: int, samples: int, update: Tensor) -> None:
        """Add a client, in the order of ids: its number of training samples, and the change of its weights [P]."""
        self._sum.add_(update, alpha=samples)
        if client in self._participants:
            self._sum_of_participants.add_(update, alpha=samples)
        self._sizes[client] = samples
        lengths = float(update.norm()) * float(self._central.norm())
        self._of_clients += [
            DriftValue("distance_to_central", float((update - self._central).norm()), client),
            DriftValue("cosine_to_central", ratio(float(update @ self._central), lengths), client),
        ]

    def figures(self, change: Tensor, origin_norm: float) -> list[DriftValue]:
        everyone = participants = self._sum / sum(self._sizes.values())
        if len(self._participants) < len(self._sizes):
            participants = self._sum_of_participants / sum(self._sizes[client] for client in self._participants)
        parts = {
            "local": everyone - self._central,
            "sampling": participants - everyone,
            "server": change - participants,
        }
        drift = change - self._central
        squared = float(drift @ drift)
        defined = math.sqrt(squared) > _ROUNDING * origin_norm
        lengths = float(change.norm()) * float(self._central.norm())
        values = [
            DriftValue("drift", math.sqrt(squared)),
            DriftValue("global_step", float(change.norm())),
            DriftValue("central_step", float(self._central.norm())),
            DriftValue("step_cosine", ratio(float(change @ self._central), lengths)),
        ]
        for name, part in parts.items():
            values.append(DriftValue(f"{name}_drift", float(part.norm())))
            values.append(DriftValue(f"{name}_share", float(part @ drift) / squared if defined else None))
        return values + self._of_clients


def _global_model(method: Method, state: Record, observed: ObservedRound) -> Predictor | None:
    """The server's model with the weights that a next round starts from; None if the method has none."""
    # some methods test another model (a running mean) than the one with which the next round starts
    plain = copy.copy(method)
    plain.tested = lambda server, ctx: server  # type: ignore[method-assign]
    return plain.predictors(state, None, observed.ctx).get("global")


class DriftObserver:
    """Measures the drift of rounds and changes nothing. `latest`, `seconds`: of the last round, and what it took."""

    def __init__(self, decomposition: Decomposition | None = None) -> None:
        self._decomposition = decomposition
        self.latest: DriftRound | None = None
        self.seconds = 0.0

    def observe(self, observed: ObservedRound) -> None:
        started, values, notes = time.perf_counter(), list[DriftValue](), list[str]()

        def add(figures: Callable[[], list[DriftValue] | str]) -> None:
            try:
                measured = figures()
            except Exception as error:  # hooks may raise on clients that were not drawn; no run needs figures
                measured = f"drift is not measured: {error_line(error)}"
            if isinstance(measured, str):
                notes.append(measured)
            else:
                values.extend(measured)

        updates = client_updates(observed)
        if isinstance(updates, str):
            notes.append(updates)
        else:
            add(lambda: update_figures(updates, observed.ctx.task, observed.samples))
        if (decomposition := self._decomposition) is not None and decomposition.is_due(observed.ctx.round):
            add(lambda: decomposition.figures(observed))
        # drift.jsonl takes finite numbers and null alone.
        finite = [v if v.value is None or math.isfinite(v.value) else v._replace(value=None) for v in values]
        self.latest = DriftRound(observed.ctx.round, finite, notes)
        self.seconds = time.perf_counter() - started


class RunDrift:
    """Measures the drift of a federation's rounds if the config asks for it, and stores it in `folder`, if any. Raises
    `ConfigError` for decompositions of a federation whose clients train `elsewhere`, on nodes."""

    def __init__(
        self, config: RunConfig, federation: Federation, worker: Worker, folder: RunFolder | None, elsewhere: bool
    ) -> None:
        self._log = None if folder is None else DriftLog(folder.path)
        self._rounds = list[DriftRound]()
        self._observer: DriftObserver | None = None
        if config.drift is None:
            return
        every, decomposition = config.drift.decompose_every, None
        if every and elsewhere:
            raise ConfigError(
                f"drift.decompose_every = {every}: all clients would train once more here, and their data are on "
                "nodes; leave it out, and drift=true still measures what uploads tell"
            )
        if every:
            decomposition = Decomposition(worker, every)
        self._observer = federation.observer = DriftObserver(decomposition)

    @property
    def rounds(self) -> list[DriftRound] | None:
        """The rounds so far; None if drift is not measured."""
        return None if self._observer is None else self._rounds

    def resume(self, round_: int) -> None:
        """Go on after a round: what was kept of later ones is deleted."""
        if self._observer is not None and self._log is not None:
            self._rounds = self._log.keep_until(round_)

    def store(self, round_: int) -> list[Row]:
        """Keep what was found in a round, and return the row of its cost."""
        if self._observer is None:
            return []
        latest = self._observer.latest
        if latest is None or latest.round != round_:  # no participant had data
            latest = DriftRound(round_, (), ("no participant has data: nothing is measured",))
        self._rounds.append(latest)
        if self._log is not None:
            self._log.append(latest)
        return [new_row(round_, "seconds_drift", self._observer.seconds)]
