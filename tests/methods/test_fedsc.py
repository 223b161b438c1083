"""FedSC: the properties that its equations promise, whatever the numbers."""

import itertools
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedloom.core.tables import ClassTable
from fedloom.methods import fedsc
from fedloom.methods.contract.phases import Batch, OptimizerSpec
from fedloom.methods.parts.contrast import mean_distances
from support import (
    CLASSES,
    Through,
    Tiny,
    TinyBN,
    configured,
    rows_of,
    same_tree,
    world,
)

PRESETS = ("paper", "authors", "sound")
STILL = OptimizerSpec(lr=0.0)
# Class 3 is held by nobody, class 2 by client 2 alone; client 3 has one sample.
SKEWED = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]


def random_table(clients=4, classes=CLASSES, width=3, seed=0, held=None) -> ClassTable:
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(clients, classes, width, generator=rng, dtype=torch.float64)
    held = torch.rand(clients, classes, generator=rng) < 0.7 if held is None else torch.tensor(held)
    return ClassTable(torch.where(held.unsqueeze(-1), values, 0.0), held)


def constants(method, r: ClassTable, o: ClassTable):
    """What a client of `method` gets from R and O (and some U, where that comes from the data set)."""
    toy = world(method, [[0, 1]])
    payload = {"model": toy.task.init, "relational": r, "consistent": o}
    consts = method.begin(payload, {}, toy.federation.client_context(0, 2)).consts
    return consts | {"scale": torch.linspace(0.5, 2.0, len(rows_of(consts)), dtype=r.values.dtype)}


def example(method, *, seed=0, rows=7, width=3, held=None, tables=None):
    """z [rows, width], labels of all classes, and the constants of random tables, in float64."""
    r = random_table(width=width, seed=seed, held=held)
    weights = fedsc.discrepancy_weights(torch.tensor([[3, 1, 0, 2], [1, 1, 1, 1], [5, 0, 0, 0], [2, 2, 0, 1]]))
    o = fedsc.consistent_prototypes(r, weights)
    rng = torch.Generator().manual_seed(seed + 100)
    z = torch.randn(rows, width, generator=rng, dtype=torch.float64)
    return z, torch.arange(rows) % CLASSES, constants(method, *(tables(r, o) if tables else (r, o)))


def consistent_of(r: ClassTable) -> ClassTable:
    return fedsc.consistent_prototypes(r, torch.full((len(r.held),), 1 / len(r.held), dtype=torch.float64))


def objective(method, z, y, consts, mask=None):
    net = Through(torch.linspace(-1, 1, CLASSES * z.shape[1], dtype=z.dtype).reshape(CLASSES, -1))
    return method.loss(net, Batch(z, y, mask), consts)


def options_of_the_loss():
    """Every combination of options that the client's objective reads."""
    for scale, detach, positives, reduce, norm in itertools.product(
        ("batch", "dataset", "none"), (True, False), ("all", "mean"), ("sum", "mean_exp"), ("l1", "l2", "mse", "off")
    ):
        yield {
            "scale": scale,
            "detach_scale": detach,
            "positives": positives,
            "rpcl_reduce": reduce,
            "cpdr": norm,
        }
    yield {"positives": "self", "cpdr": "off"}


# -- classes held by nobody, or by one ---------------------------------------------------------------------------------
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


@pytest.mark.parametrize("preset", PRESETS)
def test_rows_of_absent_classes_are_never_read(preset):
    """What lies in memory where nobody holds a class changes neither loss nor gradient."""
    held = [[True, True, False, False], [True, False, False, False], [False, True, True, False], [False] * 4]

    def spoilt(r, o):
        return tuple(ClassTable(torch.where(t.held.unsqueeze(-1), t.values, 50.0), t.held) for t in (r, o))

    results = []
    for tables in (None, spoilt):
        method = configured("fedsc", preset)
        z, y, consts = example(method, held=held, tables=tables)
        out = objective(method, z.requires_grad_(), y, consts)
        results.append((out.total, torch.autograd.grad(out.total, z)[0]))
    (clean, clean_gradient), (dirty, dirty_gradient) = results
    assert torch.allclose(clean, dirty, rtol=0, atol=1e-12)
    assert torch.allclose(clean_gradient, dirty_gradient, rtol=0, atol=1e-10)


# -- neighbours --------------------------------------------------------------------------------------------------------
def slow_relational(local: ClassTable, neighbours: int, metric: str) -> torch.Tensor:
    """Eq. 5-9 and Table 5 as printed: loops over classes and clients, plain Python numbers."""

    def cosine(a, b):
        return float(a @ b) / (math.sqrt(float(a @ a)) * math.sqrt(float(b @ b)))

    def distance(a, b, g):
        if metric == "angle":
            return abs(cosine(g, a) - cosine(g, b))
        if metric == "l1":
            return float((a - b).abs().sum())
        if metric == "l2":
            return math.sqrt(float(((a - b) ** 2).sum()))
        if metric == "cosine":
            return 1 - cosine(a, b)
        p, q = torch.softmax(a, 0), torch.softmax(b, 0)
        return float((p * (p / q).log()).sum())

    r = torch.zeros_like(local.values)
    for label in range(local.held.shape[1]):
        holders = [k for k in range(len(local.held)) if local.held[k, label]]
        rows = {k: local.values[k, label] for k in holders}
        for k in holders:
            g = sum(rows.values()) / len(rows)
            others = sorted((q for q in holders if q != k), key=lambda q: distance(rows[k], rows[q], g))
            merged = [k, *others[:neighbours]]
            r[k, label] = sum(rows[q] for q in merged) / len(merged)
    return r


@pytest.mark.parametrize("metric", ["angle", "l1", "l2", "cosine", "kl"])
@pytest.mark.parametrize("neighbours", [0, 1, 2, 4])
def test_relational_prototypes_of_every_metric_against_plain_loops(metric, neighbours):
    local = random_table(clients=7, width=5, seed=11)
    r = fedsc.relational_prototypes(local, neighbours, metric)
    assert torch.allclose(r.values, slow_relational(local, neighbours, metric), rtol=0, atol=1e-12)


def test_two_holders_share_one_relational_prototype_whatever_M():
    local = random_table(clients=3, held=[[True] * CLASSES, [False] * CLASSES, [True] * CLASSES])
    for neighbours in (1, 2, 3):  # the mean of two, not their sum over M + 1
        r = fedsc.relational_prototypes(local, neighbours, "angle")
        mean = (local.values[0] + local.values[2]) / 2
        assert torch.allclose(r.values[0], mean, rtol=0, atol=1e-15)
        assert torch.allclose(r.values[2], mean, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("metric", "nudge"), [("angle", -1e-14), ("l1", 1e-14), ("l2", 1e-14)])
def test_ties_between_neighbours_go_to_the_smaller_client(metric, nudge):
    # Clients 1 and 2 hold one and the same prototype; client 3's is nearer to client 0's by rounding, not in earnest.
    values = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 1.0]], [[nudge, 1.0]]], dtype=torch.float64)
    local = ClassTable(values, torch.ones(4, 1, dtype=torch.bool))
    r = fedsc.relational_prototypes(local, 1, metric).values[:, 0]
    assert torch.equal(r[0], (values[0, 0] + values[1, 0]) / 2)
    assert torch.equal(r[3], (values[3, 0] + values[1, 0]) / 2)


# -- ranges ------------------------------------------------------------------------------------------------------------


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


# -- the losses --------------------------------------------------------------------------------------------------------


def test_rpcl_of_the_only_known_class_is_zero():
    method = configured("fedsc", "paper")
    z, _, consts = example(method, held=[[False, True, False, False]] * 4)
    out = objective(method, z, torch.ones(len(z), dtype=torch.int64), consts)
    assert float(out.terms["rpcl"]) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_without_U_the_length_of_prototypes_does_not_matter(preset):
    def scaled(r, o):
        return ClassTable(r.values * 37.5, r.held), o

    method = configured("fedsc", preset, scale="none")
    z, y, consts = example(method)
    _, _, longer = example(method, tables=scaled)
    first, second = (objective(method, z, y, c).terms["rpcl"] for c in (consts, longer))
    assert torch.allclose(first, second, rtol=1e-12, atol=1e-12)
    if preset == "paper":  # with U it does
        method = configured("fedsc", "paper", scale="batch")
        first, second = (objective(method, z, y, c).terms["rpcl"] for c in (consts, longer))
        assert abs(float(first - second)) > 0.1


def test_mean_exp_adds_the_log_of_the_number_of_positives():
    held = [[True, True, False, False]] * 3 + [[True, False, False, False]]
    y = torch.tensor([0, 1])
    losses = {}
    for reduce in ("sum", "mean_exp"):
        method = configured("fedsc", "paper", rpcl_reduce=reduce)
        z, _, consts = example(method, held=held, rows=2)
        losses[reduce] = float(objective(method, z, y, consts).terms["rpcl"])
    assert losses["mean_exp"] - losses["sum"] == pytest.approx((math.log(4) + math.log(3)) / 2, abs=1e-12)


@pytest.mark.parametrize("scale", ["batch", "dataset", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_low_temperature_stays_finite(scale, dtype):
    """tau = 0.01 with opposite prototypes: naive exponentials of +-100 leave float32."""
    method = configured("fedsc", "paper", tau=0.01, scale=scale)
    r = ClassTable(
        torch.tensor([[[1.0, 0], [-1, 0], [0, 1], [0, -1]]], dtype=dtype), torch.ones(1, 4, dtype=torch.bool)
    )
    consts = constants(method, r, ClassTable(r.values[0], r.held[0]))
    consts["scale"] = torch.full((4,), 1e-3, dtype=dtype)
    z = torch.tensor([[-1.0, 0], [1, 1e-4], [0, -3]], dtype=dtype, requires_grad=True)
    out = objective(method, z, torch.tensor([0, 1, 2]), consts)
    assert out.total.isfinite()
    assert torch.autograd.grad(out.total, z)[0].isfinite().all()
    if scale == "none":  # every sample sits on the opposite class: cos differs by 2
        assert float(out.terms["rpcl"].detach()) == pytest.approx(2 / 0.01, rel=1e-3)


@pytest.mark.parametrize("options", list(options_of_the_loss()), ids=lambda o: "-".join(map(str, o.values())))
def test_features_of_zero_and_features_on_a_prototype_have_finite_gradients(options):
    method = configured("fedsc", "paper", **options)
    z, y, consts = example(method, held=[[True] * CLASSES] * 4)
    z[0] = 0.0
    z[1] = rows_of(consts)[1]
    z[2] = consts["consistent"][y[2]]
    out = objective(method, z.requires_grad_(), y, consts)
    gradient = torch.autograd.grad(out.total, z)[0]
    assert out.total.isfinite()
    assert gradient.isfinite().all()
    assert gradient.abs().max() < 1e4


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation gives, backward included."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


@pytest.mark.parametrize("rows", [20, 40])  # cdist takes another path from 26 rows on
@pytest.mark.parametrize("options", [{}, {"detach_scale": False}, {"positives": "mean"}, {"preset": "authors"}])
def test_no_tensor_of_batch_times_prototypes_times_width(rows, options):
    options = dict(options)
    method = configured("fedsc", options.pop("preset", "paper"), **options)
    clients, width = 12, 50
    r = random_table(clients=clients, width=width, held=[[True] * CLASSES] * clients)
    consts = constants(method, r, ClassTable(r.values[0], r.held[0]))
    z = torch.linspace(-1, 1, rows * width, dtype=torch.float64).reshape(rows, width).requires_grad_()
    with Largest() as seen:
        out = objective(method, z, torch.arange(rows) % CLASSES, consts)
        torch.autograd.grad(out.total, z)
    prototypes = len(rows_of(consts))
    assert seen.numel >= rows * prototypes  # the mode does see
    assert seen.numel <= max(rows * prototypes, rows * width, prototypes * (width + 2))


# -- whole rounds ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("net", [Tiny, TinyBN])
def test_in_round_1_clients_send_the_weights_of_fedavg(preset, net):
    toys = [world(configured(name, preset), SKEWED, net=net, epochs=3) for name in ("fedavg", "fedsc")]
    for client in range(len(SKEWED)):
        plain, ours = (toy.worker.run(toy.job(client)) for toy in toys)
        assert same_tree(plain.upload["model"], ours.upload["model"])
        assert plain.upload["samples"] == ours.upload["samples"] == len(SKEWED[client])


@pytest.mark.parametrize("net", [Tiny, TinyBN])
def test_prototypes_are_class_means_under_the_weights_that_travel_with_them(net):
    toy = world(configured("fedsc", "paper"), SKEWED, net=net, epochs=2)
    done = toy.worker.run(toy.job(0))
    other = net().eval()
    other.load_state_dict(done.upload["model"])
    x, y = toy.samples(0)
    with torch.no_grad():
        z = other.features(x)
    for label in (0, 1):
        mean = z[y == label].double().mean(0)
        assert torch.allclose(done.upload["prototypes"].values[label].double(), mean, rtol=0, atol=1e-6)


def test_prototypes_of_the_last_epoch_are_seen_before_the_steps():
    """Two epochs, one batch each: the last epoch sees the weights that one epoch leaves."""
    method = configured("fedsc", "paper", prototypes_from="last_epoch")
    done = world(method, SKEWED, epochs=2, batch_size=8)
    done = done.worker.run(done.job(0))
    before = world(configured("fedsc", "paper"), SKEWED, epochs=1, batch_size=8)
    before = before.worker.run(before.job(0))
    after = world(configured("fedsc", "paper"), SKEWED, epochs=2, batch_size=8)
    after = after.worker.run(after.job(0))
    ours = done.upload["prototypes"].values
    assert same_tree(done.upload["model"], after.upload["model"])
    assert torch.allclose(ours, before.upload["prototypes"].values, rtol=0, atol=1e-6)
    assert not torch.allclose(ours, after.upload["prototypes"].values, atol=1e-4)


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


@pytest.mark.parametrize(
    ("over", "round_", "share"),
    [(30, 2, 1 / 15), (30, 15, 0.5), (30, 30, 1.0), (30, 90, 1.0), (0, 2, 1.0)],
)
def test_a_ramp_lets_rpcl_grow(over, round_, share):
    """Its weight, and its part of the loss: 2 / 30 in round 2, where it begins, whole from round 30 on."""
    r, o = random_table(), consistent_of(random_table())
    terms = {}
    for name, ramp in (("ours", over), ("whole", 0)):
        method = configured("fedsc", "sound", lambda_rpcl=3.0, rpcl_ramp=ramp)
        toy = world(method, [[0, 1]])
        payload = {"model": toy.task.init, "relational": r, "consistent": o}
        consts = method.begin(payload, {}, toy.federation.client_context(0, round_)).consts
        consts["scale"] = torch.ones(len(rows_of(consts)), dtype=torch.float64)
        z = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        terms[name] = objective(method, z, torch.arange(7) % CLASSES, consts).terms
    assert float(terms["whole"]["rpcl"]) > 0.1
    assert float(terms["ours"]["rpcl"] / terms["whole"]["rpcl"]) == pytest.approx(share, rel=1e-6)
    assert torch.equal(terms["ours"]["cpdr"], terms["whole"]["cpdr"])


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
    toy = world(configured("fedsc", "authors"), SKEWED, net=TinyBN)
    done = toy.worker.run(toy.job(3))
    assert done.steps == 0
    assert same_tree(done.upload["model"], toy.task.init)
    assert done.upload["prototypes"].held.tolist() == [False, True, False, False]
    with torch.no_grad():
        z = toy.net.eval().features(toy.samples(3)[0])
    assert torch.allclose(done.upload["prototypes"].values[1], z[0], rtol=0, atol=1e-6)


def test_one_holder_per_class_is_reported():
    lonely = world(configured("fedsc"), [[0, 0], [1, 1]]).federation.step()
    assert [f.code for f in lonely.diagnostics] == ["fedsc.one_holder_per_class"]
    assert world(configured("fedsc"), [[0, 0], [0, 1]]).federation.step().diagnostics == []
    assert world(configured("fedsc"), [[0, 0]]).federation.step().diagnostics == []
