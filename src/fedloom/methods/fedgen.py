import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedloom.methods as fm
from fedloom.methods.parts.measures import descended
from fedloom.nets.net import tree_of

_HEAD = ("head.weight", "head.bias")


@fm.register
class FedGen(fm.Method):
    """FedGen: clients also learn from features of a generator that the server fits to all clients' heads. Zhu, Hong &
    Zhou, ICML 2021, arXiv 2105.10056.

    Server: the mean by samples; steps of G on the mean over draws of sum_k (n_k,y / sum_j n_j,y) CE(h_k(G(e, y)), y)
    (Eq. 4 as released), h_k the participants' heads, e normal, y by their class counts. G: noise and one-hot class ->
    linear -> ReLU -> linear -> z. Local: CE + weight mean CE(h(G(e, y)), y), which moves the head (Eq. 5)."""

    spec = fm.Spec(
        requires=("linear_head",),
        features=True,
        sends={"model": fm.Sent(per_client=True), "class_counts": fm.Sent(per_client=True, labels=True)},
        single_because="its generator draws samples of one class each",
    )

    class Options(fm.Options):
        weight: float = fm.option(1.0, "Weight of the clients' loss on generated features; 0 is FedAvg.", ge=0)
        noise: int = fm.option(32, "Width of the generator's noise.", ge=1)
        hidden: int = fm.option(256, "Width of the generator's hidden layer.", ge=1)
        server_lr: float = fm.option(3e-4, "Learning rate of the generator.", gt=0)
        server_steps: int = fm.option(50, "Steps of the generator in a round.", ge=0)
        adam: bool = fm.option(
            True, "Whether these are steps of Adam, with moments that start from 0 in each round, or plain ones."
        )
        draws: int = fm.option(32, "Features in each step, and of a client in a round.", ge=1)
        diversity: float = fm.option(
            0.0, "Weight of the released code's term against features that do not follow the noise.", ge=0
        )

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        task, options = ctx.task, self.options
        with task.streams.isolated("generator"):
            hidden_layer = nn.Linear(options.noise + task.num_classes, options.hidden)
            net = nn.Sequential(hidden_layer, nn.ReLU(), nn.Linear(options.hidden, task.feature_dim))
            generator = tree_of(net.to(task.init["head.weight"].dtype))
        nothing = torch.zeros(task.num_classes, dtype=torch.int64)
        return super().server_init(ctx) | {"generator": generator, "class_counts": nothing}

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        return server if int(fm.get_tensor(server, "class_counts").sum()) else super().down(server, client, ctx)

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        options, rng = self.options, ctx.task.streams.numpy("generated", ctx.round)
        models = [fm.get_tree(upload, "model") for upload in uploads.values()]
        # [C, m, d]: a softmax over C is fast there
        heads = {name: torch.stack([m[name] for m in models], 1) for name in _HEAD if name in models[0]}
        weights, biases = heads["head.weight"], heads["head.bias"].flatten() if "head.bias" in heads else None
        counts = fm.tensors_of(uploads, "class_counts")
        held = counts.sum(0)
        shares = (counts.double() / held.clamp(min=1)).to(weights.dtype).T  # [C, m]

        def loss(tree: fm.Tree) -> Tensor:
            noise, labels = self.drawn(held, rng)
            z = generated(tree, noise, labels)
            logits = functional.linear(z, weights.flatten(0, 1), biases).view(len(z), len(weights), -1)  # [n, C, m]
            # [n, m]: each client's head judges generated features, weighted by its share of the label
            losses = fm.cross_entropy(logits, labels.unsqueeze(1).expand(-1, len(models)))
            total = (shares[labels] * losses).sum(1).mean()
            return total + options.diversity * crowding(noise, z) if options.diversity else total

        generator, steps = fm.get_tree(server, "generator"), (options.server_lr, options.server_steps)
        generator = descended(loss, generator, *steps, adam=options.adam)
        return {"model": self.mean(uploads), "generator": generator, "class_counts": held}

    def drawn(self, counts: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Draw normal noise [draws, noise] and labels [draws], by how often each class is held, `counts` [C]."""
        held = counts.double().numpy()
        # labels follow the counts of all clients, so that rare classes are not invented more often than seen
        labels = rng.choice(len(held), self.options.draws, p=held / held.sum())
        return torch.from_numpy(rng.standard_normal((self.options.draws, self.options.noise))), torch.from_numpy(labels)

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        if "generator" not in payload:  # round 1
            return start
        generator, rng = fm.get_tree(payload, "generator"), ctx.task.streams.numpy("generated", ctx.round, ctx.client)
        noise, labels = self.drawn(fm.get_tensor(payload, "class_counts"), rng)
        z = generated(generator, noise, labels)
        return fm.Start(start.tree, {"z": z, "labels": labels})

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        terms = {"ce": batch.mean(fm.cross_entropy(net(batch.x), batch.y))}
        if "z" in consts:
            generated_losses = fm.cross_entropy(net.head(consts["z"]), consts["labels"])
            terms["ce_generated"] = self.options.weight * generated_losses.mean()
        return fm.Objective.sum(terms)


def generated(tree: fm.Tree, noise: Tensor, labels: Tensor) -> Tensor:
    """Return the features [n, d] of the generator `tree`, for `noise` [n, e] and `labels` [n]."""
    classes = tree["0.weight"].shape[1] - noise.shape[1]
    inputs = torch.cat([noise, functional.one_hot(labels, classes)], 1).to(tree["0.weight"].dtype)
    hidden = functional.linear(inputs, tree["0.weight"], tree["0.bias"]).relu()
    return functional.linear(hidden, tree["2.weight"], tree["2.bias"])


def crowding(noise: Tensor, z: Tensor) -> Tensor:
    """Return exp(-mean over pairs of |noise difference|^2 times |z difference|): 1 where all features are equal."""
    apart = (noise.unsqueeze(1) - noise).square().mean(2)
    return torch.exp(-(apart * (z.unsqueeze(1) - z).abs().mean(2)).mean())
