from dataclasses import replace

import fedloom.methods as fm
from fedloom.methods.parts.parameters import difference, parameters


@fm.register
class FedBuff(fm.Method):
    """FedBuff: the server steps when its buffer holds K changes. Nguyen et al., AISTATS 2022, arXiv 2106.06639.

    Client: D_k = w_k - w, from the weights w that it got. Server: w <- w + (eta / K) sum_k D_k / sqrt(1 + tau_k), where
    tau_k counts its steps since the client got w. Buffers of the net are averaged."""

    spec = fm.Spec(sends={"model": fm.Sent(form="change"), "buffers": fm.Sent(form="own")}, labels="multi", arrivals=10)

    class Options(fm.Options):
        buffer: int = fm.option(10, "K, changes in a step of the server.", ge=1)
        server_lr: float = fm.option(1.0, "eta, the server's step.", gt=0)
        scaled: bool = fm.option(True, "Whether stale changes count less.")

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        self.spec = replace(self.spec, arrivals=self.options.buffer)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics, clients = super().examine(tasks, participants), tasks[0].clients
        if self.options.buffer < clients:
            return diagnostics
        message = f"fedbuff.buffer = {self.options.buffer}: each step waits for all {clients} clients, as in FedAvg"
        return [*diagnostics, fm.Diagnostic("fedbuff.large_buffer", message, float(clients))]

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        trained, received = (parameters(tree, ctx.task) for tree in (work.tree, work.start.tree))
        buffers = {name: value for name, value in work.tree.items() if name not in trained}
        return {"model": difference(trained, received), "buffers": buffers, "samples": ctx.samples}, {}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        scales = [(1 + ctx.staleness.get(client, 0)) ** -0.5 if self.options.scaled else 1.0 for client in uploads]
        return self.stepped(server, uploads, ctx, scales, self.options.server_lr * sum(scales) / len(uploads))

    def stepped(
        self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext, weights: list[float], step: float
    ) -> fm.Record:
        """Return the state after a step of the server along the mean change by `weights`."""
        model, change = fm.get_tree(server, "model"), self.mean(uploads, "model", weights)
        moved = fm.combine([parameters(model, ctx.task), change], [1, step])
        return {"model": model | self.mean(uploads, "buffers") | moved}
