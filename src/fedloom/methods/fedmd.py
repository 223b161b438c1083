from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts.measures import logits


@fm.register
class FedMD(fm.Method):
    """FedMD: nets of any kind agree on the logits of public inputs. Li and Wang, 2019, arXiv 1910.03581.

    Local: digest, steps on the mean of |o - consensus| over the public inputs and classes; then CE on own data; then
    the logits of the public inputs. Server: the plain mean of logits. A client keeps its net and is tested with it."""

    spec = fm.Spec(
        private=fm.ALL_ROLES,
        architectures="any",
        sends={"logits": fm.Sent()},
        public="inputs",
        unstackable="it trains on samples that the server sent",
        labels="multi",
    )

    class Options(fm.Options):
        inputs: int | None = fm.option(
            None, "How many of the server's public inputs are used, the first ones. Null takes all.", ge=1
        )
        digest_epochs: int = fm.option(1, "Passes over the public inputs that digest the consensus.", ge=0)
        digest_lr: float | None = fm.option(
            None, "Learning rate of these passes. Null takes the run's in this round.", gt=0
        )
        distance: Literal["absolute", "squared"] = fm.option(
            "absolute", "Distance of logits that the digest minimises: mean absolute or mean squared."
        )
        start: Literal["drawn", "common"] = fm.option(
            "common",
            "First weights: each client draws its own, or those of one architecture are equal. Equal ones agree from "
            "the start, and teach each other nothing new.",
        )

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics = super().examine(tasks, participants)
        if self.options.start == "common" and len(tasks) < tasks[0].clients:
            message = "clients of one architecture start from one net: their logits agree before anybody has learnt"
            diagnostics.append(fm.Diagnostic("fedmd.alike_nets", message, float(len(tasks))))
        return diagnostics

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return {}

    def client_init(self, ctx: fm.ClientContext) -> fm.Record:
        if self.options.start == "common":
            return super().client_init(ctx)
        return {"model": ctx.task.fresh(ctx.client)}

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        public = ctx.public
        if public is None:  # a trial of hooks without data: `Spec.public` asks for it in every run
            return server
        count = len(public) if self.options.inputs is None else min(self.options.inputs, len(public))
        return {"inputs": public.gather(torch.arange(count)), **server}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        consensus: Tensor = self.mean(uploads, "logits", "uniform")
        return {"consensus": consensus.to(torch.float32)}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        tree = self._joined({}, state, ctx.task)
        consts = {"consensus": payload["consensus"]} if "consensus" in payload else {}
        return fm.Start(tree, consts, fm.Received(fm.get_tensor(payload, "inputs")))

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        options, optimizer = self.options, ctx.task.optimizer
        if options.digest_lr is not None:
            optimizer = replace(optimizer, lr=options.digest_lr, decay=1.0)
        digest = fm.Train(self.digest, options.digest_epochs, optimizer=optimizer, on="received")
        revisit = fm.Train(self.loss, ctx.task.local_epochs)
        answer = fm.Collect({"logits": fm.Rows(logits)}, on="received")
        return [*([digest] if "consensus" in start.consts else []), revisit, answer]

    def digest(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        """Return the distance of the logits of `net` on a public `batch` to `consts["consensus"]` [n, C]."""
        apart = net(batch.x) - consts["consensus"][batch.y]
        distance = apart.abs() if self.options.distance == "absolute" else apart.square()
        return fm.Objective.sum({"digest": batch.mean(distance.mean(1))})

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        return {"logits": work.collected["logits"].values, "samples": ctx.samples}, {"model": work.tree}
