"""Arithmetic on the trained entries of trees: gradients, server optimisers (FedOpt), rows of clients, diagnostics."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import functional_call

import fedloom.methods as fm


def parameters(tree: fm.Tree, task: fm.Task) -> fm.Tree:
    """Select the trained entries of `tree`, in its order, without a copy."""
    return fm.select(tree, task.names(fm.TRAINABLE))


def trained(tree: fm.Tree, task: fm.Task) -> fm.Tree:
    """Select the trained entries that are not frozen: frozen ones are equal everywhere and would look similar."""
    return {name: value for name, value in parameters(tree, task).items() if name not in task.frozen}


def zeros(task: fm.Task) -> fm.Tree:
    """Create a tree of zeros for the trained entries of the net."""
    return {name: torch.zeros_like(value) for name, value in parameters(task.init, task).items()}


def difference(tree: fm.Tree, other: fm.Tree) -> fm.Tree:
    """Subtract the entries of `other` from those of `tree`."""
    return {name: value - other[name] for name, value in tree.items()}


def clipped(norm: float) -> Callable[[fm.Tree, fm.Tree, fm.Consts], fm.Tree]:
    """Return a `grad_map` that scales all gradients down together to a joint 2-norm of at most `norm`."""

    def clip(gradients: fm.Tree, parameters: fm.Tree, consts: fm.Consts) -> fm.Tree:
        # one norm of all entries together, so that clipping keeps the direction
        total = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
        scale = (norm / total.clamp(min=1e-12)).clamp(max=1.0)
        return {name: gradient * scale for name, gradient in gradients.items()}

    return clip


def gradients_at(net: fm.Net, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> fm.Tree:
    """Return the gradients by name of the mean cross-entropy of `net` at `weights` on x [B, ...] and y [B]."""
    leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    ce = fm.cross_entropy(functional_call(net, leaves, (x,)), y).mean()
    return dict(zip(leaves, torch.autograd.grad(ce, list(leaves.values())), strict=True))


def zero_with_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return 0 [], a term of a loss whose gradients by `parameters` are `gradients`."""
    return cast(Tensor, _ZeroWithGradients.apply(*parameters, *gradients))  # type: ignore[no-untyped-call]


class _ZeroWithGradients(torch.autograd.Function):
    """The first half of the inputs are parameters, the second half their gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Tensor) -> Tensor:
        return inputs[0].new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[len(inputs) // 2 :])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        return *(gradient * upstream for gradient in gradients), *(None,) * len(gradients)


class Options(fm.Options):
    """Options that all adaptive server optimisers share."""

    server_lr: float = fm.option(0.01, "eta, the server's step.", gt=0)
    beta1: float = fm.option(0.9, "Share of the last direction in m.", ge=0, lt=1)
    tau: float = fm.option(1e-3, "Degree of adaptivity, added to sqrt(v).", gt=0, le=1e6)
    v0: float | None = fm.option(None, "First v. Null is tau squared.", ge=0)


class FedOpt(fm.Method, ABC):
    """The mean change of the clients is a pseudo-gradient for an optimiser of the server, with a v for each parameter.
    Buffers are averaged: v knows parameters alone."""

    spec = fm.Spec(labels="multi")
    Options = Options

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v from the last one and the squared mean change, one for each entry, float64."""

    def scale(self, round_: int) -> float:
        return 1.0

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        options = self.options
        first_v = options.tau**2 if options.v0 is None else options.v0
        v = {name: torch.full_like(value, first_v) for name, value in zeros(ctx.task).items()}
        return super().server_init(ctx) | {"m": zeros(ctx.task), "v": v}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        options, mean = self.options, self.mean(uploads)
        old_parameters = parameters(fm.get_tree(server, "model"), ctx.task)
        # a pseudo-gradient with the sign of descent: from the old weights to the mean
        change = fm.combine([parameters(mean, ctx.task), old_parameters], [1, -1])
        m = fm.combine([fm.get_tree(server, "m"), change], [options.beta1, 1 - options.beta1])
        last_v, squares = fm.get_tree(server, "v"), {name: value.double().square() for name, value in change.items()}
        v = {name: self.second_moment(last.double(), squares[name]).to(last.dtype) for name, last in last_v.items()}
        step = {name: m[name].double() / (v[name].double().sqrt() + options.tau) for name in m}
        rate = options.server_lr * self.scale(ctx.round)
        moved = {name: (value.double() + rate * step[name]).to(value.dtype) for name, value in old_parameters.items()}
        return {"model": mean | moved, "m": m, "v": v}


def client_row(server: fm.Record, name: str, client: int) -> Tensor:
    """Return a client's row of a server's tensor [N, ...]; zeros for a newcomer."""
    rows = fm.get_tensor(server, name)
    return rows[client] if client < len(rows) else rows.new_zeros(rows.shape[1:])


def one_holder_per_class(method: str, held: Tensor, consequence: str) -> list[fm.Diagnostic]:
    """Report, as `method`, with the `consequence`, if no two of several participants `held` [m, C] share a class."""
    if len(held) < 2 or int(held.sum(0).max()) > 1:
        return []
    message = f"every class is held by one participant: {consequence}"
    return [fm.Diagnostic(f"{method}.one_holder_per_class", message, 1.0)]


def neighbours_clamped(method: str, neighbours: int, participants: int) -> list[fm.Diagnostic]:
    """Report, as `method`, if M `neighbours` are configured and a round has no more than M participants."""
    if neighbours < participants:
        return []
    noun = "participant" if participants == 1 else "participants"
    message = f"neighbours = {neighbours}: with {participants} {noun} a round, at most {participants - 1} are used"
    return [fm.Diagnostic(f"{method}.neighbours_clamped", message, float(participants - 1))]
