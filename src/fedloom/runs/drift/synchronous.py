"""The centralised round: the clients' own batches at common weights, averaged at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.streams import GlobalGenerators
from fedloom.core.trees import Tree
from fedloom.engine import Worker
from fedloom.engine.batch_sampler import BatchSampler, EpochBatches, PhasePlan
from fedloom.engine.jobs import Draws, Job
from fedloom.engine.optimizer import Optimizer
from fedloom.engine.steps import Block, trainable_names
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.phases import Batch, Consts, Predictor, Train
from fedloom.nets.net import Net


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

    def next_batch(self, sampler: BatchSampler) -> Block | None:
        """The next batch of the client's passes over its data; None after the last."""
        while self.batches is None or not len(self.batches):
            if self.epoch == self.plan.epochs or not self.plan.epoch_batches:
                return None
            self.batches = sampler.batches(self.job, self.draws, 1.0, self.epoch, self.plan.batches(self.epoch))
            self.epoch += 1
        return self.batches.take()


def synchronous_round(worker: Worker, predictor: Predictor, jobs: Mapping[int, Job]) -> Tree:
    """Train on the data of all clients for one round, and return the weights.

    Every step takes the gradient of the cross-entropy at the common weights on the next batch of every client, in the
    order and with the random numbers of its own round, and averages these gradients by the clients' samples. So it
    differs from FedAvg in one thing: clients do not move apart between two averages. It is synchronous, or minibatch,
    SGD (Woodworth et al., ICML 2020, arXiv 2002.07839) with the run's optimiser. A client that has fewer batches than
    others adds nothing to the last steps, as FedAvg's mean has fewer of its steps.

    Args:
        worker: its net is used, and its sampler.
        predictor: the weights to start from, and how they predict.
        jobs: the round's jobs of all clients with data, by client id.
    """

    def loss(net: Net, batch: Batch, consts: Consts) -> Tensor:
        return batch.mean(cross_entropy(predictor.logits(net, batch.x), batch.y))

    first = next(iter(jobs.values())).ctx
    loaded_net, sampler, phase = (
        worker.loaded_nets[first.task.group],
        worker.sampler,
        Train(loss, first.task.local_epochs),
    )
    loaded_net.load(predictor.tree)
    names = trainable_names(loaded_net.parameters, phase, first)
    parameters = [loaded_net.parameters[name] for name in names]
    optimizer = Optimizer(worker.local_training.optimizer, parameters, first.round)
    total = sum(job.ctx.samples for job in jobs.values())
    clients = [_client(worker, phase, job, total) for job in jobs.values()]
    worker.set_modes(loaded_net.net, phase, first.task.roles)
    while gradients := _mean_gradient(loaded_net.net, phase, parameters, clients, sampler):
        optimizer.step(gradients)
    loaded_net.net.eval()
    return loaded_net.weights()


def _client(worker: Worker, phase: Train, job: Job, total: int) -> _Client:
    ctx, sampler = job.ctx, worker.sampler
    random_numbers = ctx.task.streams.resumable("dropout", ctx.round, ctx.client, worker.device)
    plan = PhasePlan.of(sampler, phase, job)
    return _Client(ctx.samples / total, job, sampler.generators(job), random_numbers, plan)


def _mean_gradient(
    net: Net, phase: Train, parameters: Sequence[Tensor], clients: Sequence[_Client], sampler: BatchSampler
) -> list[Tensor]:
    """The mean of the gradients on each client's next batch, summed in float64; empty where no client has one left."""
    sums = list[Tensor]()
    for client in clients:
        block = client.next_batch(sampler)
        if block is None:
            continue
        with client.random_numbers.active():
            loss = phase.loss(net, block.as_batch(), {})
        assert isinstance(loss, Tensor)
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        sums = sums or [torch.zeros_like(gradient, dtype=torch.float64) for gradient in gradients]
        torch._foreach_add_(sums, [gradient.double() for gradient in gradients], alpha=client.share)
    return [total.to(parameter.dtype) for total, parameter in zip(sums, parameters, strict=True)] if sums else []
