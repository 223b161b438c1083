"""Fine-tuning of the global model before each client's test, the reference for personalised methods.

Training, uploads and the global model are the base's, bit for bit; each client tunes a copy of the global model on its
training data by plain cross-entropy. The copy is its personal model, even where the base has personal models."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeAlias

from torch import Tensor

import fedloom.methods as fm

Tuned: TypeAlias = Literal["all", "head", "lp_ft"]
_FULL_TUNING_RATE = 0.1  # of the linear probe's rate (Kumar et al. 2022)
_HEAD = frozenset({fm.Role.HEAD})
_BODY = frozenset(fm.Role) - _HEAD  # statistics of batch norm too


def tuning_phases(
    tuned: Tuned, predictor: fm.Predictor, optimizer: fm.OptimizerSpec, epochs: int, probe_epochs: int | None = None
) -> list[fm.Phase]:
    """Return the phases that tune a `predictor` on its own predictions: all weights for `epochs` passes; the "head"
    alone, with the rest in evaluation mode; or "lp_ft", the head for `probe_epochs` and then all weights at a tenth of
    the rate (Kumar et al., ICLR 2022, arXiv 2202.10054). `optimizer` is that of the first phase."""
    loss = functools.partial(_cross_entropy, predictor.logits)
    if tuned == "all":
        return [fm.Train(loss, epochs, optimizer=optimizer)]
    passes = epochs if probe_epochs is None else probe_epochs
    probe = fm.Train(loss, passes, trains=_HEAD, evaluates=_BODY, optimizer=optimizer)
    if tuned == "head":
        return [probe]
    return [probe, fm.Train(loss, epochs, optimizer=replace(optimizer, lr=optimizer.lr * _FULL_TUNING_RATE))]


def _cross_entropy(
    logits: Callable[[fm.Net, Tensor], Tensor], net: fm.Net, batch: fm.Batch, consts: fm.Consts
) -> Tensor:
    return batch.mean(fm.cross_entropy(logits(net, batch.x), batch.y))


WORDS = ("finetune", "lpft")  # all wrappers of this file


class TuningOptions(fm.Options):
    """Options of fine-tuning."""

    epochs: int = fm.option(
        5, "Passes over a client's training data that tune all weights of its copy; 5 is our choice.", ge=0
    )
    lr: float | None = fm.option(
        None, "Learning rate of the first pass. Null is the rate of the round that is tested.", gt=0
    )


class ProbingOptions(TuningOptions):
    """Options of a linear probe before fine-tuning."""

    probe_epochs: int = fm.option(
        5, "Passes that tune the head alone, before all weights are tuned; 5 is our choice.", ge=0
    )


class FineTuned(fm.Method):
    """Base of both wrappers."""

    tuning_word: ClassVar[str]  # the word of the wrapper
    tuned: ClassVar[Tuned]  # what `tuning_phases` tunes
    Tuning: ClassVar[type[TuningOptions]] = TuningOptions

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        self.tuning_options: Any = fm.names_of(self, self.tuning_word).options(self.Tuning, self.options)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics = super().examine(tasks, participants)
        server = self.server_init(fm.ServerContext(tasks[0], 0))
        for task in tasks:
            tree = self._global_predictor(task, server).tree
            for name in tree.keys() & task.init.keys():
                if tree[name].shape != task.init[name].shape:
                    raise fm.ConfigError(
                        f"{self.name()}: {self.tuning_word} tunes the global model, whose {name} "
                        f"{tuple(tree[name].shape)} is no {tuple(task.init[name].shape)} of model {task.group + 1}; "
                        "use one model for all clients"
                    )
        return diagnostics

    def adapt(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        rate = ctx.lr if self.tuning_options.lr is None else self.tuning_options.lr
        # No further decay: `ctx.lr` is the rate of this round, and a rate of the options is meant as it is.
        optimizer = replace(ctx.task.optimizer, lr=rate, decay=1.0)
        options, server = self.tuning_options, self.server_init(fm.ServerContext(ctx.task, 0))
        predictor = self._global_predictor(ctx.task, server)
        probe_epochs = getattr(options, "probe_epochs", None)
        return tuning_phases(self.tuned, predictor, optimizer, options.epochs, probe_epochs)

    def adapted(self, work: fm.Work, predictor: fm.Predictor, ctx: fm.ClientContext) -> fm.Predictor:
        return fm.Method.adapted(self, work, predictor, ctx)  # the base's own belongs to its own phases

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        predictors = super().predictors(server, None, ctx)
        if state is None:
            return predictors
        return {"personal": fm.Predictor(predictors["global"].tree, predictors["global"].logits)}

    def _global_predictor(self, task: fm.Task, server: fm.Record) -> fm.Predictor:
        predictors = super().predictors(server, None, fm.ServerContext(task, 0))
        if "global" not in predictors:
            raise fm.ConfigError(
                f"{self.name()}: {self.tuning_word} tunes the global model, and this method has none; take a method "
                "that has one, as fedavg"
            )
        return predictors["global"]


class AllTuned(FineTuned):
    """Fine-tuning of all weights: Yu et al. 2020, arXiv 2002.04758; Cheng et al. 2021, arXiv 2108.07313."""

    tuning_word, tuned = "finetune", "all"


class ProbedThenTuned(FineTuned):
    """A linear probe, then all weights at a tenth of its rate: Kumar et al., ICLR 2022, arXiv 2202.10054."""

    tuning_word, tuned = "lpft", "lp_ft"
    Tuning = ProbingOptions

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        self.spec = replace(self.spec, requires=(*self.spec.requires, "trained_head"))


def _with_tuning(mixin: type[FineTuned], base: type[fm.Method]) -> type[fm.Method]:
    if set(base.wrappers) & set(WORDS):
        raise fm.ConfigError(f"{base.name()} tunes the global model already: {mixin.tuning_word} would tune it again")
    return fm.wrapped(mixin, base, mixin.tuning_word, mixin.Tuning)


for _mixin in (AllTuned, ProbedThenTuned):
    fm.WRAPPERS.register(_mixin.tuning_word)(functools.partial(_with_tuning, _mixin))
