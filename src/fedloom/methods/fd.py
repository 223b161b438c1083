from typing import Literal

import torch
from torch.nn.functional import log_softmax

import fedloom.methods as fm
from fedloom.methods.parts.measures import probabilities


@fm.register
class FD(fm.Method):
    """FD, federated distillation: class means of outputs travel in place of weights. Jeong et al., NeurIPS workshop
    2018, arXiv 1811.11479.

    Down: for each class the mean row of the *other* holders of the last round. Local: CE + gamma CE(row_y, p); samples
    whose class had no other holder add 0; then the class means of softmax outputs (Algorithm 1). Nets are private and
    may differ. The paper takes means while it trains: `outputs_from=training`."""

    spec = fm.Spec(
        private=fm.ALL_ROLES,
        architectures="any",
        sends={"outputs": fm.Sent(per_client=True, labels=True, statistic="class means of outputs")},
        single_because="its soft labels are means over a softmax of classes",
    )

    class Options(fm.Options):
        gamma: float = fm.option(
            1.0,
            "Weight of the distillation term; 0 is local training (no source states a value: 1 is our choice).",
            ge=0,
        )
        outputs_from: Literal["after_training", "training", "last_epoch"] = fm.option(
            "after_training",
            "Where class means of outputs come from: a pass after training, or the training's own forward passes "
            "before each step, of all epochs (training) or of the last one (last_epoch).",
        )

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        classes = ctx.task.num_classes
        nothing = fm.ClassTable(torch.zeros(0, classes, classes), torch.zeros(0, classes, dtype=torch.bool))
        return {"outputs": nothing, "senders": torch.zeros(0, dtype=torch.int64)}

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        tables, others = fm.get_table(server, "outputs"), fm.get_tensor(server, "senders") != client
        foreign_outputs = fm.ClassTable(tables.values[others].double(), tables.held[others])
        return {"targets": foreign_outputs.mean_over_clients().to(torch.float32)}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        return {"outputs": fm.tables_of(uploads, "outputs"), "senders": torch.tensor(list(uploads))}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        targets = fm.get_table(payload, "targets")
        return fm.Start(super().begin(payload, state, ctx).tree, {"rows": targets.values, "known": targets.held})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        if self.options.outputs_from != "after_training":
            all_epochs, means = self.options.outputs_from == "training", {"outputs": fm.ClassMeans("outputs")}
            return [fm.Train(self.loss, ctx.task.local_epochs, collect=means, throughout=all_epochs)]
        return [fm.Train(self.loss, ctx.task.local_epochs), fm.Collect({"outputs": fm.ClassMeans(probabilities)})]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        logits = net(batch.x)
        ce = batch.mean(fm.cross_entropy(logits, batch.y))
        log_probabilities = log_softmax(logits, dim=1)
        distance = -(consts["rows"][batch.y] * log_probabilities).sum(1)
        taught = self.options.gamma * batch.mean(torch.where(consts["known"][batch.y], distance, 0.0))
        return fm.Objective.sum({"ce": ce, "distillation": taught}, {"outputs": log_probabilities.exp()})

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        return {"outputs": work.collected["outputs"]}, {"model": work.tree}
