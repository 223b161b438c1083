"""FedSC and FedSKC: the properties that their equations promise, whatever the numbers."""

import itertools
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fedloom
from fedloom.core.tables import ClassTable
from fedloom.methods import fedsc, fedskc
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.phases import Batch, OptimizerSpec
from fedloom.methods.parts.contrast import mean_distances
from support import CLASSES, Through, Tiny, TinyBN, configured, furthest, rows_of, same_tree, world

NAMES, PRESETS = ("fedsc", "fedskc"), ("paper", "authors", "sound")
TERM = {"fedsc": "rpcl", "fedskc": "lcl"}
WIDTH = {"fedsc": 3, "fedskc": CLASSES}
SENT = {"fedsc": "prototypes", "fedskc": "knowledge"}
STILL = OptimizerSpec(lr=0.0)
# Class 3 is held by nobody, class 2 by client 2 alone; client 3 has one sample, so one class.
SKEWED = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
HELD = [[True, True, False, False], [True, True, False, False], [True, False, True, False]]
FEDSKC_LOSSES = [
    {"scale": scale, "detach_scale": detach, "denominator": denominator, "missing_positive": missing}
    for scale in ("batch", "dataset", "none")
    for detach in (True, False)
    for denominator in ("once", "positive_twice")
    for missing in ("mask", "self")
]
FEDSC_LOSSES = [
    {"scale": scale, "detach_scale": detach, "positives": positives, "rpcl_reduce": reduce, "cpdr": norm}
    for scale, detach, positives, reduce, norm in itertools.product(
        ("batch", "dataset", "none"), (True, False), ("all", "mean"), ("sum", "mean_exp"), ("l1", "l2", "mse", "off")
    )
] + [{"positives": "self", "cpdr": "off"}]
LOSSES = [("fedsc", options) for options in FEDSC_LOSSES] + [("fedskc", options) for options in FEDSKC_LOSSES]


def random_table(clients=4, width=3, seed=0, held=None) -> ClassTable:
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(clients, CLASSES, width, generator=rng, dtype=torch.float64)
    held = torch.rand(clients, CLASSES, generator=rng) < 0.7 if held is None else torch.tensor(held)
    return ClassTable(torch.where(held.unsqueeze(-1), values, 0.0), held)


def knowledge_table(seed=0, held=(True, True, True, False)) -> ClassTable:
    table = random_table(1, CLASSES, seed, [held])
    return ClassTable(table.values[0], table.held[0])


def single(table: ClassTable) -> ClassTable:
    return table.to(torch.float32)


def constants(method, *tables: ClassTable, round_=2):
    """What a client of FedSC gets from R and O, of FedSKC from c~; and some U, where that comes from the data set."""
    toy = world(method, [[0, 1]])
    names = ("relational", "consistent") if len(tables) == 2 else ("knowledge",)
    payload = {"model": toy.task.init, **dict(zip(names, tables, strict=True))}
    consts = method.begin(payload, {}, toy.federation.client_context(0, round_)).consts
    return consts | {"scale": torch.linspace(0.5, 2.0, len(rows_of(consts)), dtype=tables[0].values.dtype)}


def tables_of(name, seed=0, held=None, rows=4) -> tuple[ClassTable, ...]:
    """R and O of FedSC, c~ of FedSKC."""
    if name == "fedskc":
        return (knowledge_table(seed, *(() if held is None else (held[0],))),)
    r = random_table(rows, seed=seed, held=held)
    weights = fedsc.discrepancy_weights(torch.tensor([[3, 1, 0, 2], [1, 1, 1, 1], [5, 0, 0, 0], [2, 2, 0, 1]]))
    return r, fedsc.consistent_prototypes(r, weights)


def example(name, seed=0, rows=7):
    """Features (of FedSKC: logits) of `rows` samples, and labels of all classes, in float64."""
    rng = torch.Generator().manual_seed(seed + 100)
    return torch.randn(rows, WIDTH[name], generator=rng, dtype=torch.float64), torch.arange(rows) % CLASSES


def objective(method, x, y, consts, mask=None):
    """The loss of a net whose features are its inputs; its head is the identity, or numbers from -1 to 1."""
    square = torch.eye(CLASSES, dtype=x.dtype)
    head = square if method.name() == "fedskc" else torch.linspace(-1, 1, CLASSES * x.shape[1], dtype=x.dtype)
    return method.loss(Through(head.reshape(CLASSES, -1)), Batch(x, y, mask), consts)


def slope(objective, x):
    return torch.autograd.grad(objective.total, x)[0]


# -- tables of the server: classes held by nobody, or by one; neighbours -----------------------------------------------
@pytest.mark.parametrize("metric", ["angle", "l1", "l2", "cosine", "kl", "none"])
def test_a_class_of_one_holder_keeps_its_prototype_and_one_of_nobody_stays_absent(metric):
    held = [[True, True, False, False], [True, False, False, False], [True, False, False, False]]
    local = random_table(clients=3, held=held)
    r = fedsc.relational_prototypes(local, 2, metric)
    o = fedsc.consistent_prototypes(r, torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64))
    assert torch.equal(r.held, local.held)
    assert o.held.tolist() == [True, True, False, False]
    assert torch.equal(r.values[0, 1], local.values[0, 1])
    assert torch.allclose(o.values[1], local.values[0, 1], rtol=0, atol=1e-15)
    assert not r.values[~r.held].any()
    assert not o.values[~o.held].any()


def slow_relational(local: ClassTable, neighbours: int, metric: str) -> torch.Tensor:
    """Eq. 5-9 and Table 5 of FedSC as printed: loops over classes and clients, plain Python numbers."""

    def cosine(a, b):
        return float(a @ b) / (math.sqrt(float(a @ a)) * math.sqrt(float(b @ b)))

    def kl(a, b):
        p, q = torch.softmax(a, 0), torch.softmax(b, 0)
        return float((p * (p / q).log()).sum())

    distances = {
        "angle": lambda a, b, g: abs(cosine(g, a) - cosine(g, b)),
        "l1": lambda a, b, g: float((a - b).abs().sum()),
        "l2": lambda a, b, g: math.dist(a, b),
        "cosine": lambda a, b, g: 1 - cosine(a, b),
        "kl": lambda a, b, g: kl(a, b),
    }
    r = torch.zeros_like(local.values)
    for label in range(local.held.shape[1]):
        rows = {k: local.values[k, label] for k in range(len(local.held)) if local.held[k, label]}
        for k in rows:
            g = sum(rows.values()) / len(rows)
            others = sorted((q for q in rows if q != k), key=lambda q: distances[metric](rows[k], rows[q], g))
            merged = [k, *others[:neighbours]]
            r[k, label] = sum(rows[q] for q in merged) / len(merged)
    return r


@pytest.mark.parametrize("metric", ["angle", "l1", "l2", "cosine", "kl"])
@pytest.mark.parametrize("neighbours", [0, 1, 2, 9])
def test_prototypes_and_knowledge_against_plain_loops(metric, neighbours):
    local = random_table(clients=7, width=5, seed=11)
    slow = slow_relational(local, neighbours, metric)
    assert torch.allclose(fedsc.relational_prototypes(local, neighbours, metric).values, slow, rtol=0, atol=1e-12)
    if metric == "l2":
        c = fedskc.global_knowledge(local, neighbours)
        mean = slow.sum(0) / local.held.sum(0).clamp(min=1).unsqueeze(1)
        assert torch.allclose(c.values, mean, rtol=0, atol=1e-12)
        assert torch.equal(c.held, local.held.any(0))


@pytest.mark.parametrize(("metric", "nudge"), [("angle", -1e-14), ("l1", 1e-14), ("l2", 1e-14)])
def test_ties_between_neighbours_go_to_the_smaller_client(metric, nudge):
    # Clients 1 and 2 hold one and the same prototype; client 3's is nearer to client 0's by rounding, not in earnest.
    values = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 1.0]], [[nudge, 1.0]]], dtype=torch.float64)
    local = ClassTable(values, torch.ones(4, 1, dtype=torch.bool))
    r = fedsc.relational_prototypes(local, 1, metric).values[:, 0]
    assert torch.equal(r[0], (values[0, 0] + values[1, 0]) / 2)
    assert torch.equal(r[3], (values[3, 0] + values[1, 0]) / 2)


def test_weights_sum_to_one_and_prefer_large_balanced_clients():
    for counts in (
        torch.tensor([[9, 9, 9, 9], [9, 9, 9, 9]]),  # no discrepancy at all: 0 / 0 must not happen
        torch.tensor([[100_000, 0, 0, 0], [0, 1, 0, 0], [5, 5, 5, 5]]),
        torch.tensor([[3, 0, 0, 0]]),
    ):
        e = fedsc.discrepancy_weights(counts)
        assert float(e.sum()) == pytest.approx(1, abs=1e-12)
        assert (e > 0).all()
    assert torch.equal(fedsc.discrepancy_weights(torch.full((5, 4), 7)), torch.full((5,), 0.2, dtype=torch.float64))
    same_mix = fedsc.discrepancy_weights(torch.tensor([[20, 4, 4, 4], [5, 1, 1, 1]]))
    assert same_mix[0] > same_mix[1]
    same_size = fedsc.discrepancy_weights(torch.tensor([[8, 0, 0, 0], [2, 2, 2, 2]]))
    assert same_size[1] > same_size[0]


# -- FedSKC's server ---------------------------------------------------------------------------------------------------
def uploads_of(local: ClassTable, samples=(3, 5, 4, 8), weights=None):
    rng = torch.Generator().manual_seed(9)
    drawn = [torch.randn(5, generator=rng) for _ in range(len(local.held))]
    return {
        k: {
            "model": {"w": drawn[k] if weights is None else weights[k]},
            "samples": samples[k],
            "knowledge": ClassTable(local.values[k].float(), local.held[k]),
        }
        for k in range(len(local.held))
    }


def aggregated(server, uploads, preset="paper", **options):
    """The server after a round, and what its method says of it."""
    method = configured("fedskc", preset, **options)
    ctx = ServerContext(world(method, [[0]]).task, 2)
    new = method.aggregate(server, uploads, ctx)
    return new, {found.code: found for found in method.diagnostics(new, uploads, ctx)}


LOCAL = random_table(3, CLASSES, held=HELD)


@pytest.mark.parametrize("sticky", [False, True])
def test_knowledge_nobody_has_this_round_is_dropped_or_kept(sticky):
    last = single(knowledge_table(1, (True,) * CLASSES))
    server = {"model": {"w": torch.zeros(5)}, "knowledge": last}
    new, _ = aggregated(server, uploads_of(LOCAL), "sound", gpr="off", sticky_knowledge=sticky)
    assert new["knowledge"].held.tolist() == [True, True, True, sticky]
    assert torch.equal(new["knowledge"].values[3], last.values[3] if sticky else torch.zeros(CLASSES))


@pytest.mark.parametrize(
    ("samples", "clients", "gda", "uniform"),
    [
        ((3000, 2000, 4000, 2500), 4, "paper", True),
        ((1, 2, 1, 1), 4, "paper", False),
        *(((3000,) * 4, clients, gda, False) for clients, gda in ((1, "paper"), (1, "share"))),  # it has all the weight
        *(((3000,) * 4, 4, gda, False) for gda in ("fedavg", "uniform")),  # which take no weights from tables
    ],
)
def test_printed_weights_are_uniform_for_thousands_of_samples_and_that_is_reported(samples, clients, gda, uniform):
    local = random_table(4, CLASSES)
    _, found = aggregated({}, dict(list(uploads_of(local, samples).items())[:clients]), gda=gda)
    assert ("fedskc.uniform_gda" in found) is uniform
    if uniform:
        c = fedskc.global_knowledge(local, 1)
        e = fedskc.aggregation_weights(local, c, torch.tensor(samples, dtype=torch.float64), "paper")
        assert float((e - 0.25).abs().max()) < 1e-12
        figure = found["fedskc.uniform_gda"].figure
        assert figure < 1e-6
        assert f"{figure:.1e}" in found["fedskc.uniform_gda"].message


@pytest.mark.parametrize("gpr", ["paper", "affine"])
def test_gpr_needs_a_class_of_both_rounds_with_variance(gpr):
    """Skipped in round 1, for no common class, and for knowledge without variance: the average stays as it is."""
    mean = aggregated({}, uploads_of(LOCAL), gda="uniform", gpr=gpr)[0]["model"]["w"]
    elsewhere = single(knowledge_table(held=(False, False, False, True)))
    flat = ClassTable(torch.ones(CLASSES, CLASSES), torch.ones(CLASSES, dtype=torch.bool))
    for last in (elsewhere, flat):
        server = {"model": {"w": torch.full((5,), 100.0)}, "knowledge": last}
        new, _ = aggregated(server, uploads_of(LOCAL), gda="uniform", gpr=gpr)
        assert torch.equal(new["model"]["w"], mean)
        assert "rho" not in new


def test_gpr_on_batch_norm():
    """Floating buffers take part, variances stay above zero, counters stay integers of the first participant."""
    toy = world(configured("fedskc", "paper", gda="uniform"), SKEWED[:3], net=TinyBN)
    toy.federation.step()
    server = dict(toy.federation.server)
    tall = {n: v + 1e4 if n == "norm.running_var" else v for n, v in server["model"].items()}
    server |= {"model": tall, "knowledge": ClassTable(server["knowledge"].values * 3, server["knowledge"].held)}
    uploads = {k: toy.worker.run(toy.job(k, round_=2)).upload for k in range(3)}
    new = toy.method.aggregate(server, uploads, ServerContext(toy.task, 2))
    assert new["rho"] < -0.5  # away from the last model, whose variances are large
    assert torch.equal(new["model"]["norm.running_var"], torch.zeros(6))
    counter = new["model"]["norm.num_batches_tracked"]
    assert counter.dtype == torch.int64
    assert torch.equal(counter, uploads[0]["model"]["norm.num_batches_tracked"])
    assert float(new["model"]["norm.running_mean"].abs().max()) > 0


@pytest.mark.parametrize(
    ("options", "tiny", "codes"),
    [
        ({"gpr": "paper"}, False, ["fedskc.gpr_shrinks"]),
        ({"gpr": "paper"}, True, ["fedskc.gpr_shrinks", "fedskc.gpr_oversteps"]),
        ({"gpr": "affine"}, False, []),
        ({"gpr": "affine"}, True, ["fedskc.gpr_oversteps"]),
        ({"gpr": "affine", "gpr_clip": (-1, 20)}, True, []),
        ({"gpr": "off"}, True, []),
    ],
)
def test_shrinking_and_overstepping_are_reported(options, tiny, codes):
    last = single(knowledge_table())
    last = ClassTable(last.values * 1e-3, last.held) if tiny else last
    server = {"model": {"w": torch.zeros(5)}, "knowledge": last}
    new, found = aggregated(server, uploads_of(LOCAL), gda="fedavg", **options)
    assert list(found) == codes
    if "fedskc.gpr_shrinks" in found:
        assert found["fedskc.gpr_shrinks"].figure == 0.95
        assert "5% a round" in found["fedskc.gpr_shrinks"].message
    if "fedskc.gpr_oversteps" in found:
        assert found["fedskc.gpr_oversteps"].figure == new["rho"] > 20
    assert "gpr_clip" not in options or new["rho"] == 20


@pytest.mark.parametrize("gda", ["paper", "share", "fedavg", "uniform"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_round_that_diverged_ends(gda, value):
    """Nothing is repaired: the new model is not finite either."""
    local = random_table(3, CLASSES, held=HELD)
    local.values[1, 0] = value
    uploads = uploads_of(local, weights=[torch.ones(5), torch.full((5,), value), torch.ones(5)])
    server = {"model": {"w": torch.ones(5)}, "knowledge": single(knowledge_table())}
    assert not aggregated(server, uploads, gda=gda)[0]["model"]["w"].isfinite().any()


def test_a_printed_gpr_that_throws_the_model_away_leaves_a_finished_run():
    result = fedloom.run(
        method="fedskc",
        preset="paper",
        scenario=fedloom.scenario("digits", partition="dirichlet", alpha=0.1, clients=20),
        model="digits-cnn",
        rounds=5,
        participation=0.4,
        local_epochs=2,
        optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9},
        fedskc={"lambda_lcl": 30.0},
        seed=3,
    )
    assert result.numbers["test_loss"] is None
    assert any(message.startswith("diverged: in round ") for message in result.numbers["degenerate"])


# -- the contrast ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("preset", PRESETS)
def test_rows_of_absent_classes_are_never_read(name, preset):
    """What lies in memory where nobody holds a class changes neither loss nor gradient."""
    held = [[True, True, False, False], [True, False, False, False], [False, True, True, False], [False] * 4]
    method, tables, results = configured(name, preset), tables_of(name, held=held), []
    spoilt = [ClassTable(torch.where(t.held.unsqueeze(-1), t.values, 50.0), t.held) for t in tables]
    for given in (tables, spoilt):
        x, y = example(name)
        out = objective(method, x.requires_grad_(), y, constants(method, *given))
        results.append((out.total, slope(out, x)))
    (clean, clean_slope), (dirty, dirty_slope) = results
    assert torch.allclose(clean, dirty, rtol=0, atol=1e-12)
    assert torch.allclose(clean_slope, dirty_slope, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_the_contrast_of_the_only_known_class_is_zero(name):
    method = configured(name, "paper")
    consts = constants(method, *tables_of(name, held=[[False, True, False, False]] * 4))
    x, y = example(name)
    y = torch.ones_like(y) if name == "fedsc" else y
    assert float(objective(method, x, y, consts).terms[TERM[name]].detach()) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_without_U_the_length_of_prototypes_does_not_matter(name, preset):
    first, *rest = tables_of(name)
    longer = ClassTable(first.values * 37.5, first.held)
    for scale in ("none", "batch") if preset == "paper" else ("none",):
        method = configured(name, preset, scale=scale)
        x, y = example(name)
        both = [objective(method, x, y, constants(method, t, *rest)).terms[TERM[name]] for t in (first, longer)]
        assert torch.allclose(*both, rtol=1e-12, atol=1e-12) is (scale == "none")


def test_mean_exp_adds_the_log_of_the_number_of_positives():
    held = [[True, True, False, False]] * 3 + [[True, False, False, False]]
    losses = {}
    for reduce in ("sum", "mean_exp"):
        method = configured("fedsc", "paper", rpcl_reduce=reduce)
        x, y = example("fedsc", rows=2)
        losses[reduce] = float(objective(method, x, y, constants(method, *tables_of("fedsc", held=held))).terms["rpcl"])
    assert losses["mean_exp"] - losses["sum"] == pytest.approx((math.log(4) + math.log(3)) / 2, abs=1e-12)


def test_samples_of_an_unknown_class_feel_cross_entropy_alone():
    method = configured("fedskc", "paper", scale="none")
    consts = constants(method, knowledge_table())
    x, y = example("fedskc")
    unknown = y == 3
    gradient, ce_gradient = (slope(objective(method, x.requires_grad_(), y, c), x) for c in (consts, {}))
    assert torch.equal(gradient[unknown], ce_gradient[unknown])
    assert not torch.allclose(gradient[~unknown], ce_gradient[~unknown], atol=1e-3)
    y = torch.full_like(y, 3)
    out = objective(method, x, y, consts)
    assert float(out.terms["lcl"].detach()) == 0
    assert torch.equal(slope(out, x), slope(objective(method, x, y, {}), x))


@pytest.mark.parametrize("scale", ["batch", "dataset", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_low_temperature_stays_finite(scale, dtype):
    """tau = 0.01 with opposite prototypes: naive exponentials of +-100 leave float32."""
    method = configured("fedsc", "paper", tau=0.01, scale=scale)
    rows = torch.tensor([[[1.0, 0], [-1, 0], [0, 1], [0, -1]]], dtype=dtype)
    r = ClassTable(rows, torch.ones(1, 4, dtype=torch.bool))
    consts = constants(method, r, ClassTable(r.values[0], r.held[0])) | {"scale": torch.full((4,), 1e-3, dtype=dtype)}
    z = torch.tensor([[-1.0, 0], [1, 1e-4], [0, -3]], dtype=dtype, requires_grad=True)
    out = objective(method, z, torch.tensor([0, 1, 2]), consts)
    assert out.total.isfinite()
    assert slope(out, z).isfinite().all()
    if scale == "none":  # every sample sits on the opposite class: cos differs by 2
        assert float(out.terms["rpcl"].detach()) == pytest.approx(2 / 0.01, rel=1e-3)


@pytest.mark.parametrize("naive", [False, True])
@pytest.mark.parametrize("denominator", ["once", "positive_twice"])
def test_low_temperature_is_finite_unless_exponentials_are_naive(naive, denominator):
    """The NaN of FedSKC's paper at tau = 0.01 (Fig. 3a): exp(1 / 0.01) leaves float32."""
    method = configured("fedskc", "paper", tau=0.01, scale="none", naive_exp=naive, denominator=denominator)
    consts = constants(method, ClassTable(torch.eye(CLASSES), torch.ones(CLASSES, dtype=torch.bool)))
    logits = (torch.eye(CLASSES) * 3 + 0.01).requires_grad_()
    out = objective(method, logits, torch.arange(CLASSES), consts)
    assert bool(out.total.isnan()) == naive
    assert bool(slope(out, logits).isfinite().all()) != naive


@pytest.mark.parametrize(("name", "options"), LOSSES, ids=lambda o: o if o in NAMES else "-".join(map(str, o.values())))
def test_features_of_zero_and_features_on_a_prototype_have_finite_gradients(name, options):
    method = configured(name, "paper", **options)
    for seed in range(1 if name == "fedsc" else 5):
        consts = constants(method, *tables_of(name, seed, [[True] * CLASSES] * 4 if name == "fedsc" else None))
        x, y = example(name, seed)
        x[0], x[1] = 0.0, rows_of(consts)[1]
        if name == "fedsc":
            x[2] = consts["consistent"][y[2]]
        out = objective(method, x.requires_grad_(), y, consts)
        contrast = float(out.terms[TERM[name]].detach())
        assert math.isfinite(contrast)
        # The positive stands in the denominator twice: of five known samples in seven each adds log 2 at least.
        assert name == "fedsc" or contrast >= (math.log(2) * 5 / 7 if options["denominator"] == "positive_twice" else 0)
        assert slope(out, x).isfinite().all()
        assert slope(objective(method, x, y, consts), x).abs().max() < 1e4


@pytest.mark.parametrize("options", FEDSKC_LOSSES, ids=lambda o: "-".join(map(str, o.values())))
def test_padded_rows_change_nothing(options):
    """Of FedSKC; `test_contract.py` has FedSC."""
    method = configured("fedskc", "paper", **options)
    consts, net = constants(method, knowledge_table()), Through(torch.eye(CLASSES, dtype=torch.float64))
    x, y = example("fedskc")

    def total_and_gradient(batch):
        out = method.loss(net, batch, consts)
        return out.total.detach(), torch.autograd.grad(out.total, net.head.weight)[0]

    bare = total_and_gradient(Batch(x, y))
    for behind in (3, 30):
        junk = torch.full((behind, CLASSES), 40.0, dtype=x.dtype)
        mask = torch.tensor([True] * 7 + [False] * behind)
        padded = Batch(torch.cat([x, junk]), torch.cat([y, torch.arange(behind) % CLASSES]), mask)
        for ours, expected in zip(total_and_gradient(padded), bare, strict=True):
            assert torch.allclose(ours, expected, rtol=0, atol=1e-9)
    nothing = total_and_gradient(Batch(x, y, torch.zeros(7, dtype=torch.bool)))
    assert float(nothing[0]) == 0
    assert not nothing[1].any()


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation gives, backward included."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


@pytest.mark.parametrize("rows", [20, 40])  # cdist takes another path from 26 rows on
@pytest.mark.parametrize("options", [{}, {"detach_scale": False}, {"positives": "mean"}, {"preset": "authors"}])
def test_no_tensor_of_batch_times_prototypes_times_width(rows, options):
    method = configured("fedsc", **{"preset": "paper", **options})
    clients, width = 12, 50
    r = random_table(clients=clients, width=width, held=[[True] * CLASSES] * clients)
    consts = constants(method, r, ClassTable(r.values[0], r.held[0]))
    z = torch.linspace(-1, 1, rows * width, dtype=torch.float64).reshape(rows, width).requires_grad_()
    with Largest() as seen:
        slope(objective(method, z, torch.arange(rows) % CLASSES, consts), z)
    prototypes = len(rows_of(consts))
    assert seen.numel >= rows * prototypes  # the mode does see
    assert seen.numel <= max(rows * prototypes, rows * width, prototypes * (width + 2))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("over", "round_", "share"), [(30, 2, 1 / 15), (30, 15, 0.5), (30, 30, 1.0), (30, 90, 1.0), (0, 2, 1.0)]
)
def test_a_ramp_lets_the_contrast_grow(name, over, round_, share):
    """Its weight, and its part of the loss: 2 / 30 in round 2, where it begins, whole from round 30 on."""
    terms, (x, y) = [], example(name)
    for ramp in (over, 0):
        method = configured(name, "paper", **{f"lambda_{TERM[name]}": 3.0, f"{TERM[name]}_ramp": ramp})
        terms.append(objective(method, x, y, constants(method, *tables_of(name), round_=round_)).terms)
    ours, whole = ({term: value.detach() for term, value in each.items()} for each in terms)
    assert float(whole[TERM[name]]) > 0.1
    assert float(ours[TERM[name]] / whole[TERM[name]]) == pytest.approx(share, rel=1e-6)
    assert all(torch.equal(ours[term], whole[term]) for term in whole if term != TERM[name])


@pytest.mark.parametrize("near", [1.0, 0.1, 0.01, 1e-3])
@pytest.mark.parametrize("width", [10, 512])
def test_U_in_float32_is_as_exact_as_its_docstring_says(near, width):
    """Samples at a distance of `near` times a prototype's length; the reference subtracts in float64."""
    rng = torch.Generator().manual_seed(1)
    p = torch.rand(1, width, generator=rng)
    away = torch.randn(200, width, generator=rng)
    z = p + near * p.norm() * away / away.norm(dim=1, keepdim=True)
    expected = (z.double() - p.double()).norm(dim=1)
    lengths, dots = z.square().sum(1, keepdim=True), z @ p.T
    for rows in range(200):
        one = slice(rows, rows + 1)
        ours = mean_distances(lengths[one], dots[one], p.square().sum(1), Batch(z[one], torch.zeros(1).long()))
        assert abs(float(ours) / float(expected[rows]) - 1) <= 4e-7 / near**2 + 4e-7


# -- whole rounds ------------------------------------------------------------------------------------------------------
def result_of(name, client=0, **details):
    """What a client leaves in its first round."""
    options = details.pop("options", {})
    toy = world(configured(name, details.pop("preset", "paper"), **options), SKEWED, **details)
    return toy, toy.worker.run(toy.job(client))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("net", [Tiny, TinyBN])
@pytest.mark.parametrize("scale", ["batch", "dataset"])
def test_in_round_1_clients_send_the_weights_of_fedavg(name, preset, net, scale):
    for client in range(len(SKEWED)):
        _, plain = result_of("fedavg", client, net=net, epochs=3)
        _, ours = result_of(name, client, preset=preset, options={"scale": scale}, net=net, epochs=3)
        assert same_tree(plain.upload["model"], ours.upload["model"])
        assert plain.upload["samples"] == ours.upload["samples"] == len(SKEWED[client])


@pytest.mark.parametrize("gda", ["paper", "share", "fedavg", "uniform"])
def test_clients_that_do_not_move_leave_the_model_as_it_was(gda):
    toy = world(configured("fedskc", gda=gda, gpr="off"), SKEWED, participation=0.5, optimizer=STILL)
    for _ in range(3):
        toy.federation.step()
        assert furthest(toy.federation.server["model"], toy.task.init) < 1e-7


@pytest.mark.parametrize("net", [Tiny, TinyBN])
@pytest.mark.parametrize(("name", "options"), [("fedsc", {}), ("fedskc", {"silu": True}), ("fedskc", {"silu": False})])
def test_class_means_are_of_the_weights_that_travel_with_them(name, options, net):
    toy, done = result_of(name, options=options, net=net, epochs=2)
    other = net().eval()
    other.load_state_dict(done.upload["model"])
    x, y = toy.samples(0)
    with torch.no_grad():
        outputs = other.features(x) if name == "fedsc" else other(x)
    for label in (0, 1):
        mean = outputs[y == label].mean(0)
        mean = mean * torch.sigmoid(mean) if options.get("silu") else mean
        assert torch.allclose(done.upload[SENT[name]].values[label], mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_class_means_of_the_last_epoch_are_seen_before_the_steps(name):
    """Two epochs, one batch each: the last epoch sees the weights that one epoch leaves."""
    during = {f"{SENT[name]}_from": "last_epoch"}
    runs = [({"options": during}, 2), ({}, 1), ({}, 2)]
    ours, before, later = (result_of(name, **k, epochs=epochs, batch_size=8)[1].upload for k, epochs in runs)
    assert same_tree(ours["model"], later["model"])
    assert torch.allclose(ours[SENT[name]].values, before[SENT[name]].values, rtol=0, atol=1e-6)
    assert not torch.allclose(ours[SENT[name]].values, later[SENT[name]].values, atol=1e-4)


def test_U_of_the_data_set_is_its_mean_distance():
    method = configured("fedsc", "paper", scale="dataset")
    toy = world(method, SKEWED, epochs=2, optimizer=STILL)
    toy.federation.step()
    seen = []

    def spy(net, batch, consts, loss=method.loss):
        seen.append(consts["scale"])
        return loss(net, batch, consts)

    method.loss = spy
    job = toy.job(2, round_=2)
    toy.worker.run(job)
    x, _ = toy.samples(2)
    toy.worker.loaded_nets[0].load(toy.federation.server["model"])
    with torch.no_grad():
        z = toy.net.eval().features(x)
    rows = job.payload["relational"].values[job.payload["relational"].held]
    expected = (z.unsqueeze(1) - rows).norm(dim=2).mean(0)
    assert len(seen) == 4  # two epochs of six samples in batches of four
    assert all(torch.allclose(scale, expected, rtol=0, atol=1e-5) for scale in seen)


def test_one_sample_under_batch_norm_still_has_a_prototype():
    """Its batch of one is skipped, so the last epoch shows nothing: a pass in evaluation mode stands in."""
    toy, done = result_of("fedsc", 3, preset="authors", net=TinyBN)
    assert done.steps == 0
    assert same_tree(done.upload["model"], toy.task.init)
    assert done.upload["prototypes"].held.tolist() == [False, True, False, False]
    with torch.no_grad():
        z = toy.net.eval().features(toy.samples(3)[0])
    assert torch.allclose(done.upload["prototypes"].values[1], z[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("labels", "lonely"), [([[0, 0], [1, 1]], True), ([[0, 0], [0, 1]], False), ([[0, 0]], False)])
def test_one_holder_per_class_is_reported(name, labels, lonely):
    codes = [found.code for found in world(configured(name), labels).federation.step().diagnostics]
    assert (f"{name}.one_holder_per_class" in codes) is lonely
