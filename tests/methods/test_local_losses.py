"""Methods that change the loss of one net: golden numbers, terms by hand, padding, limits."""

import math

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.trees import clone
from fedloom.methods import METHODS
from fedloom.methods.contract.phases import Batch, OptimizerSpec
from fedloom.methods.feddecorr import correlation
from fedloom.methods.fedrcl import relaxed_contrast
from fedloom.methods.fedsam import FedSAM
from fedloom.methods.feduv import missing_spread, nearness
from golden_world import WORLD, GoldenNet, assert_golden, golden_entries, golden_run, matches, noting, variant_probe
from support import Recording, Tiny, TinyBN, after, configured, dataset, near, same_bits, same_tree, world

GOLD = golden_entries("fedlc fedrs fedntd moon feduv fedrcl feddecorr fedsam fedrod")


# -- fedlc -------------------------------------------------------------------------------------------------------------
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


FEDRS_OTHERS = ["fluke_two_samples_are_missing_probe", "marsfl_soft_without_bias_probe"]


@pytest.mark.parametrize(
    ("name", "variant", "run"),
    [
        ("fedlc", "out", GOLD["fedlc"]["options"]),
        ("fedrs", "out", GOLD["fedrs"]["options"] | {"others": FEDRS_OTHERS}),
        ("fedntd", "out", {("epochs" if k == "steps" else k): v for k, v in GOLD["fedntd"]["options"].items()}),
        ("feduv", "out", GOLD["feduv"]["options"] | {"others": ["detached_sigma_probe"]}),
        ("feddecorr", "paper", GOLD["feddecorr"]["options"] | {"form": "paper", "refutes": False}),
        ("fedsam", "sam", GOLD["fedsam"]["options"] | {"others": ["fluke_adaptive_without_eta_probe"]}),
        (
            "fedsam",
            "asam",
            GOLD["fedsam"]["options"] | {"others": ["fluke_adaptive_without_eta_probe"], "adaptive": True},
        ),
    ],
)
def test_golden_rounds(name, variant, run):
    assert_golden(METHODS.get(name), GOLD[name], variant, **run)


@pytest.mark.parametrize(
    ("name", "variant", "run"),
    [("fedlc", "floored_counts_probe", GOLD["fedlc"]["options"]), ("fedrod", "plain_ce_probe", {"balanced": False})],
)
def test_golden_variants(name, variant, run):
    assert abs(variant_probe(METHODS.get(name), GOLD[name], **run) - GOLD[name][variant]) < 1e-7


def test_a_class_that_a_client_lacks_gets_no_gradient():
    toy = world(configured("fedlc"), LABELS, engine=Recording)
    toy.federation.step()
    moved = {done.client: done.upload["model"] for done in toy.federation.engine.done}
    init = toy.task.init["head.weight"]
    assert torch.equal(moved[0]["head.weight"][3], init[3])
    assert not torch.equal(moved[0]["head.weight"][2], init[2])
    assert torch.equal(moved[4]["head.weight"], init)  # one class alone: nothing to learn


# -- fedrs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", GOLD["fedrs"]["scales"])
def test_golden_scales_of_fedrs(client):
    federation, servers = golden_run(METHODS.get("fedrs"), 1, **GOLD["fedrs"]["options"])
    ctx = federation.client_context(int(client), 1)
    scale = federation.method.begin(servers[0], {}, ctx).consts["scale"]
    assert scale.tolist() == GOLD["fedrs"]["scales"][client]


# -- fedntd ------------------------------------------------------------------------------------------------------------


def test_the_labels_logit_gets_no_gradient():
    method = configured("fedntd", tau=2.0)
    toy = world(method, LABELS)
    x, y = toy.samples(1)
    away = {
        name: value + 0.3 * torch.arange(value.numel()).view(value.shape).cos() for name, value in toy.task.init.items()
    }
    taught = method.loss(toy.net, Batch(x, y), {"received": away}).terms["not_true"]
    assert float(taught.detach()) > 1e-3
    rows = torch.autograd.grad(taught, toy.net.head.bias)[0]
    assert rows.abs().max() > 1e-4
    one = y == 3  # samples of one class alone: its logit stays
    taught = method.loss(toy.net, Batch(x[one], y[one]), {"received": away}).terms["not_true"]
    assert float(torch.autograd.grad(taught, toy.net.head.bias)[0][3]) == 0.0


def test_two_classes_leave_nothing_to_teach():
    toy = world(configured("fedntd"), [[0, 1, 0], [1, 1]], net=lambda: TinyBN(2), classes=2)
    plain = world(configured("fedavg"), [[0, 1, 0], [1, 1]], net=lambda: TinyBN(2), classes=2)
    assert same_bits(*(after(one, 2).federation.server for one in (toy, plain)))


# -- moon --------------------------------------------------------------------------------------------------------------


def test_golden_contrasts_of_moon():
    kind, firsts = noting(METHODS.get("moon"))
    assert_golden(kind, GOLD["moon"], **GOLD["moon"]["options"])
    losses = {place: float(objective.total.detach()) for place, objective in firsts.items()}
    assert losses == pytest.approx(GOLD["moon"]["out"]["first_losses"], abs=1e-7)


def test_a_new_client_has_no_contrast_whatever_the_round():
    toy = world(configured("moon"), LABELS)
    after(toy, 2)
    ctx = toy.federation.client_context(0, 3)
    payload = {"model": toy.federation.server["model"]}
    assert "previous" not in toy.method.begin(payload, {}, ctx).consts
    x, y = toy.samples(0)
    consts = toy.method.begin(payload, toy.federation.states[0], ctx).consts
    assert list(toy.method.loss(toy.net, Batch(x, y), consts).terms) == ["ce", "contrast"]


def test_the_last_model_is_the_clients_own_before_aggregation():
    toy = world(configured("moon"), LABELS[:2], epochs=2)
    job = toy.job(0)
    done = toy.worker.run(job)
    assert same_tree(done.state["previous"], done.upload["model"])


# -- feduv -------------------------------------------------------------------------------------------------------------


def batch_of(rows):
    return Batch(torch.zeros(rows, 1), torch.zeros(rows, dtype=torch.int64))


def test_golden_terms():
    net = GoldenNet()
    for client, wanted in GOLD["feduv"]["first_terms"].items():
        z = net.features(torch.tensor(WORLD["x"][int(client)])).detach()
        batch = batch_of(len(z))
        ours = [missing_spread(net.head(z).softmax(1).detach(), batch), *nearness(z, batch)]
        assert [float(each) for each in ours] == pytest.approx(wanted, abs=1e-7)


def test_the_median_is_the_lower_of_two():
    """Squared distances 1, 4, 9, 16, 36, 49."""
    assert float(nearness(torch.tensor([[0.0], [1.0], [3.0], [7.0]]), batch_of(4))[1]) == 9.0


def test_equal_features_are_finite():
    z = torch.zeros(3, 2, requires_grad=True)
    near, _ = nearness(z, batch_of(3))
    assert float(near.detach()) == 1.0
    assert torch.equal(torch.autograd.grad(near, z)[0], torch.zeros(3, 2))


@pytest.mark.parametrize("counting", [0, 1])
def test_fewer_than_two_samples_have_neither_term(counting):
    toy = world(configured("feduv"), LABELS)
    x, y = toy.samples(1)
    terms = toy.method.loss(toy.net, Batch(x, y, torch.arange(len(y)) < counting), {}).terms
    assert float(terms["variance"].detach()) == float(terms["uniformity"].detach()) == 0.0


def test_a_client_with_one_sample_makes_no_step():
    toy = world(configured("feduv"), LABELS, engine=Recording)
    toy.federation.step()
    assert {done.client: done.steps for done in toy.federation.engine.done}[2] == 0


# -- fedrcl ------------------------------------------------------------------------------------------------------------


class BeforeReLU(GoldenNet):
    """The golden net, whose one level lies before the ReLU."""

    def levels(self, x):
        h = x.double().mul(100).round().div(100) @ self.fc.weight.T + self.fc.bias
        return (h,), h.relu()


def test_golden_pairs_of_fedrcl():
    gold = GOLD["fedrcl"]
    assert_golden(METHODS.get("fedrcl"), gold, net=BeforeReLU(), **gold["options"])
    for client, wanted in gold["first_contrast_and_penalty"].items():
        x, y = (torch.tensor(WORLD[name][int(client)]) for name in "xy")
        (level,), _ = BeforeReLU().levels(x)
        found = relaxed_contrast(level, Batch(x, y), gold["options"]["tau"], gold["options"]["threshold"])
        assert [float(each.detach().mean()) for each in found] == pytest.approx(wanted, abs=1e-7)


def angles(*degrees):
    radians = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return 3 * torch.stack([radians.cos(), radians.sin()], 1)


def test_pairs_by_hand():
    """Two of class 0, 60 degrees apart; one of class 1; two of class 2, 20 degrees apart."""
    batch = Batch(torch.zeros(5, 1), torch.tensor([0, 0, 1, 2, 2]))
    contrast, penalty = relaxed_contrast(angles(0, 60, 90, 170, 190), batch, 0.5, 0.7)
    cosine = {a: math.cos(math.radians(a)) for a in (20, 60, 90, 110, 130, 170, 190)}
    p, n1, n2 = (math.exp(v / 0.5) for v in (cosine[60], cosine[90], cosine[170]))
    assert float(contrast[0]) == pytest.approx(-math.log(p / (p + n1 + n2)))
    alone, n1, n2 = (math.exp(v / 0.5) for v in (1.0, math.cos(math.radians(30)), math.cos(math.radians(80))))
    assert float(contrast[2]) == pytest.approx(-math.log(alone / (alone + n1 + n2)))
    near = [math.log(1 + math.exp((v - 1) / 0.5)) for v in (-1.0, cosine[20])]
    assert penalty.tolist() == pytest.approx([near[0], near[0], near[0], near[1], near[1]])


def test_padded_rows_are_no_partners():
    y = torch.tensor([0, 1, 0, 1])
    z, junk = angles(10, 50, 35, 120), angles(200, 12, 55)
    whole = relaxed_contrast(z, Batch(z, y), 0.05, 0.7)
    padded = Batch(torch.zeros(7, 1), torch.cat([y, torch.tensor([0, 0, 1])]), torch.tensor([True] * 4 + [False] * 3))
    for ours, wanted in zip(relaxed_contrast(torch.cat([z, junk]), padded, 0.05, 0.7), whole, strict=True):
        assert torch.allclose(ours[:4], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_a_batch_of_one_trains_on_cross_entropy_alone(engine):
    """Five samples in batches of four, and a client of a single sample."""
    labels, slow = [[0, 1, 2, 1, 3], [2]], OptimizerSpec(lr=0.001)
    toy = after(world(configured("fedrcl"), labels, optimizer=slow), 2, engine)
    assert [report.steps for report in toy.reports] == [3, 3]
    assert all(math.isfinite(value) for report in toy.reports for value in report.terms.values())
    x, y = toy.samples(1)
    out = toy.method.loss(toy.net, Batch(x, y), {})
    one, plain = (
        torch.autograd.grad(loss, list(toy.net.parameters()), retain_graph=True)
        for loss in (out.total, out.terms["ce"])
    )
    assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(one, plain, strict=True))


@pytest.mark.parametrize("labels", [[2], [1, 1]])
def test_batches_without_negatives_are_finite(labels):
    toy = world(configured("fedrcl"), LABELS)
    x = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(1))
    out = toy.method.loss(toy.net, Batch(x, torch.tensor(labels)), {})
    gradients = torch.autograd.grad(out.total, list(toy.net.parameters()))
    assert float(out.terms["contrast"].detach()) == pytest.approx(0, abs=1e-6)
    assert all(g.isfinite().all() for g in gradients)


def test_a_residual_net_has_a_level_for_the_stem_and_each_stage():
    toy = world(configured("fedrcl"), [[0, 1, 1, 0], [2, 3, 2]], net="resnet8", shape=(3, 8, 8))
    x, y = toy.samples(0)
    net = toy.net.eval()
    levels, z = net.levels(x)
    assert [tuple(level.shape[1:]) for level in levels] == [(64, 8, 8), (64, 8, 8), (128, 4, 4), (256, 2, 2)]
    assert all(float(level.detach().min()) < 0 for level in levels)
    assert torch.allclose(z, net.features(x), atol=1e-6)
    terms = toy.method.loss(net, Batch(x, y), {}).terms
    each = [relaxed_contrast(level.mean((2, 3)), Batch(x, y), 0.05, 0.7) for level in levels]
    for name, kind in zip(("contrast", "penalty"), zip(*each, strict=True), strict=True):
        wanted = torch.stack([values.mean() for values in kind]).mean()
        assert float(terms[name].detach()) == pytest.approx(float(wanted.detach()), rel=1e-4)


# -- feddecorr ---------------------------------------------------------------------------------------------------------


def test_golden_terms_of_feddecorr():
    kind, firsts = noting(METHODS.get("feddecorr"))
    assert_golden(kind, GOLD["feddecorr"], form="code", **GOLD["feddecorr"]["options"])
    for client in WORLD["rounds"][0]:
        term = float(firsts[f"round1/{client}"].terms["decorr"].detach()) / GOLD["feddecorr"]["options"]["beta"]
        assert term == pytest.approx(GOLD["feddecorr"]["first_terms"][str(client)], abs=1e-7)
    for client, term in GOLD["feddecorr"]["first_terms"].items():
        z = GoldenNet().features(torch.tensor(WORLD["x"][int(client)], dtype=torch.float64)).detach()
        assert of(z) == pytest.approx(term, abs=1e-7)


def of(z, mask=None, form="code"):
    return float(correlation(z, Batch(z, torch.zeros(len(z)), mask), form))


def test_padded_rows_do_not_count():
    z = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([True] * 5 + [False] * 2)
    assert of(z, mask) == pytest.approx(of(z[:5]), rel=1e-5)
    assert of(z, torch.arange(7) < 1) == 0.0


def test_a_dead_feature_has_a_finite_gradient():
    z = torch.stack([torch.arange(4.0), torch.zeros(4)], 1).requires_grad_()
    (gradient,) = torch.autograd.grad(correlation(z, Batch(z, torch.zeros(4))), z)
    assert torch.isfinite(gradient).all()


def test_over_fedavg_it_is_feddecorr():
    toys = [after(world(METHODS.get(n).configured("sound", {}), LABELS), 2) for n in ("feddecorr", "fedavg+decorr")]
    assert same_bits(*(toy.federation.server for toy in toys))


def test_it_changes_a_base_with_a_loss_of_its_own():
    toys = [after(world(METHODS.get(n).configured("sound", {}), LABELS), 2) for n in ("moon", "moon+decorr")]
    assert not near(*(toy.federation.server["model"] for toy in toys), 1e-4)
    assert {"contrast", "decorr"} <= toys[1].reports[-1].terms.keys()


def test_features_are_computed_once():
    class Counting(Tiny):
        calls = 0

        def features(self, x):
            Counting.calls += self.training
            return super().features(x)

    toy = world(configured("feddecorr"), LABELS[:1], net=Counting, batch_size=7)
    toy.federation.step()
    assert Counting.calls == 1
    assert "features" not in vars(toy.net)


def test_refusals():
    with pytest.raises(ConfigError, match="has the term of FedDecorr already"):
        METHODS.get("feddecorr+decorr")
    with pytest.raises(ConfigError, match="acts on the features of one net"):
        METHODS.get("fml+decorr").configured("sound", {})
    with pytest.raises(ConfigError, match="needs one forward pass of a batch, and its steps take gradients inside"):
        METHODS.get("perfedavg+decorr").configured("sound", {})
    with pytest.raises(ConfigError, match="acts on one view of each sample"):
        METHODS.get("fedclassavg+decorr").configured("sound", {})


# -- fedsam ------------------------------------------------------------------------------------------------------------


def test_without_gradient_it_stays():
    gradients = {"fc.weight": torch.zeros(1, 1)}
    assert not FedSAM().ascent(gradients, gradients, {})["fc.weight"].any()


# -- fedprox -----------------------------------------------------------------------------------------------------------
LABELS_FEDPROX = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0], [3, 3, 2, 0, 1]]
MOMENTUM = OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=1e-3)


@pytest.mark.parametrize("mu", [0.01, 1.0, 7.5])
def test_gradient_is_that_of_fedavg_plus_the_pull(mu):
    """In float64; batch-norm statistics that differ from the received ones play no part."""
    plain, prox = configured("fedavg"), configured("fedprox", mu=mu)
    toy = world(prox, LABELS_FEDPROX)
    net = TinyBN().double()
    received = {name: v + 0.3 if v.is_floating_point() else v for name, v in clone(net.state_dict()).items()}
    consts = prox.begin({"model": received}, {}, toy.federation.client_context(0, 1)).consts
    data = dataset([0, 1, 2, 3, 3])
    batch = Batch(data.x.double(), data.y)
    parameters = dict(net.named_parameters())
    loss = plain.loss(net, batch, {})
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    out = prox.loss(net, batch, consts)
    pulled = torch.autograd.grad(out.total, list(parameters.values()))
    for (name, w), g, ours in zip(parameters.items(), gradients, pulled, strict=True):
        assert torch.allclose(ours, g + mu * (w - received[name]), rtol=0, atol=1e-12)
    squares = sum(float(((w - received[n]) ** 2).sum().detach()) for n, w in parameters.items())
    assert float(out.terms["proximal"].detach()) == pytest.approx(mu / 2 * squares, rel=1e-12)
    assert float(out.total.detach()) == pytest.approx(float(loss.detach()) + mu / 2 * squares, rel=1e-12)
    assert float(out.terms["ce"].detach()) == pytest.approx(float(loss.detach()), rel=1e-12)


# -- fedrod ------------------------------------------------------------------------------------------------------------


def test_golden_heads_of_fedrod():
    gold = GOLD["fedrod"]
    federation, servers = assert_golden(METHODS.get("fedrod"), gold, own=None, **gold["options"])
    for client, own in gold["out"]["own"].items():
        state = federation.states[int(client)]["model"]
        assert matches(state, {name.replace("head", "extra"): value for name, value in own.items()})
    offered = federation.method.predictors(servers[1], federation.states[0], federation.server_context())["personal"]
    net = federation.engine.worker.loaded_nets[0].net
    net.load_state_dict(offered.tree)
    logits = offered.logits(net, torch.tensor(WORLD["x"][0])).detach()
    assert torch.allclose(logits, torch.tensor(gold["out"]["personal_logits_of_client_0"]).double(), rtol=0, atol=2e-6)


def test_each_term_moves_its_own_part():
    toy = world(configured("fedrod"), LABELS, net=TinyBN)
    x, y = toy.samples(1)
    consts = toy.method.begin(toy.federation.server, toy.job(1).state, toy.federation.client_context(1, 1)).consts
    terms = toy.method.loss(toy.net, Batch(x, y), consts).terms
    names = [name for name, _ in toy.net.named_parameters()]
    for term, extra in (("ce", False), ("ce_private", True)):
        gradients = torch.autograd.grad(terms[term], list(toy.net.parameters()), allow_unused=True)
        moved = {name for name, g in zip(names, gradients, strict=True) if g is not None and bool(g.any())}
        assert moved == {name for name in names if name.startswith("extra.") is extra}
