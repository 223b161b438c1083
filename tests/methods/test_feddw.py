"""FedDW and the DW wrapper: the properties that the equations promise, whatever the numbers."""

import math

import pytest
import torch
from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable
from fedloom.methods import METHODS
from fedloom.methods.contract.contexts import Start
from fedloom.methods.contract.phases import Batch, OptimizerSpec, Train
from fedloom.methods.contract.spec import Spec
from fedloom.methods.feddw import decayed, with_dw
from fedloom.methods.fedprox import FedProx
from fedloom.methods.parts.consistency import next_soft_labels
from fedloom.nets.net import Role
from support import CLASSES, Tiny, TinyBN, configured, same_bits, same_tree, world

PRESETS = ("paper", "authors", "sound")
WRAPPED = ("fedavg+dw", "fedprox+dw", "fedsc+dw", "fedskc+dw")
# Class 3 is held by nobody, class 2 by client 2 alone; client 3 has one sample, so one class.
SKEWED = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
ADAM = OptimizerSpec(name="adam", lr=1e-3)
FORMS = ({}, {"linearised": "softmax_lin"}, {"linearised": "gram"}, {"relu_on_cr": True})


def bias_free(net):
    """A net's factory without the head's bias: the baseline that FedDW with mu = 0 must equal."""

    def made():
        built = net()
        built.head.bias = None
        return built

    return made


def omega(seed=0, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    return torch.softmax(torch.randn(CLASSES, CLASSES, generator=rng, dtype=torch.float64), 1).to(dtype)


def consts_of(dtype=torch.float64, mu=0.7, seed=0, rows=(True, True, True, True), width=6):
    rng = torch.Generator().manual_seed(seed + 50)
    return {
        "soft_labels": omega(seed, dtype),
        "soft_label_rows": torch.tensor(rows),
        "mu": mu,
        "reference": torch.randn(CLASSES, width, generator=rng, dtype=torch.float64).to(dtype),
    }


def example(width=6, rows=7, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=rng, dtype=torch.float64), torch.arange(rows) % CLASSES


# -- the regulariser ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_it_moves_the_head_alone_and_whatever_the_batch(options):
    method, consts = configured("feddw", "paper", **options), consts_of()
    net = bias_free(Tiny)().double()
    gradients = []
    for seed in range(2):
        x, y = example(width=5, seed=seed)
        both = method.loss(net, Batch(x, y), consts).total
        alone = configured("fedavg").loss(net, Batch(x, y), {})
        names = [name for name, _ in net.named_parameters()]
        pairs = [torch.autograd.grad(loss, list(net.parameters())) for loss in (both, alone)]
        difference = {n: a - b for n, a, b in zip(names, *pairs, strict=True)}
        assert all(torch.equal(value, torch.zeros_like(value)) for n, value in difference.items() if n != "head.weight")
        gradients.append(difference["head.weight"])
    assert torch.allclose(*gradients, rtol=0, atol=1e-12)
    assert float(gradients[0].abs().max()) > 1e-4


# -- the SL matrix -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", ["keep", "eye", "uniform", "mask"])
@pytest.mark.parametrize("ema", [1.0, 0.25])
def test_rows_without_data(rule, ema):
    sums, counts = omega(1) * torch.tensor([[4.0], [0], [2], [0]]), torch.tensor([4.0, 0, 2, 0]).double()
    last = ClassTable(omega(2), torch.tensor([True, True, False, True]))
    last = ClassTable(last.values * last.held.unsqueeze(1), last.held)
    new = next_soft_labels(ClassTable.from_sums(sums, counts), last, rule, ema)
    absent = {"keep": omega(2), "eye": torch.eye(4).double(), "uniform": torch.full((4, 4), 0.25).double()}
    for row in range(CLASSES):
        present = bool(counts[row] > 0)
        assert bool(new.held[row]) == (present or rule != "mask")
        if not new.held[row]:
            assert not new.values[row].any()
            continue
        fresh = omega(1)[row] if present else absent[rule][row]
        expected = ema * fresh + (1 - ema) * omega(2)[row] if last.held[row] else fresh
        assert torch.allclose(new.values[row], expected, rtol=0, atol=1e-12)
        assert float(new.values[row].sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("absent", ["keep", "eye", "uniform", "mask"])
def test_rows_sum_to_one_in_every_round(preset, absent):
    toy = world(configured("feddw", preset, absent_row=absent), SKEWED, participation=0.5)
    for _ in range(5):
        report = toy.federation.step()
        assert all(math.isfinite(value) for value in report.terms.values())
        table = toy.federation.server["soft_labels"]
        assert torch.allclose(table.values.sum(1)[table.held], torch.ones(int(table.held.sum())), atol=1e-5)
        assert bool(table.held[3]) == (absent != "mask")
        if absent in ("keep", "eye"):
            assert torch.equal(table.values[3], torch.eye(CLASSES)[3])


def test_soft_labels_are_of_the_weights_that_travel_with_them():
    toy = world(configured("feddw", "paper"), SKEWED, net=TinyBN, epochs=2)
    done = toy.worker.run(toy.job(0))
    other = bias_free(TinyBN)().eval()
    other.load_state_dict(done.upload["model"])
    x, y = toy.samples(0)
    with torch.no_grad():
        p = torch.softmax(other(x), 1)
    for label in (0, 1):
        assert torch.allclose(done.upload["soft_labels"].values[label], p[y == label].mean(0), rtol=0, atol=1e-6)


# -- whole rounds ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("net", [Tiny, TinyBN])
@pytest.mark.parametrize("optimizer", [ADAM, OptimizerSpec(lr=0.1, momentum=0.9)], ids=["adam", "sgd"])
def test_without_mu_it_is_fedavg_without_bias_bit_for_bit(preset, net, optimizer):
    plain = world(configured("fedavg"), SKEWED, net=bias_free(net), optimizer=optimizer, epochs=2)
    ours = world(configured("feddw", preset, mu=0, head_bias=False), SKEWED, net=net, optimizer=optimizer, epochs=2)
    assert "head.bias" not in ours.task.init
    for _ in range(3):
        for toy in (plain, ours):
            toy.federation.step()
        assert same_tree(plain.federation.server["model"], ours.federation.server["model"])


def test_the_first_round_can_be_skipped():
    skipped, plain = configured("feddw", "paper", sl_init="skip_round1"), configured("fedavg")
    toy, bare = world(skipped, SKEWED), world(plain, SKEWED, net=bias_free(Tiny))
    assert set(toy.job(0).payload) == {"model"}
    assert set(toy.job(0, round_=2).payload) == {"model", "soft_labels"}
    report = toy.federation.step()
    bare.federation.step()
    assert set(report.terms) == {"ce"}
    assert report.diagnostics == []
    assert same_tree(toy.federation.server["model"], bare.federation.server["model"])
    assert set(toy.federation.step().terms) == {"ce", "dw"}


@pytest.mark.parametrize(("every", "moves"), [(0, []), (1, [1, 2, 3, 4, 5]), (2, [2, 4]), (5, [5]), (9, [])])
def test_the_reference_moves_every_so_many_steps(every, moves):
    """Five steps; the reference that step n + 1 sees is the head after the last due step."""
    method = configured("feddw", "paper", linearised="softmax_lin", relin_every=every, mu=5)
    seen, heads = [], []
    original = type(method).regulariser

    class Spying(type(method)):
        def regulariser(self, weight, consts):
            if len(seen) < 5:  # the statistics pass asks once more
                seen.append(consts["reference"].clone())
                heads.append(weight.detach().clone())
            return original(self, weight, consts)

    toy = world(Spying(method.options), [[0, 1] * 5], batch_size=2)
    received = toy.federation.server["model"]["head.weight"].clone()
    toy.worker.run(toy.job(0))
    assert torch.equal(heads[0], received)
    for step, reference in enumerate(seen):  # heads[n] is the head after n steps
        last = max((m for m in moves if m <= step), default=0)
        assert torch.equal(reference, heads[last])
    assert torch.equal(toy.federation.server["model"]["head.weight"], received)


# -- padding and stacked clients ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", FORMS, ids=str)
def test_padded_rows_change_nothing(options):
    method, net, consts = configured("feddw", "paper", **options), bias_free(Tiny)().double(), consts_of()
    x, y = example(width=5)
    junk, mask = torch.full((4, 5), 30.0, dtype=x.dtype), torch.tensor([True] * 7 + [False] * 4)
    padded = Batch(torch.cat([x, junk]), torch.cat([y, torch.arange(4)]), mask)
    totals = [method.loss(net, batch, consts).total for batch in (Batch(x, y), padded)]
    gradients = [torch.autograd.grad(total, list(net.parameters())) for total in totals]
    assert torch.allclose(*totals, rtol=0, atol=1e-12)
    for ours, expected in zip(*gradients, strict=True):
        assert torch.allclose(ours, expected, rtol=0, atol=1e-12)
    toy = world(method, [[0]])
    phases = method.phases(Start(toy.task.init, {}), toy.federation.client_context(0, 1))
    (statistic,) = phases[-1].statistics.values()
    bare, longer = (statistic.of(net, batch, consts).detach() for batch in (Batch(x, y), padded))
    assert torch.allclose(bare, longer[:7], rtol=0, atol=1e-12)
    nothing = method.loss(net, Batch(x, y, torch.zeros(7, dtype=torch.bool)), consts)
    assert float(nothing.terms["ce"].detach()) == 0
    assert torch.allclose(nothing.total, nothing.terms["dw"])
    assert torch.allclose(nothing.total, consts["mu"] * method.regulariser(net.head.weight, consts))


# -- warnings ----------------------------------------------------------------------------------------------------------
def codes(report):
    return [diagnostic.code for diagnostic in report.diagnostics]


def test_a_class_that_nobody_ever_held_is_reported():
    toy = world(configured("feddw", "paper", mu=50), SKEWED, rounds=9)
    reports = [toy.federation.step() for _ in range(5)]
    assert all("dw.unseen_rows" not in codes(report) for report in reports[:4])
    (diagnostic,) = [f for f in reports[4].diagnostics if f.code == "dw.unseen_rows"]
    assert diagnostic.figure == 1
    assert "class 3" in diagnostic.message
    for options in ({"absent_row": "mask"}, {}):
        full = options or [[0, 1], [2, 3]]
        toy = world(configured("feddw", "paper", **options), SKEWED if options else full, rounds=2)
        assert all("dw.unseen_rows" not in codes(toy.federation.step()) for _ in range(2))


def test_a_regulariser_that_does_nothing_is_reported_by_the_engine():
    def reported(mu):
        toy = world(configured("feddw", "paper", mu=mu), SKEWED, batch_size=2)
        return [diagnostic for _ in range(5) for diagnostic in toy.federation.step().diagnostics]

    (diagnostic,) = [f for f in reported(1e-4) if f.code == "feddw.inactive_dw"]
    assert 0 < diagnostic.figure < 0.01
    assert f"{diagnostic.figure:.1e}" in diagnostic.message
    assert "feddw.inactive_dw" not in [f.code for f in reported(1.0)]


# -- DW over other methods ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_method_without_mu_is_its_base(name):
    base = name.removesuffix("+dw")
    ours = world(configured(name, dw_mu=0), SKEWED)
    plain = world(configured(base), SKEWED, net=bias_free(Tiny))
    for _ in range(3):
        for toy in (ours, plain):
            toy.federation.step()
    assert same_tree(ours.federation.server["model"], plain.federation.server["model"])


def test_dw_over_fedavg_is_feddw():
    for preset in PRESETS:
        toys = [world(configured(name, preset), SKEWED) for name in ("feddw", "fedavg+dw")]
        for _ in range(3):
            for toy in toys:
                toy.federation.step()
        plain, wrapping = (toy.federation.server for toy in toys)
        assert same_bits(plain, {name.removeprefix("dw."): value for name, value in wrapping.items()})
        assert {name for name in wrapping if name.startswith("dw.")} == {
            f"dw.{name}" for name in plain.keys() - {"model"}
        }


def test_options_and_presets_of_both():
    method = configured("fedprox+dw", "authors", mu=0.3, dw_mu=7, dw_mu_decay=[4, 2])
    assert (method.options.mu, method.options.dw_mu, method.dw.mu) == (0.3, 7, 7)
    assert (method.dw.mu_decay, method.dw.sl_ema, method.dw.sl_cumulative) == ((4, 2.0), 0.5, True)
    assert configured("fedsc+dw", "paper").options.cpdr == "l1"
    assert configured("fedsc+dw", "sound").dw.absent_row == configured("feddw", "sound").dw.absent_row
    for key, hint in (("dw_m", "dw_mu"), ("tau", None)):
        with pytest.raises(ConfigError, match=rf"fedprox\+dw\.{key}") as caught:
            configured("fedprox+dw", **{key: 1})
        assert hint is None or f"'{hint}'" in str(caught.value)
    with pytest.raises(ConfigError, match=r"fedprox\+dw\.dw_mu"):
        configured("fedprox+dw", dw_mu=-1)


@pytest.mark.parametrize(
    ("name", "hint"), [("fedprx+dw", "'fedprox'"), ("fedprox+dv", "decorr, dp, dw,"), ("+dw", "unknown method ''")]
)
def test_unknown_parts_of_a_name(name, hint):
    assert name not in METHODS
    with pytest.raises(ConfigError, match=hint):
        METHODS.get(name)
    assert "fedprox+dw" in METHODS
    assert "fedprox+dw" not in METHODS.names()


class FrozenHead(FedProx):
    """Trains everything but the head."""

    def phases(self, start, ctx):
        return [Train(self.loss, ctx.task.local_epochs, trains=frozenset({Role.BODY}))]


class PrivateHead(FedProx):
    spec = Spec(private=frozenset({Role.HEAD}))


class DeepHead(Tiny):
    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, CLASSES))
        self.head.in_features = 6


@pytest.mark.parametrize(
    ("base", "net", "message"),
    [
        (FrozenHead, Tiny, "trained"),
        (PrivateHead, Tiny, "private"),
        (METHODS.get("local"), Tiny, "private"),
        (FedProx, DeepHead, "one linear layer"),
    ],
)
def test_what_dw_refuses(base, net, message):
    with pytest.raises(ConfigError, match=message) as caught:
        world(with_dw(base)(), SKEWED, net=net)
    assert f"{base.name()}+dw" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mu_is_0_once_its_divisor_is_larger_than_any_float():
    assert [decayed(0.1, 10.0, times) for times in (0, 3)] == [0.1, 0.1 / 10.0**3]
    assert 0 < decayed(0.1, 10.0, 308) < 1e-308
    assert [decayed(0.1, 10.0, times) for times in (309, 100_000)] == [0.0, 0.0]
    method = configured("feddw", mu_decay=(1, 1e200))
    toy = world(method, SKEWED)
    job = toy.job(0, round_=2)
    assert method.begin(job.payload, job.state, job.ctx).consts["mu"] == 0.0


def test_more_that_dw_refuses():
    with pytest.raises(ConfigError, match="already"):
        METHODS.get("feddw+dw")
    with pytest.raises(ConfigError, match="linearised"):
        configured("feddw", relu_on_cr=True, linearised="gram")
    toy = world(configured("fedavg"), SKEWED)  # its net has a bias
    with pytest.raises(ConfigError, match=r"net\.head\.bias = None"):
        configured("feddw").examine([toy.task], 1)
