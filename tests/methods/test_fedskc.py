"""FedSKC: the properties that its equations promise, whatever the numbers."""

import math

import pytest
import torch

import fedloom
from fedloom.core.tables import ClassTable
from fedloom.methods import fedskc
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.phases import Batch, OptimizerSpec
from support import (
    CLASSES,
    Through,
    Tiny,
    TinyBN,
    configured,
    furthest,
    rows_of,
    same_tree,
    world,
)

PRESETS = ("paper", "authors", "sound")
# Class 3 is held by nobody, class 2 by client 2 alone; client 3 has one sample, so one class.
SKEWED = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
HELD = [[True, True, False, False], [True, True, False, False], [True, False, True, False]]
LOSSES = [
    {"scale": scale, "detach_scale": detach, "denominator": denominator, "missing_positive": missing}
    for scale in ("batch", "dataset", "none")
    for detach in (True, False)
    for denominator in ("once", "positive_twice")
    for missing in ("mask", "self")
]


def random_table(clients=4, seed=0, held=None) -> ClassTable:
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(clients, CLASSES, CLASSES, generator=rng, dtype=torch.float64)
    held = torch.rand(clients, CLASSES, generator=rng) < 0.7 if held is None else torch.tensor(held)
    return ClassTable(torch.where(held.unsqueeze(-1), values, 0.0), held)


def knowledge_table(seed=0, held=(True, True, True, False), dtype=torch.float64) -> ClassTable:
    values = torch.randn(CLASSES, CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    held = torch.tensor(held)
    return ClassTable(torch.where(held.unsqueeze(-1), values, 0.0).to(dtype), held)


def constants(method, table: ClassTable, round_: int = 2):
    """What a client of `method` gets from c~ (and some U, where that comes from the data set)."""
    toy = world(method, [[0, 1]])
    payload = {"model": toy.task.init, "knowledge": table}
    consts = method.begin(payload, {}, toy.federation.client_context(0, round_)).consts
    scale = torch.linspace(0.5, 2.0, CLASSES, dtype=table.values.dtype)
    return consts | {"scale": scale if len(rows_of(consts)) == CLASSES else scale[table.held]}


def example(rows=7, seed=0):
    """Logits [rows, C] and labels of all classes, in float64."""
    rng = torch.Generator().manual_seed(seed + 100)
    return torch.randn(rows, CLASSES, generator=rng, dtype=torch.float64), torch.arange(rows) % CLASSES


def identity(dtype=torch.float64) -> Through:
    return Through(torch.eye(CLASSES, dtype=dtype))


def server_context(method):
    return ServerContext(world(method, [[0]]).task, 2)


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


# -- knowledge: classes held by nobody, or by one; neighbours ----------------------------------------------------------
@pytest.mark.parametrize("neighbours", [0, 1, 5])
def test_a_class_of_one_holder_keeps_its_row_and_one_of_nobody_stays_absent(neighbours):
    local = random_table(held=HELD, clients=3)
    c = fedskc.global_knowledge(local, neighbours)
    assert c.held.tolist() == [True, True, True, False]
    assert torch.equal(c.values[2], local.values[2, 2])
    assert not c.values[3].any()


@pytest.mark.parametrize("neighbours", [0, 1, 2, 9])
def test_knowledge_against_plain_loops(neighbours):
    local = random_table(clients=6, seed=5)
    c = fedskc.global_knowledge(local, neighbours)
    for label in range(CLASSES):
        holders = [k for k in range(6) if local.held[k, label]]
        rows = {k: local.values[k, label] for k in holders}
        total = torch.zeros(CLASSES, dtype=torch.float64)
        for k in holders:
            others = sorted((q for q in holders if q != k), key=lambda q: math.dist(rows[k], rows[q]))
            merged = [k, *others[:neighbours]]
            total += sum(rows[q] for q in merged) / len(merged)
        assert torch.allclose(c.values[label], total / len(holders), rtol=0, atol=1e-12)


def test_knowledge_nobody_has_this_round_is_dropped_or_kept():
    last = knowledge_table(seed=1, held=(True, True, True, True), dtype=torch.float32)
    for sticky in (False, True):
        method = configured("fedskc", gpr="off", sticky_knowledge=sticky)
        server = {"model": {"w": torch.zeros(5)}, "knowledge": last}
        new = method.aggregate(server, uploads_of(random_table(clients=3, held=HELD)), server_context(method))
        assert new["knowledge"].held.tolist() == [True, True, True, sticky]
        assert torch.equal(new["knowledge"].values[3], last.values[3] if sticky else torch.zeros(CLASSES))


# -- GDA ---------------------------------------------------------------------------------------------------------------
def test_printed_weights_are_uniform_for_thousands_of_samples_and_that_is_reported():
    local = random_table()
    for samples, uniform in (((3000, 2000, 4000, 2500), True), ((1, 2, 1, 1), False)):
        method = configured("fedskc", "paper")
        c = fedskc.global_knowledge(local, 1)
        e = fedskc.aggregation_weights(local, c, torch.tensor(samples, dtype=torch.float64), "paper")
        assert (float((e - 0.25).abs().max()) < 1e-12) == uniform
        uploads = uploads_of(local, samples)
        found = method.diagnostics(method.aggregate({}, uploads, server_context(method)), uploads, None)
        assert [f.code for f in found] == (["fedskc.uniform_gda"] if uniform else [])
        assert all(f.figure < 1e-6 and f"{f.figure:.1e}" in f.message for f in found)


@pytest.mark.parametrize(("clients", "gda"), [(1, "paper"), (1, "share"), (4, "fedavg"), (4, "uniform")])
def test_weights_that_have_to_be_uniform_are_not_reported(clients, gda):
    """One client has all the weight, and `fedavg` and `uniform` take no weights from the class tables."""
    method, local = configured("fedskc", "paper", gda=gda), random_table()
    uploads = dict(list(uploads_of(local, (3000,) * len(local.held)).items())[:clients])
    found = method.diagnostics(method.aggregate({}, uploads, server_context(method)), uploads, None)
    assert "fedskc.uniform_gda" not in [diagnostic.code for diagnostic in found]


# -- GPR ---------------------------------------------------------------------------------------------------------------
def one_round(server, weights=None, **options):
    method = configured("fedskc", "paper", gda="uniform", **options)
    local = random_table(clients=3, held=HELD)
    return method.aggregate(server, uploads_of(local, weights=weights), server_context(method))


@pytest.mark.parametrize("gpr", ["paper", "affine"])
def test_gpr_needs_a_class_of_both_rounds_with_variance(gpr):
    """Skipped in round 1, for no common class, and for knowledge without variance: the average stays as it is."""
    mean = one_round({}, gpr=gpr)["model"]["w"]
    elsewhere = knowledge_table(held=(False, False, False, True), dtype=torch.float32)
    flat = ClassTable(torch.ones(CLASSES, CLASSES), torch.ones(CLASSES, dtype=torch.bool))
    for last in (elsewhere, flat):
        new = one_round({"model": {"w": torch.full((5,), 100.0)}, "knowledge": last}, gpr=gpr)
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


def test_shrinking_and_overstepping_are_reported():
    server = {"model": {"w": torch.zeros(5)}, "knowledge": knowledge_table(dtype=torch.float32)}
    tiny = ClassTable(server["knowledge"].values * 1e-3, server["knowledge"].held)
    local = random_table(clients=3, held=HELD)
    for gpr, last, codes in (
        ("paper", server["knowledge"], ["fedskc.gpr_shrinks"]),
        ("paper", tiny, ["fedskc.gpr_shrinks", "fedskc.gpr_oversteps"]),
        ("affine", server["knowledge"], []),
        ("affine", tiny, ["fedskc.gpr_oversteps"]),
        ("off", tiny, []),
    ):
        method, uploads = configured("fedskc", "paper", gda="fedavg", gpr=gpr), uploads_of(local)
        new = method.aggregate(server | {"knowledge": last}, uploads, server_context(method))
        found = {f.code: f for f in method.diagnostics(new, uploads, None)}
        assert list(found) == codes
        if "fedskc.gpr_shrinks" in found:
            assert found["fedskc.gpr_shrinks"].figure == 0.95
            assert "5% a round" in found["fedskc.gpr_shrinks"].message
        if "fedskc.gpr_oversteps" in found:
            assert found["fedskc.gpr_oversteps"].figure == new["rho"] > 20
    clipped = configured("fedskc", "paper", gda="fedavg", gpr="affine", gpr_clip=(-1, 20))
    new = clipped.aggregate(server | {"knowledge": tiny}, uploads, server_context(clipped))
    assert new["rho"] == 20
    assert clipped.diagnostics(new, uploads, None) == []


def test_one_holder_per_class_is_reported():
    lonely = world(configured("fedskc"), [[0, 0], [1, 1]]).federation.step()
    assert "fedskc.one_holder_per_class" in [f.code for f in lonely.diagnostics]
    assert world(configured("fedskc"), [[0, 0]]).federation.step().diagnostics == []


# -- divergence --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("gda", ["paper", "share", "fedavg", "uniform"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_round_that_diverged_ends(gda, value):
    """Nothing is repaired: the new model is not finite either."""
    method, local = configured("fedskc", "paper", gda=gda), random_table(clients=3, held=HELD)
    local.values[1, 0] = value
    uploads = uploads_of(local, weights=[torch.ones(5), torch.full((5,), value), torch.ones(5)])
    server = {"model": {"w": torch.ones(5)}, "knowledge": knowledge_table(dtype=torch.float32)}
    new = method.aggregate(server, uploads, server_context(method))
    assert not new["model"]["w"].isfinite().any()
    method.diagnostics(new, uploads, server_context(method))


def test_a_printed_gpr_that_throws_the_model_away_leaves_a_finished_run():
    scenario = fedloom.scenario("digits", partition="dirichlet", alpha=0.1, clients=20)
    result = fedloom.run(
        method="fedskc",
        preset="paper",
        scenario=scenario,
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


# -- LCL ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", LOSSES, ids=lambda o: "-".join(map(str, o.values())))
def test_lcl_is_not_negative_and_finite_for_features_of_zero(options):
    method = configured("fedskc", "paper", **options)
    for seed in range(5):
        consts = constants(method, knowledge_table(seed))
        logits, y = example(seed=seed)
        logits[0], logits[1] = 0.0, rows_of(consts)[1]
        logits.requires_grad_()
        loss = fedskc.lcl(logits, Batch(logits, y), consts, method.options)
        assert float(loss.detach()) >= (math.log(2) * 5 / 7 if options["denominator"] == "positive_twice" else 0)
        gradient = torch.autograd.grad(loss, logits)[0]
        assert gradient.isfinite().all()
        assert gradient.abs().max() < 1e5


def test_the_loss_of_the_only_known_class_is_zero():
    method = configured("fedskc", "paper")
    consts = constants(method, knowledge_table(held=(False, True, False, False)))
    logits, y = example()
    assert float(fedskc.lcl(logits, Batch(logits, y), consts, method.options)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_without_U_the_length_of_knowledge_does_not_matter(preset):
    method, table = configured("fedskc", preset, scale="none"), knowledge_table()
    logits, y = example()
    longer = constants(method, ClassTable(table.values * 37.5, table.held))
    losses = [
        fedskc.lcl(logits, Batch(logits, y), consts, method.options) for consts in (constants(method, table), longer)
    ]
    assert torch.allclose(*losses, rtol=1e-12, atol=1e-12)


def test_samples_of_an_unknown_class_feel_cross_entropy_alone():
    method = configured("fedskc", "paper", scale="none")
    consts = constants(method, knowledge_table())
    logits, y = example()
    unknown = y == 3
    logits.requires_grad_()
    both, alone = (method.loss(identity(), Batch(logits, y), c).total for c in (consts, {}))
    gradient, ce_gradient = (torch.autograd.grad(loss, logits)[0] for loss in (both, alone))
    assert torch.equal(gradient[unknown], ce_gradient[unknown])
    assert not torch.allclose(gradient[~unknown], ce_gradient[~unknown], atol=1e-3)
    y = torch.full_like(y, 3)
    objective = method.loss(identity(), Batch(logits, y), consts)
    assert float(objective.terms["lcl"].detach()) == 0
    expected = torch.autograd.grad(method.loss(identity(), Batch(logits, y), {}).total, logits)[0]
    assert torch.equal(torch.autograd.grad(objective.total, logits)[0], expected)


@pytest.mark.parametrize("naive", [False, True])
@pytest.mark.parametrize("denominator", ["once", "positive_twice"])
def test_low_temperature_is_finite_unless_exponentials_are_naive(naive, denominator):
    """The paper's NaN at tau = 0.01 (Fig. 3a): exp(1 / 0.01) leaves float32."""
    method = configured("fedskc", "paper", tau=0.01, scale="none", naive_exp=naive, denominator=denominator)
    consts = constants(method, ClassTable(torch.eye(CLASSES), torch.ones(CLASSES, dtype=torch.bool)))
    logits = (torch.eye(CLASSES) * 3 + 0.01).requires_grad_()
    loss = method.loss(identity(torch.float32), Batch(logits, torch.arange(CLASSES)), consts)
    (gradient,) = torch.autograd.grad(loss.total, logits)
    assert bool(loss.total.isnan()) == naive
    assert bool(gradient.isfinite().all()) != naive


def test_the_weight_of_the_loss_grows_over_the_ramp():
    for round_, weight in ((2, 0.04), (50, 1.0), (99, 1.98), (100, 2.0), (500, 2.0)):
        ramp = 0 if round_ == 500 else 100
        method = configured("fedskc", "paper", lambda_lcl=2.0, lcl_ramp=ramp)
        consts = constants(method, knowledge_table(), round_=round_)
        logits, y = example()
        objective = method.loss(identity(), Batch(logits, y), consts)
        assert consts["weight"] == pytest.approx(weight)
        contrast = fedskc.lcl(logits, Batch(logits, y), consts, method.options)
        assert torch.allclose(objective.terms["lcl"], weight * contrast, rtol=1e-12, atol=0)
        assert torch.allclose(objective.total, objective.terms["ce"] + weight * contrast, rtol=1e-12, atol=0)


# -- padding and stacked clients ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", LOSSES, ids=lambda o: "-".join(map(str, o.values())))
def test_padded_rows_change_nothing(options):
    method = configured("fedskc", "paper", **options)
    consts, net = constants(method, knowledge_table()), identity()
    x, y = example()

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


# -- whole rounds ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("net", [Tiny, TinyBN])
@pytest.mark.parametrize("scale", ["batch", "dataset"])
def test_in_round_1_clients_send_the_weights_of_fedavg(preset, net, scale):
    toys = [
        world(method, SKEWED, net=net, epochs=3)
        for method in (configured("fedavg"), configured("fedskc", preset, scale=scale))
    ]
    for client in range(len(SKEWED)):
        plain, ours = (toy.worker.run(toy.job(client)) for toy in toys)
        assert same_tree(plain.upload["model"], ours.upload["model"])
        assert plain.upload["samples"] == ours.upload["samples"] == len(SKEWED[client])


@pytest.mark.parametrize("gda", ["paper", "share", "fedavg", "uniform"])
def test_clients_that_do_not_move_leave_the_model_as_it_was(gda):
    method = configured("fedskc", gda=gda, gpr="off")
    toy = world(method, SKEWED, participation=0.5, optimizer=OptimizerSpec(lr=0.0))
    for _ in range(3):
        toy.federation.step()
        assert furthest(toy.federation.server["model"], toy.task.init) < 1e-7


@pytest.mark.parametrize("net", [Tiny, TinyBN])
@pytest.mark.parametrize("silu", [True, False])
def test_knowledge_is_of_the_weights_that_travel_with_it(net, silu):
    toy = world(configured("fedskc", "paper", silu=silu), SKEWED, net=net, epochs=2)
    done = toy.worker.run(toy.job(0))
    other = net().eval()
    other.load_state_dict(done.upload["model"])
    x, y = toy.samples(0)
    with torch.no_grad():
        logits = other(x)
    for label in (0, 1):
        mean = logits[y == label].mean(0)
        expected = mean * torch.sigmoid(mean) if silu else mean
        assert torch.allclose(done.upload["knowledge"].values[label], expected, rtol=0, atol=1e-6)


def test_knowledge_of_the_last_epoch_is_seen_before_the_steps():
    """Two epochs, one batch each: the last epoch sees the weights that one epoch leaves."""
    late = world(configured("fedskc", "paper", knowledge_from="last_epoch"), SKEWED, epochs=2, batch_size=8)
    after = world(configured("fedskc", "paper"), SKEWED, epochs=1, batch_size=8)
    ours, expected = (toy.worker.run(toy.job(0)).upload["knowledge"].values for toy in (late, after))
    assert torch.allclose(ours, expected, rtol=0, atol=1e-6)


def test_presets():
    paper, authors, sound = (configured("fedskc", preset).options for preset in PRESETS)
    assert (paper.tau, paper.neighbours, paper.beta, paper.lambda_lcl, paper.lcl_ramp) == (0.08, 1, 0.95, 1.0, 0)
    assert (paper.silu, paper.scale, paper.detach_scale, paper.gda, paper.gpr) == (
        True,
        "dataset",
        True,
        "paper",
        "paper",
    )
    assert (paper.denominator, paper.missing_positive, paper.gpr_classes) == ("once", "mask", "intersection")
    assert (authors.silu, authors.scale, authors.denominator) == (False, "none", "positive_twice")
    assert (authors.missing_positive, authors.lcl_ramp, authors.knowledge_from) == ("self", 100, "last_epoch")
    assert (authors.gda, authors.gpr, authors.beta, authors.gpr_classes) == ("fedavg", "paper", 0.99, "own")
    assert (sound.tau, sound.scale, sound.gda, sound.gpr) == (0.5, "none", "fedavg", "off")
