from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

import fedloom.methods as fm
from fedloom.methods.parts.parameters import clipped

GUIDING = f"{fm.EXTRA}.guiding"
VECTORS = frozenset({fm.Role.EXTRA})


@fm.register
class FedL2G(fm.Method):
    """FedL2G: class vectors that guide nets of any kind, and learn to by meta-gradients. Zhang et al., 2024, arXiv
    2410.06490.

    Local, from round `warm_up` + 1: CE + mean of (a - G_y)^2 on the study samples, a the logits or features, G [C, q]
    the vectors. Every round, on one study batch: theta' = theta - lr grad of that loss, then thrown away, and a step of
    size `server_lr` on CE(quiz; theta') as a function of G. Server: the plain mean of each row over its senders."""

    spec = fm.Spec(
        receives=("guiding",),
        requires=("trained_head",),
        private=fm.ALL_ROLES - VECTORS,
        architectures="any",
        features=True,
        sends={"guiding": fm.Sent(labels=True, statistic="guiding vectors of held classes")},
        unstackable="its vectors learn from gradients of a gradient",
        labels="multi",
    )

    class Options(fm.Options):
        guides: Literal["logits", "features"] = fm.option(
            "logits", "Target of the vectors: the outputs (FedL2G-l) or the head's input (FedL2G-f)."
        )
        quiz: int | None = fm.option(
            None, "Samples of a client that never train and judge a guided step. Null is a batch.", ge=1
        )
        drawn_quiz: bool = fm.option(
            True, "Whether the quiz is drawn; if not, it is a client's first samples in stored order."
        )
        warm_up: int = fm.option(0, "Rounds at the start in which only the vectors learn.", ge=0)
        server_lr: float = fm.option(0.1, "Learning rate of the vectors.", ge=0)
        clip: float | None = fm.option(100.0, "Bound of the norm of the vectors' gradient at a client.", gt=0)

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        if self.options.guides == "features":
            self.spec = replace(self.spec, requires=(*self.spec.requires, "same_width"))

    def extra(self, net: fm.Net) -> nn.Module:
        width = net.head.out_features if self.options.guides == "logits" else net.head.in_features
        vectors = nn.Module()
        guiding = torch.randn(net.head.out_features, width, dtype=net.head.weight.dtype)
        vectors.register_parameter("guiding", nn.Parameter(guiding))
        return vectors

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return {"guiding": ctx.task.init[GUIDING]}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        guiding, mean = fm.get_tensor(server, "guiding"), self.mean(uploads, "guiding", "uniform")
        return {"guiding": torch.where(mean.held.unsqueeze(1), mean.values.to(guiding.dtype), guiding)}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        tree = self._joined({"model": {GUIDING: fm.get_tensor(payload, "guiding")}}, state, ctx.task)
        return fm.Start(tree, {"rate": torch.tensor(ctx.lr, dtype=tree[GUIDING].dtype)})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        options = self.options
        quiz = fm.Part("quiz", options.quiz or ctx.task.batch_size, options.drawn_quiz)
        nets = fm.TRAINABLE - VECTORS
        guided = fm.Train(self.loss, ctx.task.local_epochs, trains=nets, part=quiz.others)
        guides = ctx.round > options.warm_up
        if ctx.samples < 2:  # nothing is left for a quiz
            return [replace(guided, part=None)] if guides else []
        judged = fm.Collect({"quiz": fm.Rows(lambda net, batch, consts: batch.x)}, part=quiz)
        step, clip = fm.OptimizerSpec(lr=options.server_lr), None if options.clip is None else clipped(options.clip)
        learned = replace(guided, loss=self.loss_of_quiz, steps=1, trains=VECTORS, optimizer=step, grad_map=clip)
        learned = replace(learned, evaluates=fm.ALL_ROLES)
        return [*([guided] if guides else []), judged, learned]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z = net.features(batch.x)
        logits = net.head(z)
        guided, by_label = batch.by_label(logits if self.options.guides == "logits" else z)
        apart = guided - cast(Tensor, net.extra.guiding)[by_label.y]
        ce = batch.mean(fm.cross_entropy(logits, batch.y))
        return fm.Objective.sum({"ce": ce, "guide": by_label.mean(apart.square().mean(1))})

    def loss_of_quiz(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        """Return the CE of `consts["quiz"]` after a guided step on a study `batch`, as a function of the vectors."""
        quiz: fm.LabelledRows = consts["quiz"]
        weights = {n: p for n, p in net.named_parameters() if p.requires_grad and not n.startswith(f"{fm.EXTRA}.")}
        guided, parts, _ = self.loss(net, batch, consts)
        steps = torch.autograd.grad(guided, list(weights.values()), create_graph=True, materialize_grads=True)
        moved = {n: w - consts["rate"] * step for (n, w), step in zip(weights.items(), steps, strict=True)}
        logits: Tensor = functional_call(net, moved, (quiz.values,))
        ce = fm.cross_entropy(logits, quiz.labels).mean()
        # the gradient goes through the guided step to the vectors, and its other terms are shown only
        return fm.Objective(ce, {"ce_quiz": ce, **{name: part.detach() for name, part in parts.items()}})

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        guiding = work.tree[GUIDING]
        held = (guiding != work.start.tree[GUIDING]).any(1)  # rows without gradient are no part of the mean
        table = fm.ClassTable(torch.where(held.unsqueeze(1), guiding, 0.0), held)
        return {"guiding": table, "samples": ctx.samples}, {"model": self._private(work.tree, ctx.task)}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        if state is None:
            return {}
        shared: fm.Record = {"model": {GUIDING: fm.get_tensor(server, "guiding")}}
        return {"personal": fm.Predictor(self._joined(shared, state, ctx.task))}

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        if any(bool(fm.get_table(upload, "guiding").held.any()) for upload in uploads.values()):
            return []
        message = "no vector moved at any client: the meta-gradients are 0, or below the precision of the vectors"
        return [fm.Diagnostic("fedl2g.vectors_stand_still", message, self.options.server_lr)]
