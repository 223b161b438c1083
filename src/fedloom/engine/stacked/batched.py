"""The batched engine: trains clients of one architecture together, with stacked weights under `torch.vmap`.

On a GPU, where one client leaves most of the device idle, this is faster than one client after another. Results agree
with the serial engine within 1e-5, not bit for bit: products of stacked weights are summed in another order. Draws and
losses equal those of single clients (`engine/client.py`). Short batches are padded, and the mask excludes padded rows
(`Batch.mask`, `nets/masked_batch_norm.py`)."""

import re
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import cast

import torch
from torch import Tensor

from fedloom.core.errors import ClientError, ConfigError
from fedloom.core.records import Record, map_tensors
from fedloom.core.streams import Streams, generator_states
from fedloom.core.text import lists_by_key
from fedloom.core.trees import Tree
from fedloom.engine.client import CPU, Worker
from fedloom.engine.jobs import Client, EvalJob, EvalResult, JobResult, staged
from fedloom.engine.keys import phase_key, structure_of
from fedloom.engine.serial import Engine, Jobs
from fedloom.engine.stacked.members import StackedNet, choose_weights, collect_statistics, dims, stacked_trees
from fedloom.engine.stacked.training import FastStacks, StackedTraining
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.contract.phases import Batch, Choose, Collect, Phase, Train
from fedloom.methods.contract.sample_statistics import Rows, Statistic
from fedloom.nets.loaded_net import LoadedNet
from fedloom.nets.net import BATCH_NORM, Net
from fedloom.nets.probe import is_foreign
from fedloom.nets.user_model import error_line

_SAMPLES = 8
_TOLERANCE = 0.05  # of the norm of all gradients: above the rounding of bfloat16, below the error of a wrong rule
_TOLERANCE_OF_OUTPUTS = 2e-3  # allowed change of outputs when masked rows are added
# Reasons for messages of `torch.vmap`, by words in them.
_MEANINGS = {
    "calling .item()": "its code reads values of tensors (.item()), which torch.vmap cannot do",
    "data-dependent control flow": "its code branches on values of tensors, which torch.vmap cannot do",
    "sparse": "it has sparse gradients, for which torch.vmap has no rule",
    "may have escaped": "its code hands tensors on to a later pass, or computes them again (checkpointing)",
}


def _obstacle_of(worker: Worker, live: LoadedNet) -> str | None:
    """Why the net of `live` cannot be stacked; None if no reason is known, and for nets of this library."""
    if not is_foreign(live.net):
        return None
    net, samples = StackedNet(live.net), torch.arange(min(_SAMPLES, len(worker.data)), device=worker.device)
    batch = Batch(worker.data.gather(samples), worker.data.y[samples])
    net.module.train()
    with Streams(0).isolated("trial", device=worker.device):
        first = generator_states()
        try:
            alone = _gradients(net, live, batch, stacked=False)
        except Exception:  # the net cannot take a step at all: training reports the error
            return None
        if generator_states() != first:
            return "it draws random numbers, for one client at a time"
        try:
            together = _gradients(net, live, batch, stacked=True)
            mixes = _mixes_samples(net, live, batch)
        except Exception as error:
            return _reason_of(error)
    difference, size = (
        torch.stack([gradient.double().square().sum() for gradient in gradients]).sum().sqrt().nan_to_num()
        for gradients in ([a - b for a, b in zip(together, alone, strict=True)], alone)
    )
    if difference > _TOLERANCE * size:
        return "its gradients differ in a stack: it has a hook, or state that is no buffer"
    return "its training mixes the samples of a batch, and short batches are padded" if mixes else None


def _reason_of(error: BaseException) -> str:
    text = str(error)
    if operator := re.search(r"aten::[\w.]+", text):
        return f"torch.vmap has no rule for {operator[0]}"
    for words, meaning in _MEANINGS.items():
        if words in text:
            return meaning
    return error_line(error).partition(". ")[0]


def _is_of_vmap(error: BaseException) -> bool:
    """Whether `torch.vmap` raised an error, rather than the code that it runs."""
    text = str(error)
    return isinstance(error, RuntimeError) and any(word in text for word in ("vmap", "Batching rule", "functorch"))


@torch.no_grad()
def _mixes_samples(net: StackedNet, live: LoadedNet, batch: Batch) -> bool:
    """Whether a masked row changes buffers or the outputs of other rows."""
    if len(batch.y) < 2:
        return False
    count = len(batch.y)
    mask = torch.arange(2 * count, device=batch.y.device) < count
    repeated = torch.cat([batch.x, batch.x[:1].expand_as(batch.x)])
    padded = Batch(repeated, torch.cat([batch.y, batch.y]), mask)
    whole = padded._replace(x=batch.x, y=batch.y, mask=mask[:count])
    results = []
    for rows in (whole, padded):
        tree = _entries(live)
        logits = net.call(lambda net, rows: net(rows.x), tree, rows)
        results.append([logits[:count], *(tree[name] for name in tree if name not in net.parameters)])
    tolerance = _TOLERANCE if live.net.in_bfloat16 else _TOLERANCE_OF_OUTPUTS
    return not all(_near(a, b, tolerance) for a, b in zip(*results, strict=True))


def _near(value: Tensor, expected: Tensor, tolerance: float) -> bool:
    if not expected.numel():
        return True
    value, expected = value.double(), expected.double()  # a buffer may be boolean
    bound = tolerance * float(expected.abs().max().nan_to_num()) + 1e-6
    return bool(((value - expected).abs().nan_to_num() <= bound).all())


def _entries(live: LoadedNet) -> Tree:
    return {name: value.detach().clone() for name, value in live.tree.items()}


def _weighed(net: Net, batch: Batch) -> Tensor:
    """Return a sum of the logits with a different weight for each."""
    logits = net(batch.x)
    weights = torch.linspace(0.5, 1.5, logits.numel(), device=logits.device, dtype=logits.dtype)
    return cast(Tensor, (logits * weights.view(logits.shape)).sum())


def _gradients(net: StackedNet, live: LoadedNet, batch: Batch, *, stacked: bool) -> list[Tensor]:
    """Return the gradients of a client alone, or of the first of two equal clients that are stacked."""
    tree = _entries(live)
    if stacked:
        tree = {name: torch.stack([value, value]) for name, value in tree.items()}
        batch = Batch(torch.stack([batch.x, batch.x]), torch.stack([batch.y, batch.y]))
    parameters = [tree[name].requires_grad_() for name in net.parameters]
    if stacked:
        total = torch.vmap(lambda tree, batch: net.call(_weighed, tree, batch), in_dims=(0, dims(batch)))(tree, batch)
    else:
        total = net.call(_weighed, tree, batch)
    gradients = torch.autograd.grad(total.sum(), parameters, materialize_grads=True)
    dense = [gradient.to_dense() for gradient in gradients]
    return [gradient[0] for gradient in dense] if stacked else dense


def obstacle(worker: Worker) -> str | None:
    """Return the reason why clients of this worker cannot be stacked; None if none is known."""
    if worker.method.spec.unstackable is not None:
        return f"{worker.method.name()}: {worker.method.spec.unstackable}"
    modules = [module for live in worker.loaded_nets for module in live.net.modules()]
    if any(isinstance(module, torch.nn.RNNBase) for module in modules):
        return "torch.vmap has no rule for recurrent layers"
    for live in worker.loaded_nets:
        if len(list(live.net.named_parameters(remove_duplicate=False))) > len(live.parameters):
            return "a parameter has two names"
    if any("Dropout" in type(module).__name__ for module in modules):
        return "dropout draws for one client at a time"
    if any(isinstance(module, BATCH_NORM) and module.momentum is None for module in modules):
        return "batch norm with momentum=None counts its batches in Python"
    return next(filter(None, (_obstacle_of(worker, live) for live in worker.loaded_nets)), None)


class Batched(Engine):
    """Train clients on this process's one thread, up to `stack` together, and test them one after another."""

    name = "batched"

    def __init__(self, worker: Worker, stack: int) -> None:
        self.worker, self.stack = worker, stack
        self._notes: list[Diagnostic] = []
        self._nets = [StackedNet(live.net) for live in worker.loaded_nets]
        self.fast: FastStacks | None = worker.speedups.stacks(worker.data, stack)

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        started = map(self.worker.begin, list(jobs))
        for key, clients in lists_by_key((self._key(client), client) for client in started).items():
            # The largest first: clients with batches left are then the first rows of the stack.
            clients.sort(key=lambda client: -client.job.indices.numel())
            while clients:
                chunk, clients = clients[: self.stack], clients[self.stack :]
                if key is None or len(chunk) == 1:
                    yield from [self.worker.run(client.job) for client in chunk]
                    continue
                try:
                    yield from self._run(chunk)
                except ClientError as error:
                    if not isinstance(error.__cause__, torch.OutOfMemoryError):
                        raise
                    self._narrow(len(chunk))
                    # They begin again, because the failed attempt may have changed their constants and generators.
                    clients = [self.worker.begin(client.job) for client in chunk] + clients

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        return map(self.worker.test, tests)

    def keep(self, record: Record) -> Record:
        """Return `record` with copies of tensors that are views of a stack, which would keep all clients in memory."""
        return map_tensors(record, _with_own_memory)

    def notes(self) -> list[Diagnostic]:
        notes, self._notes = self._notes, []
        return [*notes, *self.fast.notes()] if self.fast else notes

    def _narrow(self, clients: int) -> None:
        """Halve the width of stacks from now on, because memory did not suffice for this many clients."""
        self.stack = clients // 2
        message = f"out of memory with {clients} clients in a stack; it continues with {self.stack}"
        self._notes.append(Diagnostic("engine.smaller_stacks", message, float(self.stack)))
        if self.fast is not None:
            self.fast.clear(self.stack)
        torch.cuda.empty_cache()

    def _key(self, client: Client) -> Hashable | None:
        """Return a key that clients in one stack must share; None for a client that must run alone."""
        job, training = client.job, [phase for phase in client.phases if isinstance(phase, Train)]
        sampler = self.worker.sampler
        batches = [sampler.batches_per_epoch(sampler.job_of(phase, job)) for phase in training]
        if job.steps is not None or not all(batches) or not all(map(_by_epochs, training)):
            return None
        received = any(not isinstance(phase, Choose) and phase.on == "received" for phase in client.phases)
        if received or any(map(_gives_rows, client.phases[:-1])) or any(_has_rows(p.refresh) for p in training):
            return None
        refreshed = [count for count, phase in zip(batches, training, strict=True) if phase.refresh]
        phases = tuple(phase_key(phase) for phase in client.phases)
        consts = structure_of(client.consts)
        return job.ctx.task.group, job.measured, job.stage, phases, consts, tuple(refreshed)

    def _run(self, clients: list[Client]) -> list[JobResult]:
        started, ctx, stage = time.perf_counter(), clients[0].job.ctx, "begin"
        net = self._nets[ctx.task.group]
        try:
            tree = stacked_trees([client.start.tree for client in clients], self.worker.device)
            for number, phase in enumerate(clients[0].phases):
                stage = f"phase {number}"
                if isinstance(phase, Collect):
                    collect_statistics(self.worker, net, phase.statistics, phase, clients, tree, keep=True)
                elif isinstance(phase, Choose):
                    tree = choose_weights(phase, clients, tree, self.worker.device)
                else:
                    tree = StackedTraining(self.worker, net, phase, clients, tree, self.fast).run()
            tree = {name: value.to(CPU) for name, value in tree.items()}
        except Exception as error:
            others = ", ".join(str(client.job.ctx.client) for client in clients)
            cause: Exception = error
            if _is_of_vmap(error):
                why = f"engine: batched cannot run this: {_reason_of(error)}; take processes, serial or auto"
                cause = ConfigError(why).with_traceback(error.__traceback__)
            cause.add_note(f"clients {others} were trained together")
            with staged(ctx, stage, clients[0].method):
                raise cause from error.__cause__
        per_sample = (time.perf_counter() - started) / max(1, sum(client.samples for client in clients))
        rows = {name: value.unbind() for name, value in tree.items()}
        return [
            self.worker.end(client, {n: v[row] for n, v in rows.items()}, lambda c=client: per_sample * c.samples)  # type: ignore[misc]
            for row, client in enumerate(clients)
        ]


def _by_epochs(phase: Train) -> bool:
    """Whether a phase consists of whole epochs of all data, which stacks need; other clients run alone."""
    return phase.steps is None and phase.share == 1 and phase.until is None and phase.epochs > 0


def _gives_rows(phase: Phase) -> bool:
    """Whether later phases find rows among their constants, which differ in number between clients."""
    if isinstance(phase, Choose):
        return False
    return _has_rows(phase.statistics if isinstance(phase, Collect) else phase.collect)


def _has_rows(statistics: Mapping[str, Statistic]) -> bool:
    return any(isinstance(statistic, Rows) for statistic in statistics.values())


def _with_own_memory(tensor: Tensor) -> Tensor:
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone(memory_format=torch.contiguous_format)
