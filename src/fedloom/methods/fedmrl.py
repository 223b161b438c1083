from collections.abc import Callable
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

import fedloom.methods as fm
from fedloom.methods.parts.parameters import clipped
from fedloom.methods.parts.several_models import require_same_net

OWN, SMALL = "own", "small"
OWN_HEAD, SMALL_HEAD = (f"{net}.head.weight" for net in (OWN, SMALL))


@fm.register
class FedMRL(fm.Method):
    """FedMRL: a small shared net and a large private one feed one private map; nested features serve both heads. Yi et
    al., NeurIPS 2024, arXiv 2406.00488.

    Local: m = W [z_s; z] + b of both nets' features; the own head reads m, the small head its first entries, as many as
    z_s has; CE + CE. Server: the mean of small nets. Tested: the own head on m, with the newest small net."""

    class Options(fm.Options):
        small: str | None = fm.option(
            None,
            "Registered model of the small shared net, whose features may not be wider than those of any client's own "
            "net. Null takes the run's own model.",
        )
        weights: Literal["samples", "uniform"] = fm.option(
            "samples", "Weights of clients in the mean of small nets: by samples, as the authors, or equal, as HtFLlib."
        )
        tied_heads: bool = fm.option(
            False,
            "Whether the small head is the first columns of the own head, with its bias, and both losses move them, as"
            " in the authors' script for clients with equal nets.",
        )
        clip: float | None = fm.option(
            None, "Bound of the gradients' 2-norm, of each net alone. Null is no bound; the authors take 50.", gt=0
        )

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        self.spec = fm.Spec(
            private=frozenset({fm.Role.EXTRA}),
            nets={OWN: None, SMALL: self.options.small},
            private_nets=frozenset({OWN}),
            architectures="any",
            features=True,
            sends={"model": fm.Sent(no_feedback=frozenset({fm.Role.HEAD} if self.options.tied_heads else ()))},
            labels="multi",
        )

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        require_same_net(tasks, SMALL, "fedmrl.small")
        diagnostics = super().examine(tasks, participants)
        for task in tasks:
            rows, joined = task.init["extra.weight"].shape
            small = joined - rows
            if SMALL_HEAD not in task.init or OWN_HEAD not in task.init:
                raise fm.ConfigError("fedmrl needs heads of one linear layer in both nets")
            if small > rows:
                raise fm.ConfigError(
                    f"fedmrl.small: its features have {small} entries, those of group {task.group} {rows}: the small "
                    f"head reads the first of {rows}; name a model whose features are no wider"
                )
            if small == rows and self.options.small is not None:
                message = f"the small net's features are as wide as the own net's ({rows}): nothing is nested"
                diagnostics.append(fm.Diagnostic("fedmrl.not_nested", message, float(rows)))
        return diagnostics

    def extra(self, net: fm.Net) -> nn.Module:
        bundle = cast(fm.Bundle, net)
        small, own = bundle[SMALL].head.in_features, bundle[OWN].head
        return nn.Linear(small + own.in_features, own.in_features, dtype=own.weight.dtype)

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        return fm.Start(self._tied(start.tree, {}), {}) if self.options.tied_heads else start

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        clip = None if self.options.clip is None else clipped_by_net(self.options.clip)
        project = self._tied if self.options.tied_heads else None
        return [fm.Train(self.loss, ctx.task.local_epochs, grad_map=clip, project=project)]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        bundle, mapped = cast(fm.Bundle, net), nested_features(net, batch.x)
        own, small = bundle[OWN].head, bundle[SMALL].head
        first = mapped[:, : small.in_features]
        tied = self.options.tied_heads
        logits = functional.linear(first, own.weight[:, : small.in_features], own.bias) if tied else small(first)
        losses = {"ce": fm.cross_entropy(own(mapped), batch.y), "ce_small": fm.cross_entropy(logits, batch.y)}
        return fm.Objective.sum({name: batch.mean(loss) for name, loss in losses.items()})

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        return {"model": self.mean(uploads, weights=self.options.weights)}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        if state is None:
            return {}
        return {"personal": fm.Predictor(self._joined(server, state, ctx.task), own_logits)}

    @staticmethod
    def _tied(tree: fm.Tree, consts: fm.Consts) -> fm.Tree:
        columns = {"weight": tree[OWN_HEAD][:, : tree[SMALL_HEAD].shape[1]].clone()}
        tied = columns | ({"bias": tree[f"{OWN}.head.bias"]} if f"{OWN}.head.bias" in tree else {})
        return tree | {f"{SMALL}.head.{name}": value for name, value in tied.items()}


def clipped_by_net(norm: float) -> Callable[[fm.Tree, fm.Tree, fm.Consts], fm.Tree]:
    """Return a `grad_map` that bounds the joint 2-norm of the gradients of each net, and of the map."""
    clip = clipped(norm)

    def clip_each(gradients: fm.Tree, parameters: fm.Tree, consts: fm.Consts) -> fm.Tree:
        clipped_gradients = fm.Tree()
        for part in sorted({name.partition(".")[0] for name in gradients}):
            clipped_gradients |= clip({n: g for n, g in gradients.items() if n.partition(".")[0] == part}, {}, {})
        return clipped_gradients

    return clip_each


def nested_features(net: fm.Net, x: Tensor) -> Tensor:
    """Return m = W [z_s; z] + b [B, d] of a bundle with its map."""
    bundle = cast(fm.Bundle, net)
    return cast(Tensor, net.extra(torch.cat([bundle[SMALL].features(x), bundle[OWN].features(x)], 1)))


def own_logits(net: fm.Net, x: Tensor) -> Tensor:
    """Return the logits [B, C] of the client's own head on m."""
    return cast(Tensor, cast(fm.Bundle, net)[OWN].head(nested_features(net, x)))
