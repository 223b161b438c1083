"""Which terms of a loss do nothing and which drown cross-entropy: the figures, when they are taken, what they cost."""

import dataclasses

import pytest
import torch

from fedloom.engine.round_report import balance_diagnostics, gradient_norms, gradient_ratios
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Objective, OptimizerSpec
from support import Recording, TinyBN, TinyDropout, configured, same_bits, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0], [3, 2, 1, 0]]


@pytest.fixture
def parameters():
    return [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)]


# -- the figures -------------------------------------------------------------------------------------------------------
def test_norms_are_those_of_gradients_with_the_cross_entropies_together(parameters):
    w, v = parameters
    terms = {
        "ce_online": 3 * w[0],
        "ce_offline": 4 * w[1],  # gradients (3, 0) and (0, 4): 5 together, not 7
        "both": 6 * w[0] + 8 * v.sum(),  # (6, 0 | 8): 10
        "square": 0.25 * v.square().sum(),  # 0.5 * 3 = 1.5
        "constant": torch.tensor(7.0),
        "elsewhere": torch.ones(1, requires_grad=True).sum(),
    }
    measured = gradient_norms(terms, parameters)
    expected = {"ce": 5.0, "both": 10.0, "square": 1.5, "constant": 0.0, "elsewhere": 0.0}
    assert measured == pytest.approx(expected)
    assert list(measured) == list(expected)
    torch.autograd.grad(terms["square"] + terms["both"], parameters)  # the graphs are still there


def test_a_balance_is_a_term_s_norms_over_those_of_cross_entropy_summed_over_the_clients():
    clients = [{"ce": 4.0, "reg": 1.0}, {}, {"ce": 1e-9, "reg": 1.0, "other": 6.0}]  # the last holds a single class
    assert gradient_ratios(clients) == pytest.approx({"reg": 0.5, "other": 1.5})
    assert gradient_ratios([{"ce": 0.0, "reg": 1.0}])["reg"] > 1e9
    assert gradient_ratios([{"ce": 0.0, "reg": 0.0}]) == {"reg": 0.0}


# -- what is said, and when --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("rounds", "last"), [(2, 2), (3, 3), (5, 5), (9, 5)])
def test_that_a_term_is_inactive_is_said_at_the_last_measured_round(rounds, last):
    said = [r for r in range(1, rounds + 1) if balance_diagnostics("some", {"reg": 0.0099}, r, rounds)]
    assert said == [last]
    assert balance_diagnostics("some", {"reg": 0.01}, last, rounds) == []
    (diagnostic,) = balance_diagnostics("some", {"reg": 0.0025}, last, rounds)
    assert (diagnostic.code, diagnostic.figure) == ("some.inactive_reg", 0.0025)
    assert "reg is inactive" in diagnostic.message
    assert "2.5e-03" in diagnostic.message


class Weighted(Method):
    """Cross-entropy and a pull of the head to zero, `weight` times as strong as its sum of squares."""

    weight = 1.0

    def loss(self, net, batch, consts):
        ce = super().loss(net, batch, consts)
        return Objective.sum({"ce": ce, "decay": self.weight * net.head.weight.square().sum()})


@pytest.mark.parametrize(("weight", "code"), [(1e-6, "inactive"), (1e3, "dominating"), (0.5, None)])
def test_the_loop_reports_terms_out_of_proportion(weight, code):
    method = type("Weighted", (Weighted,), {"weight": weight})()
    toy = world(method, LABELS, rounds=7, optimizer=OptimizerSpec(lr=0.0))
    reported = {r: [f.code for f in toy.federation.step().diagnostics] for r in range(1, 8)}
    expected = {"inactive": [5], "dominating": [2, 3, 4, 5], None: []}[code]
    assert reported == {r: [f"weighted.{code}_decay"] if r in expected else [] for r in range(1, 8)}


def test_clients_are_measured_in_rounds_two_to_five():
    toy = world(configured("fedprox"), LABELS, participation=0.67, rounds=8, engine=Recording, batch_size=3, epochs=2)
    for round_ in range(1, 9):
        toy.federation.engine.jobs.clear()
        toy.federation.engine.done.clear()
        report = toy.federation.step()
        measured = tuple(job.ctx.client for job in toy.federation.engine.jobs if job.measured)
        assert sorted(measured) == list(report.participants if round_ in (2, 3, 4, 5) else ())
        assert tuple(d.client for d in toy.federation.engine.done if d.norms) == measured


def test_a_phase_of_one_step_is_not_measured():
    toy = world(configured("fedprox"), LABELS, batch_size=64)  # the pull to where one starts is 0 at first
    assert toy.worker.run(dataclasses.replace(toy.job(0), measured=True)).norms == {}


def test_the_norms_are_those_of_the_last_step():
    toy = world(Weighted(), [LABELS[0]], epochs=2, batch_size=7)
    job = dataclasses.replace(toy.job(0), measured=True)
    done = toy.worker.run(job)
    one_epoch = dataclasses.replace(toy.task, local_epochs=1)
    before = toy.worker.run(dataclasses.replace(job, ctx=dataclasses.replace(job.ctx, task=one_epoch)))
    net = type(toy.net)()
    net.load_state_dict(before.upload["model"])
    x, y = toy.samples(0)
    norms = []
    for term in (torch.nn.functional.cross_entropy(net(x), y), net.head.weight.square().sum()):
        gradients = torch.autograd.grad(term, list(net.parameters()), allow_unused=True)
        norms.append(float(torch.cat([g.flatten() for g in gradients if g is not None]).norm()))
    assert done.norms == pytest.approx({"ce": norms[0], "decay": norms[1]}, rel=1e-5)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "feddw", "fedsc", "fedskc", "local"])
@pytest.mark.parametrize("net", [TinyBN, TinyDropout])
def test_training_gives_the_same_bits_measured_or_not(name, net):
    toy = world(configured(name), LABELS, net=net, epochs=2, batch_size=3)
    toy.federation.step()
    job = toy.job(0, round_=2)
    plain, measured = (toy.worker.run(dataclasses.replace(job, measured=wanted)) for wanted in (False, True))
    assert same_bits(plain.upload, measured.upload)
    assert same_bits(plain.state, measured.state)
    assert dict(plain.terms) == dict(measured.terms)
    assert dict(plain.norms) == {}
    assert bool(measured.norms) == (name not in ("fedavg", "local"))
    watched = {term for term in measured.terms if not term.startswith("ce")} - {"loss"}
    assert set(measured.norms) == ({"ce"} | watched if watched else set())
