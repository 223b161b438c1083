"""Known mistakes of public code and of papers' readers, each as one change of the source that the suite must notice."""

from typing import NamedTuple


class Mutation(NamedTuple):
    """In `file` (below src/fedloom/) the only `old` becomes `new`; one of `tests` (below tests/) must then fail."""

    mistake: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _of(name: str, mistake: str, old: str, new: str) -> Mutation:
    """In a method's own file, noticed by the method's own tests."""
    golden = (f"methods/test_{name}_golden.py",) if name in _GOLDEN else ()
    return Mutation(f"{name}: {mistake}", f"methods/{name}.py", old, new, (*golden, f"methods/test_{name}.py"))


_GOLDEN = {"fedco2", "feddw", "fedsc", "fedskc", "fedssa"}
_FEDOPT = ("methods/test_fedopt.py",)
_EXTENDED = ("data/test_partitions_extended_dirichlet.py",)
_PARTS = ("methods/test_personal_parts.py",)
_MODELS = ("methods/test_personal_models.py",)

MUTATIONS = (
    _of(
        "scaffold",
        "the sign of the control variates",
        'difference(fm.get_tree(payload, "control"), fm.get_tree(state, "control"))',
        'difference(fm.get_tree(state, "control"), fm.get_tree(payload, "control"))',
    ),
    _of("scaffold", "clients forget their variates", ', {"control": new_control}', ', {"control": old_control}'),
    _of(
        "scaffold",
        "the server divides by the participants, not by all clients",
        '"uniform"), len(uploads) / ctx.task.clients',
        '"uniform"), 1.0',
    ),
    _of("feddyn", "the sign of the linear term", '"linear": -linear', '"linear": linear'),
    _of("feddyn", "no quadratic term", "0.5 * self.options.alpha * proximal", "0.0 * proximal"),
    _of("feddyn", "the sign of g_k's step", "[1, alpha, -alpha]", "[1, -alpha, alpha]"),
    _of(
        "feddyn",
        "h over the participants, not over all clients",
        "self.options.alpha, len(uploads) / ctx.task.clients",
        "self.options.alpha, 1.0",
    ),
    _of("fednova", "local momentum is not counted", "work.steps, ctx.task.optimizer.momentum", "work.steps, 0.0"),
    Mutation(
        "fedadam: the bias is corrected one step off",
        "methods/fedadam.py",
        "sqrt(1 - options.beta2**round_)",
        "sqrt(1 - options.beta2 ** (round_ + 1))",
        _FEDOPT,
    ),
    Mutation(
        "fedyogi: the sign of the second moment's step",
        "methods/fedyogi.py",
        "return v - (1 - beta2)",
        "return v + (1 - beta2)",
        _FEDOPT,
    ),
    Mutation(
        "fedopt: tau under the root",
        "methods/parts/parameters.py",
        "(v[name].double().sqrt() + options.tau)",
        "(v[name].double() + options.tau).sqrt()",
        _FEDOPT,
    ),
    _of("fedavgm", "damped momentum", "[options.beta, 1])", "[options.beta, 1 - options.beta])"),
    _of("moon", "positive and negative swapped", '("received", "previous")]', '("previous", "received")]'),
    _of("moon", "the last model is that before training", '{"previous": work.tree}', '{"previous": work.start.tree}'),
    Mutation(
        "moon, fedskc: the teacher's features in training mode",
        "nets/net.py",
        "        self.net = net\n        self.eval()",
        "        self.net = net\n        self.train()",
        ("methods/test_frozen_nets.py",),
    ),
    Mutation(
        "fedproto: the distance summed over features",
        "methods/parts/prototypes.py",
        "(z - rows).square().mean(1)",
        "(z - rows).square().sum(1)",
        ("methods/test_fedproto.py",),
    ),
    Mutation(
        "fedproto: missing prototypes are rows of zeros",
        "methods/parts/prototypes.py",
        'torch.where(consts["known"][batch.y], distance, 0.0)',
        "distance",
        ("methods/test_fedproto.py",),
    ),
    _of("fedntd", "the direction of KL", "kl_divergence(*others)", "kl_divergence(*others[::-1])"),
    _of("fedntd", "no tau squared", "self.options.beta * tau**2", "self.options.beta"),
    _of("fedlc", "the sign of the calibration", "counts > 0, -self.options.tau", "counts > 0, self.options.tau"),
    _of("fednh", "bodies weighted by samples", 'self.mean(uploads, weights="uniform") | {W', "self.mean(uploads) | {W"),
    _of(
        "fednh",
        "rows of classes that nobody holds are lost",
        "unchanged = ~fresh.held | torch.tensor(rho == 1)",
        "unchanged = torch.zeros_like(fresh.held)",
    ),
    _of("feduv", "the biased deviation", "* samples / (samples - 1).clamp(min=1)", "* 1"),
    _of(
        "fedrcl",
        "the most similar positive, not the least",
        "positive = cosines.masked_fill(~(same_class & counted), NONE).amin(1)",
        "positive = cosines.masked_fill(~(alike & counted), FAR).amax(1)",
    ),
    _of("fedcda", "absent clients are left out", "for client in sorted(chosen)]", "for client in sorted(uploads)]"),
    Mutation(
        "fedbabu: the head is trained",
        "methods/fedbabu.py",
        "trains=fm.TRAINABLE - {fm.Role.HEAD})]",
        "trains=fm.TRAINABLE)]",
        _MODELS,
    ),
    Mutation(
        "fedrep: the head is never fitted",
        "methods/fedrep.py",
        "options.head_epochs, trains=head",
        "options.head_epochs, trains=body",
        _PARTS,
    ),
    Mutation(
        "fedper: averaged heads",
        "methods/fedper.py",
        "spec = fm.Spec(private=frozenset({fm.Role.HEAD}))",
        "spec = fm.Spec()",
        _PARTS,
    ),
    Mutation(
        "lgfedavg: the body travels, not the head",
        "methods/lgfedavg.py",
        "private=fm.ALL_ROLES - {fm.Role.HEAD}",
        "private=frozenset({fm.Role.HEAD})",
        _PARTS,
    ),
    Mutation(
        "fedala: A weighs the own head, not the received one",
        "methods/fedala.py",
        "local + (received - local) * mixing[name]",
        "received + (local - received) * mixing[name]",
        _MODELS,
    ),
    Mutation(
        "apfl: the mixed loss moves the shared net",
        "methods/apfl.py",
        "(1 - alpha) * shared[name].detach()",
        "(1 - alpha) * shared[name]",
        _MODELS,
    ),
    Mutation(
        "ditto: no half in the proximal term",
        "methods/ditto.py",
        "0.5 * self.options.weight * pull",
        "self.options.weight * pull",
        _MODELS,
    ),
    Mutation("pfedme: beta weighs the old model", "methods/pfedme.py", "[1 - beta, beta]", "[beta, 1 - beta]", _MODELS),
    Mutation(
        "perfedavg: the outer gradient at the first weights",
        "methods/perfedavg.py",
        "functional_call(net, moved, (pieces[1][0],))",
        "functional_call(net, weights, (pieces[1][0],))",
        _MODELS,
    ),
    Mutation(
        "perfedavg: the sign of the Hessian term",
        "methods/perfedavg.py",
        "(-options.alpha / (2 * options.delta))",
        "(options.alpha / (2 * options.delta))",
        _MODELS,
    ),
    _of(
        "fedrod",
        "the private head's loss moves the body",
        "logits.detach() + net.extra(z.detach())",
        "logits.detach() + net.extra(z)",
    ),
    _of("fedrod", "the sign of the balanced softmax", "self.options.gamma * counts", "-self.options.gamma * counts"),
    _of(
        "fml",
        "the direction of KL",
        "kl_divergence(meme.detach(), private_logits)",
        "kl_divergence(private_logits, meme.detach())",
    ),
    _of(
        "fedkd",
        "features' distance summed, not averaged",
        "aligned.detach()).square().mean(1)",
        "aligned.detach()).square().sum(1)",
    ),
    _of("feddbe", "the goal has no weights", 'self.mean(uploads, "mean")', 'self.mean(uploads, "mean", "uniform")'),
    _of("feddbe", "clients train without their vector", "z + bias_of(net) if", "z if"),
    _of("cfl", "a cluster splits while its mean still moves", "mean_norm < options.eps1", "mean_norm >= options.eps1"),
    _of("cfl", "complete linkage is single", "torch.maximum if linkage", "torch.minimum if linkage"),
    _of(
        "fedem",
        "samples ignore the client's shares",
        ".to(losses.dtype) - losses",
        ".to(losses.dtype) * 0 - losses",
    ),
    _of("fedem", "logits are mixed, not probabilities", "one(x).log_softmax(1)", "one(x)"),
    _of("ifca", "a client takes the model with the highest loss", "argmin().reshape(1)", "argmax().reshape(1)"),
    _of("fedfomo", "the squared length", "return square if", "return square if norm == 'l2' or"),
    _of("fedfomo", "negative weights mix, too", ".clamp(min=0)", ""),
    _of("fedfomo", "the validation part trains", "part=part.others", "part=part"),
    _of("fedfomo", "clients forget their base", 'if "base" in state and', 'if "base" not in state and'),
    _of(
        "floco",
        "the middle in every step",
        "lengths = -drawn.clamp(min=1e-20).log()",
        "lengths = torch.ones_like(drawn)",
    ),
    Mutation(
        "floco: components of what all clients have in common",
        "methods/floco.py",
        "centred = rows.double() - rows.double().mean(0)",
        "centred = rows.double()",
        ("methods/test_floco.py",),
    ),
    _of("floco", "a test at the middle, not at the centre", "middle if centre is None else centre", "middle"),
    Mutation(
        "floco: the centres that lie nearest",
        "methods/floco.py",
        "if (energy := riesz_energy(places)) < least",
        "if -(energy := -riesz_energy(places)) < least",
        ("methods/test_floco.py",),
    ),
    _of(
        "fedmrl",
        "the own features come first",
        "[bundle[SMALL].features(x), bundle[OWN].features(x)]",
        "[bundle[OWN].features(x), bundle[SMALL].features(x)]",
    ),
    _of(
        "gpfl",
        "the anchors move with the training",
        'general - consts["anchors"][batch.y]',
        "general - embedding[batch.y]",
    ),
    _of(
        "gpfl",
        "the two conditions swapped",
        "return embedding.mean(0), shares @ embedding",
        "return shares @ embedding, embedding.mean(0)",
    ),
    _of("fedamp", "the slope without sigma", "options.alpha * slope / options.sigma", "options.alpha * slope"),
    _of(
        "fedamp",
        "no half in the pull",
        "self.options.weight / (2 * self.options.alpha)",
        "self.options.weight / self.options.alpha",
    ),
    _of(
        "fedcgs",
        "the covariance divided by the number of samples",
        "scatter / max(samples - 1, 1)",
        "scatter / samples",
    ),
    Mutation(
        "fedcgs: the head without the shares of classes",
        "methods/parts/one_shot.py",
        "log_priors - (values",
        "0 * log_priors - (values",
        ("methods/test_fedcgs.py",),
    ),
    _of("fedcof", "holders counted one too many", "holders - 1, torch.inf", "holders, torch.inf"),
    Mutation(
        "fed3r: the ridge times the number of samples",
        "methods/fed3r.py",
        "gram = samples * squares + self.options.ridge",
        "gram = samples * squares + samples * self.options.ridge",
        ("methods/test_fedcgs.py",),
    ),
    Mutation(
        "fedncm: rows that are not unit",
        "methods/fedncm.py",
        "return normalize(means.values, dim=1, eps=1e-12)",
        "return means.values",
        ("methods/test_fedcof.py",),
    ),
    _of("fedcp", "the two shares swapped", "personal, general = torch.softmax", "general, personal = torch.softmax"),
    _of(
        "fedcp",
        "the personal head is sent as it is",
        'work.start.consts["head"]], [0.5, 0.5]',
        'work.start.consts["head"]], [1.0, 0.0]',
    ),
    _of(
        "fedas",
        "the head of the server",
        "received | fm.select(own, ctx.task.names(HEAD))",
        "received | fm.select(received, ctx.task.names(HEAD))",
    ),
    _of(
        "fedas",
        "clients weigh by their samples",
        'weights=traces if sum(traces) > 0 else "samples"',
        'weights="samples"',
    ),
    _of("fedclassavg", "a row is its own positive", "positive = others & (", "positive = (others | ~others) & ("),
    _of(
        "fd",
        "a client is taught by itself",
        'get_tensor(server, "senders") != client',
        'get_tensor(server, "senders") >= 0',
    ),
    _of("feddistill", "the moving average turned round", '"eye", self.options.ema', '"eye", 1 - self.options.ema'),
    _of("fedgh", "rows are labelled by client", "tables.held.nonzero()[:, 1]", "tables.held.nonzero()[:, 0]"),
    _of("fedtgp", "the sign of the margin", "-(distances + margins)", "-(distances - margins)"),
    Mutation(
        "fedorgp: the filter takes the distance alone",
        "methods/fedorgp.py",
        "(1 - weight) * _scaled(cosines)",
        "0 * _scaled(cosines)",
        ("methods/test_fedorgp.py",),
    ),
    _of(
        "fedorgp",
        "a row's own class is among the others",
        "functional.one_hot(labels, len(prototypes)) == 0",
        "functional.one_hot(labels, len(prototypes)) >= 0",
    ),
    _of(
        "protonorm",
        "the force of the inverse square",
        "1 / (squares + 1e-10), 0.0",
        "1 / (squares + 1e-10) ** 1.5, 0.0",
    ),
    _of(
        "fedpac", "variances are not over samples", "float(h.square().sum())) / ctx.samples", "float(h.square().sum()))"
    ),
    _of(
        "fedpac",
        "the head moves with the body",
        "ctx.task.local_epochs, fm.TRAINABLE - head",
        "ctx.task.local_epochs, TRAINABLE",
    ),
    _of("fedproc", "a temperature of one half", "Cosines(1.0)", "Cosines(0.5)"),
    _of(
        "fedpcl",
        "rows that a client lacks are zeros",
        "torch.where(tables.held.unsqueeze(2), tables.values, overall.values)",
        "tables.values",
    ),
    _of(
        "fpl",
        "the contrast is averaged over samples of known classes alone",
        "batch.mean(torch.where(known, contrast, 0.0))",
        "batch.mean(contrast, among=known)",
    ),
    _of("pfedfda", "the head trains, too", "trains=body, collect=rows", "collect=rows"),
    _of("fedl2g", "squares are summed over the width", "apart.square().mean(1)", "apart.square().sum(1)"),
    _of("fedmd", "clients revisit before they digest", "[digest] if", "[revisit, digest] if"),
    _of(
        "fedplvm",
        "the power goes to the wrong side",
        ".pow(options.alpha) / options.tau",
        " / options.tau**options.alpha",
    ),
    _of("feddisco", "the sign of the discrepancy", "- self.options.a * distances", "+ self.options.a * distances"),
    _of("fedprox", "no half in the proximal term", "0.5 * self.options.mu", "self.options.mu"),
    _of(
        "fedco2",
        "the online classifier is uploaded",
        "_classifier(task, OFFLINE)}, OFFLINE)",
        "_classifier(task, ONLINE)}, ONLINE)",
    ),
    _of("fedco2", "foreign heads summed, not averaged", '1 / _count(consts["heads"]) if', "1.0 if"),
    _of(
        "fedco2",
        "the direction of mutual KL",
        "kl_divergence(taught, bundle[student](batch.x))",
        "kl_divergence(bundle[student](batch.x), taught)",
    ),
    _of("feddw", "the sign of the regulariser", "base.total + regulariser", "base.total - regulariser"),
    _of("fedsc", "weights by samples, not by discrepancy", "discrepancy_weights(counts)", "counts.double()"),
    _of(
        "fedskc",
        "knowledge of an absent class is lost",
        "knowledge = knowledge.fill_missing(last.to(torch.float64))",
        "knowledge = knowledge",
    ),
    _of(
        "fedssa",
        "a header that nobody sent becomes zero",
        'header = fresh.to(torch.float32).fill_missing(fm.get_table(server, "header"))',
        "header = fresh.to(torch.float32)",
    ),
    Mutation(
        "all: counters of batch norm are averaged",
        "core/trees.py",
        "if value.is_floating_point():\n            groups",
        "if True:\n            groups",
        ("core/test_trees.py", "methods/test_contract.py"),
    ),
    Mutation(
        "all: a class that a client lacks counts as a row of zeros",
        "core/tables.py",
        "self.values.sum(0), self.held.sum(0)",
        "self.values.sum(0), torch.ones_like(self.held).sum(0)",
        ("core/test_tables.py",),
    ),
    _of("fedsam", "the adaptive ascent scales once", "move * self._scale(name, parameters)", "move"),
    _of(
        "fedsam",
        "the length of each tensor, not of all together",
        "value * (self.options.rho / length)",
        "value * (self.options.rho / value.norm().clamp(min=1e-12))",
    ),
    _of("fedexp", "no half", "2 * (squared_mean + eps)", "(squared_mean + eps)"),
    _of("fedexp", "the step may fall below one", "max(1.0, squared_length / divisor)", "squared_length / divisor"),
    _of(
        "fedrs",
        "classes that are held are scaled",
        "torch.where(ctx.class_counts > 0, 1.0,",
        "torch.where(ctx.class_counts == 0, 1.0,",
    ),
    _of(
        "qfedavg",
        "the loss after training",
        '[fm.Collect({"loss": fm.Moments(_losses)}), *super().phases(start, ctx)]',
        '[*super().phases(start, ctx), fm.Collect({"loss": fm.Moments(_losses)})]',
    ),
    _of("feddecorr", "the biased variance", "(samples - 1).clamp(min=1)", "samples.clamp(min=1)"),
    _of("heterofl", "rows of the head of all clients", "of_rows = task.roles", "of_rows = False and task.roles"),
    _of("heterofl", "the scaler multiplies", "value / rate", "value * rate"),
    Mutation(
        "krum: one neighbour too few",
        "methods/wrappers/robust_rules.py",
        "max(2, len(squares) - faulty - 1)",
        "max(2, len(squares) - faulty - 2)",
        ("methods/wrappers/test_robust.py",),
    ),
    Mutation(
        "bulyan: values nearest the mean, not the median",
        "methods/wrappers/robust_rules.py",
        "picked - median(picked)",
        "picked - picked.mean(0)",
        ("methods/wrappers/test_robust.py",),
    ),
    Mutation(
        "all: a number that nobody holds counts as zero",
        "methods/contract/means.py",
        "torch.where(self._held[name], mean[name], value)",
        "torch.where(self._held[name], mean[name], 0 * value)",
        ("methods/test_means.py",),
    ),
    _of(
        "fedpac",
        "a class that nobody holds in a round loses its mean",
        'means = means.fill_missing(fm.get_table(server, "prototypes"))',
        "pass",
    ),
    _of("floco", "parts begin after a third of the rounds", "max(2, task.rounds // 2)", "max(2, task.rounds // 3)"),
    _of("fedfomo", "the probability falls before round 1", "decay * (ctx.round - 1)", "decay * ctx.round"),
    _of("qfedavg", "h is at least 1", "[1, -1 / h])", "[1, -1 / max(1.0, h)])"),
    *(
        Mutation(f"extended Dirichlet: {mistake}", "data/partitions/dirichlet.py", old, new, _EXTENDED)
        for mistake, old, new in (
            ("a full client gets more", "[class_holders] * clients < len(train)", "[class_holders] * clients < np.inf"),
            ("one holder of a class is enough", "max(1, per_client * clients // num_classes // _HOLDERS_OF_EVEN)", "1"),
            (
                "test samples are cut evenly",
                "cut(shares, len(test_rows))",
                "cut(np.full(len(shares), 1 / len(shares)), len(test_rows))",
            ),
        )
    ),
)
