from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts.parameters import client_row, parameters
from fedloom.methods.parts.several_models import models_in, named_models


@fm.register
class CFL(fm.Method):
    """CFL: a cluster of clients splits in two where their changes point apart. Sattler et al., TNNLS 2020, arXiv
    1910.01991.

    A cluster splits if |mean Delta| < eps1, max |Delta_k| > eps2 and it has more than `min_size` members, by
    agglomerative clustering of the cosines of changes Delta_k. Each cluster, new ones included, then takes the mean of
    its members. A client is tested with the model of its cluster, a newcomer with the first."""

    spec = fm.Spec(sends={"model": fm.Sent(per_client=True)}, labels="multi")

    class Options(fm.Options):
        eps1: float = fm.option(0.4, "A cluster splits if its mean change is shorter; 0 never splits.", ge=0)
        eps2: float = fm.option(1.6, "A cluster splits if the longest change of a member is longer.", ge=0)
        first_split: int = fm.option(21, "First round in which clusters may split.", ge=1)
        min_size: int = fm.option(2, "Clusters with no more members than this do not split.", ge=2)
        linkage: Literal["complete", "single"] = fm.option(
            "complete",
            "Similarity of two groups: that of their least similar pair (released code), or that of their "
            "most similar pair, which makes the greatest similarity across the split as small as possible (the paper).",
        )
        weights: Literal["uniform", "samples"] = fm.option(
            "uniform", "Weights of the members of a cluster: equal, or by their samples."
        )

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        if "servermomentum" in self.wrappers:
            raise fm.ConfigError(
                f"{self.name()}: servermomentum moves one model, and every cluster has its own; take cfl alone, or "
                "fedavg+servermomentum"
            )
        diagnostics = super().examine(tasks, participants)
        if participants < tasks[0].clients:
            message = (
                f"{participants} of {tasks[0].clients} clients take part in a round: a cluster splits only when every "
                "two of its members took part together once"
            )
            diagnostics.append(fm.Diagnostic("cfl.partial_participation", message, participants / tasks[0].clients))
        return diagnostics

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        count = ctx.task.clients
        return super().server_init(ctx) | {
            "clusters": torch.zeros(count, dtype=torch.int64),
            "similarity": torch.zeros(count, count),
            "known": torch.zeros(count, count, dtype=torch.bool),
            "mean_norm": 0.0,
            "max_norm": 0.0,
        }

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        return {"model": self._models(server)[cluster_of(server, client)]}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        options, models, clusters = self.options, self._models(server), fm.get_tensor(server, "clusters").clone()
        similarity, known = fm.get_tensor(server, "similarity").clone(), fm.get_tensor(server, "known").clone()
        old = [parameters(model, ctx.task) for model in models]
        changes = {}
        for k, upload in uploads.items():
            new, own = fm.get_tree(upload, "model"), old[cluster_of(server, k)]
            changes[k] = torch.cat([(new[name].double() - value.double()).flatten() for name, value in own.items()])
        present, rows = torch.tensor(list(changes)), torch.stack(list(changes.values()))
        # cosines, which are compared in float32: rounding must not make one greater than 1
        unit = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
        similarity[present.unsqueeze(1), present] = (unit @ unit.T).clamp(-1, 1).float()
        known[present.unsqueeze(1), present] = True
        norms = []
        for number in range(len(models)):
            members = (clusters == number).nonzero()[:, 0]
            seen = members[known[members, members]]
            changed = {k: changes[k] for k in members.tolist() if k in changes}
            if not changed:
                continue
            weights = [fm.get_number(uploads[k], "samples") if options.weights == "samples" else 1.0 for k in changed]
            shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
            mean_norm = float((shares @ torch.stack(list(changed.values()))).norm())
            max_norm = max(float(change.norm()) for change in changed.values())
            norms.append((mean_norm, max_norm))
            stationary = mean_norm < options.eps1 and max_norm > options.eps2
            may_split = stationary and len(seen) > options.min_size and ctx.round >= options.first_split
            if may_split and bool(known[seen.unsqueeze(1), seen].all()):
                # only pairs that were seen together have a similarity, so all pairs of a cluster must be known
                apart = bipartition(similarity[seen.unsqueeze(1), seen], self.options.linkage)
                clusters[seen[apart]] = len(models)
                models.append(models[number])
        for number in range(len(models)):
            own_uploads = {k: upload for k, upload in uploads.items() if int(clusters[k]) == number}
            models[number] = self.mean(own_uploads, weights=options.weights) if own_uploads else models[number]
        facts = {"mean_norm": min(norm for norm, _ in norms), "max_norm": max(norm for _, norm in norms)}
        return named_models(models) | {"clusters": clusters, "similarity": similarity, "known": known} | facts

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        if state is None:
            return {}
        return {"personal": fm.Predictor(self._models(server)[cluster_of(server, ctx.client)])}

    def figures(self, server: fm.Record, ctx: fm.ServerContext) -> Mapping[str, float]:
        norms = {f"cluster_{name}": float(fm.get_number(server, name)) for name in ("mean_norm", "max_norm")}
        return {"clusters": float(len(self._models(server)))} | norms

    def _models(self, server: fm.Record) -> list[dict[str, Tensor]]:
        return models_in(server, int(fm.get_tensor(server, "clusters").max()) + 1)


def cluster_of(server: fm.Record, client: int) -> int:
    """Return the number of a client's cluster; 0 for a newcomer, and where no client is named."""
    return int(client_row(server, "clusters", client)) if client >= 0 else 0


def bipartition(similarity: Tensor, linkage: Literal["complete", "single"]) -> Tensor:
    """Split clients in two by agglomerative clustering of similarities [m, m]: which are apart from the first [m]."""
    distance, groups = -similarity.double(), torch.arange(len(similarity))
    distance = distance.masked_fill(torch.eye(len(groups), dtype=torch.bool), torch.inf)
    join = torch.maximum if linkage == "complete" else torch.minimum
    for _ in range(len(groups) - 2):
        first, second = sorted(divmod(int(distance.argmin()), len(groups)))
        joined = join(distance[first], distance[second])
        joined[[first, second]] = torch.inf
        distance[first], distance[:, first] = joined, joined
        distance[second], distance[:, second] = torch.inf, torch.inf
        groups[groups == second] = first
    return groups != groups[0]
