import torch
from torch import Tensor
from torch.nn import functional

import fedloom.methods as fm
from fedloom.methods.parts.measures import batches, descended, features


@fm.register
class CCVR(fm.Method):
    """CCVR: FedAvg, whose head is trained again at the end on features drawn from class Gaussians. Luo et al., NeurIPS
    2021, arXiv 2106.05001.

    In a closing round clients send mean and covariance of z for each class, with class counts. The server combines
    them: Sigma_c = [sum_k (n_k,c - 1) Sigma_k,c + n_k,c (mu_k,c - mu_c)(...)^T] / (n_c - 1) (Eq. 3-4, rearranged),
    draws `features` of each held class from N(mu_c, Sigma_c), and trains the head on them with plain gradient steps."""

    spec = fm.Spec(requires=("linear_head",), features=True, single_because="it draws features of one class each")

    class Options(fm.Options):
        features: int = fm.option(
            200, "Virtual features drawn for each class (our choice: no source states a number).", ge=1
        )
        server_epochs: int = fm.option(10, "Passes over the virtual features that train the head (our choice).", ge=0)
        server_lr: float | None = fm.option(
            None, "Learning rate of these passes. Null takes the run's (our choice).", gt=0
        )
        server_batch_size: int = fm.option(64, "Virtual features in a batch of these passes (our choice).", ge=1)

    def closing(self) -> fm.Method:
        return Calibration(self.options)


class Calibration(fm.Method):
    """The closing round of CCVR."""

    Options = CCVR.Options
    spec = fm.Spec(
        features=True,
        sends={
            "means": fm.Sent(per_client=True, labels=True, statistic="class means of features"),
            "covariances": fm.Sent(per_client=True, labels=True, spread=2.0, statistic="class covariances of features"),
            "class_counts": fm.Sent(per_client=True, labels=True),
        },
    )

    @classmethod
    def name(cls) -> str:
        return CCVR.name()

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [fm.Collect({"means": fm.ClassMeans(features), "covariances": fm.ClassCovariances(features)})]

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        return {**work.collected, "class_counts": ctx.class_counts}, state

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        options, model = self.options, fm.get_tree(server, "model")
        means, covariances = pooled(uploads)
        if not covariances.isfinite().all():  # the run diverged: there is nothing to draw from
            return {"model": model}
        head = fm.select(model, ctx.task.names(frozenset({fm.Role.HEAD})))
        z, labels = virtual_features(means, covariances, options.features, ctx)
        z = z.to(head["head.weight"].dtype)
        drawn = batches(len(z), options.server_batch_size, ctx.task.streams.numpy("calibration", ctx.round))

        def loss(tree: fm.Tree) -> Tensor:
            rows = next(drawn)
            logits = functional.linear(z[rows], tree["head.weight"], tree.get("head.bias"))
            return functional.cross_entropy(logits, labels[rows])

        lr = ctx.task.optimizer.lr_in(ctx.task.rounds) if options.server_lr is None else options.server_lr
        steps = options.server_epochs * -(-len(z) // options.server_batch_size)
        return {"model": model | descended(loss, head, lr, steps)}


def pooled(uploads: fm.Uploads) -> tuple[fm.ClassTable, Tensor]:
    """Return means [C, d] and unbiased covariances [C, d, d] of each class over all clients' samples, in float64."""
    means = fm.tables_of(uploads, "means").to(torch.float64)
    counts = fm.tensors_of(uploads, "class_counts").double()
    mean, total = means.mean_over_clients(counts), counts.sum(0)
    scatter = torch.zeros(*mean.values.shape, mean.values.shape[1], dtype=torch.float64)
    for table, count, upload in zip(means.values, counts, uploads.values(), strict=True):
        apart = torch.where(count.unsqueeze(1) > 0, table - mean.values, 0.0)
        within = fm.get_table(upload, "covariances").values.double().view_as(scatter)
        scatter += (count - 1).clamp(min=0).view(-1, 1, 1) * within
        scatter += count.view(-1, 1, 1) * apart.unsqueeze(2) * apart.unsqueeze(1)
    return mean, scatter / (total - 1).clamp(min=1).view(-1, 1, 1)


def virtual_features(
    mean: fm.ClassTable, covariances: Tensor, count: int, ctx: fm.ServerContext
) -> tuple[Tensor, Tensor]:
    """Draw `count` z [n, d] from N(mean, covariances) of each held class, with labels [n]; no eigenvalue is below 0."""
    rng, drawn = ctx.task.streams.numpy("virtual", ctx.round), []
    labels = mean.held.nonzero()[:, 0]
    for label in labels.tolist():
        variances, axes = torch.linalg.eigh(covariances[label])
        # times the symmetric root, which is unique where eigenvectors may come with either sign on another processor
        noise = torch.from_numpy(rng.standard_normal((count, len(variances))))
        drawn.append(mean.values[label] + noise @ (axes * variances.clamp(min=0).sqrt()) @ axes.T)
    return torch.cat(drawn), labels.repeat_interleave(count)
