import torch
from torch.nn import functional

import fedloom.methods as fm
from fedloom.methods.contract.means import RECORDED, mean_by_label
from fedloom.methods.parts.several_models import as_uploads, head_in, with_recorded

OWN = "head"
_HEAD = "head."  # of a client in the server's set, before its number


@fm.register
class COPA(fm.Method):
    """COPA: one body that satisfies every client's head, and an ensemble of all heads. Wu & Gong, ICCV 2021, pages
    6484-6493, DOI 10.1109/ICCV48922.2021.00642, as Fed-CO2 compares with it.

    Local: CE(h_k(z)) + weight sum_{j != k} CE(h_j(z)), the other heads as they were sent. Server: the mean body by
    uniform weights; heads are kept, not averaged, and start as the first weights' head. Tests: the mean of all N heads'
    logits, which for linear heads is the mean head's. The paper's hybrid batch-instance norm is left out."""

    spec = fm.Spec(
        receives=None,
        requires=("linear_head",),
        features=True,
        sends={"model": fm.Sent(), OWN: fm.Sent(per_client=True)},
        labels="multi",
    )

    class Options(fm.Options):
        weight: float = fm.option(
            1.0,
            "Weight of the summed losses of the other clients' heads. 1 is Fed-CO2's; the paper's is not known.",
            ge=0,
        )

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        body, head = _parts(ctx.task.init, ctx.task)
        heads: fm.Record = {f"{_HEAD}{client}": head for client in range(ctx.task.clients)}
        return {"model": body, **heads}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        body = self.mean(uploads, weights="uniform")
        return (
            server | {"model": body} | {f"{_HEAD}{client}": head_in(upload, OWN) for client, upload in uploads.items()}
        )

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        tree = fm.get_tree(payload, "model") | fm.get_tree(payload, f"{_HEAD}{ctx.client}")
        names = [name for name in payload if name not in ("model", f"{_HEAD}{ctx.client}")]
        others = with_recorded([fm.get_tree(payload, name) for name in names])
        # class by class, each with the rows of all heads: one matrix product and one softmax serve them all
        stacked = {name: torch.stack([head[name] for head in others], 1).flatten(0, 1) for name in (others or [{}])[0]}
        return fm.Start({name: tree[name] for name in ctx.task.init}, {"heads": stacked} if others else {})

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z = net.features(batch.x)
        terms = {"ce": batch.mean(fm.cross_entropy(net.head(z), batch.y))}
        if "heads" in consts:
            foreign_logits = functional.linear(z, consts["heads"]["head.weight"], consts["heads"].get("head.bias"))
            foreign_logits = foreign_logits.view(len(batch.y), net.head.out_features, -1)  # [B, C, N - 1]
            # every foreign head must recognise the features, so the label is the same for all of them
            labels = batch.y.unsqueeze(-1).expand(*batch.y.shape, foreign_logits.shape[2])
            if RECORDED in consts["heads"]:  # but a head says nothing of labels that its client does not record
                recorded = consts["heads"][RECORDED].view(foreign_logits.shape[1:]) > 0
                labels = torch.where(recorded, labels, labels.clamp(max=-1))
            terms["ce_foreign"] = self.options.weight * batch.mean(fm.cross_entropy(foreign_logits, labels).sum(1))
        return fm.Objective.sum(terms)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        body, head = _parts(work.tree, ctx.task)
        return {"model": body, OWN: head, "samples": ctx.samples}, state

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        if state is not None:
            return {}
        heads = with_recorded([fm.get_tree(server, name) for name in server if name.startswith(_HEAD)])
        tree = fm.get_tree(server, "model") | mean_by_label(as_uploads(heads, OWN), OWN, [1.0] * len(heads))
        return {"global": fm.Predictor({name: tree[name] for name in ctx.task.init})}


def _parts(tree: fm.Tree, task: fm.Task) -> tuple[fm.Tree, fm.Tree]:
    head = task.names(frozenset({fm.Role.HEAD}))
    return fm.select(tree, tree.keys() - head), fm.select(tree, head)
