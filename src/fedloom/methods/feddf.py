from typing import Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.data.dataset import Dataset
from fedloom.methods.contract.means import recorded_shares
from fedloom.methods.parts.measures import batches, descended
from fedloom.nets.loaded_net import group_of

_AT_ONCE = 256  # public samples in one forward pass of a teacher


@fm.register
class FedDF(fm.Method):
    """FedDF: the server distils the ensemble of the clients' models into the averaged one. Lin et al., NeurIPS 2020,
    arXiv 2006.07242.

    From the mean of the uploads by samples, the server takes steps on KL(softmax(mean_k logits_k) || softmax(logits))
    over batches of its unlabelled samples (`scenario.public`). Nets may differ: each architecture has its own mean, and
    all participants teach it. The paper stops by accuracy on validation data, after 10,000 steps at most; here the
    number of steps is fixed."""

    spec = fm.Spec(architectures="any", sends={"model": fm.Sent(per_client=True)}, public="inputs", labels="multi")

    class Options(fm.Options):
        steps: int = fm.option(100, "Distillation steps of the server in a round.", ge=0)
        server_lr: float = fm.option(1e-3, "Learning rate of these steps.", gt=0)
        server_optimizer: Literal["adam", "sgd"] = fm.option(
            "adam", "Optimiser of these steps; its moments start from 0 in each round."
        )
        cosine: bool = fm.option(True, "Whether the rate falls to 0 along half a cosine during a round.")
        server_batch_size: int | None = fm.option(128, "Public samples in each step. Null takes all.", ge=1)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        if len(tasks) > 1 and self.wrappers:
            raise fm.ConfigError(
                f"{self.name()}: a wrapper works on one architecture, the clients have {len(tasks)}; use one model, or "
                "feddf alone"
            )
        return super().examine(tasks, participants)

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        name = model_of(ctx.task.group)
        return {"model": server[name]} if name in server else {}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        return super().begin(payload, state, ctx) if payload else fm.Start(ctx.task.init, {})

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        public, options = ctx.public, self.options
        assert public is not None, "`Spec.public` asks for it"
        of_clients = torch.stack([_logits(fm.get_tree(u, "model"), k, public, ctx) for k, u in uploads.items()])
        logits, shares = of_clients.mean(0), recorded_shares(uploads)
        if shares is not None:  # of several labels, each has the teachers that record it
            mean = (shares.unsqueeze(1) * of_clients).sum(0) / shares.sum(0).clamp(min=1e-300)
            logits = torch.where(shares.sum(0) > 0, mean, logits)
        rng, groups = ctx.task.streams.numpy("distillation", ctx.round), {group_of(k, ctx.nets) for k in uploads}

        def taught(group: int) -> fm.Tree:
            tree: fm.Tree = self.mean({k: upload for k, upload in uploads.items() if group_of(k, ctx.nets) == group})
            net, drawn = ctx.nets[group], batches(len(public), options.server_batch_size, rng)

            def loss(leaves: fm.Tree) -> Tensor:
                rows = next(drawn)
                student_logits = net.logits(tree | leaves, public.gather(rows))
                teacher_logits = logits[rows].to(student_logits.dtype)
                return fm.kl_divergence(teacher_logits, student_logits, None if shares is None else logits).mean()

            trained = {name: value for name, value in tree.items() if name in net.trainable}
            adam = options.server_optimizer == "adam"
            return tree | descended(loss, trained, options.server_lr, options.steps, adam=adam, cosine=options.cosine)

        # all architectures have the same teachers, and each its own student: the mean of its clients
        return server | {model_of(group): taught(group) for group in sorted(groups)}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        if state is None:
            return super().predictors(server, None, ctx)
        name = model_of(ctx.task.group)
        return {"personal": fm.Predictor(fm.get_tree(server, name) if name in server else ctx.task.init)}


def model_of(group: int) -> str:
    """Return the name under which the server keeps an architecture's model."""
    return f"model.{group}" if group else "model"


def _logits(tree: fm.Tree, client: int, public: Dataset, ctx: fm.ServerContext) -> Tensor:
    net, parts = ctx.nets[group_of(client, ctx.nets)], torch.split(torch.arange(len(public)), _AT_ONCE)
    with torch.no_grad():
        return torch.cat([net.logits(tree, public.gather(rows)).double() for rows in parts])
