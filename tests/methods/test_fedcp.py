"""FedCP against golden numbers of two rounds; its gate, its noise, its discrepancy of features."""

import pytest
import torch

from fedloom.methods import METHODS, Batch
from fedloom.methods.fedcp import context_of, discrepancy, gated_logits
from golden_world import SHARED_BASELINES, WORLD, GoldenNet, golden_run, matches, mistakes, probe
from support import Tiny, configured, world

GOLD = SHARED_BASELINES["fedcp"]
FEDCP = METHODS.get("fedcp")
LABELS = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3]]
BODY, HEAD = ["fc.weight", "fc.bias"], ["head.weight", "head.bias"]
GATE = [f"extra.{name}" for name in GOLD["gate_init"]]


class Golden(FEDCP):
    def extra(self, net):
        module = super().extra(net)
        with torch.no_grad():
            for name, value in module.named_parameters():
                value.copy_(torch.tensor(GOLD["gate_init"][name], dtype=torch.float64))
        return module


def golden(rounds):
    return golden_run(Golden, rounds, noise=False, weight=GOLD["options"]["lambda"])


def fingerprint(federation, server, participants):
    trees = [(server["model"], BODY), (server["head"], HEAD), (server["model"], GATE)]
    trees += [(federation.states[client]["model"], HEAD) for client in participants]
    return sum(probe(tree, names) for tree, names in trees)


def test_golden_rounds():
    for rounds in (1, 2):
        federation, servers = golden(rounds)
        wanted, server = GOLD["out"][f"round{rounds}"], servers[-1]
        assert matches(server["model"], wanted["body"])
        assert matches(server["head"], wanted["head"])
        assert matches(server["model"], wanted["gate"], prefix="extra.")
        for client, head in wanted["own"].items():
            assert matches(federation.states[int(client)]["model"], head)
        found = fingerprint(federation, server, WORLD["rounds"][rounds - 1])
        assert abs(found - wanted["probe"]) < 1e-7
    assert all(abs(found - value) > 1e-6 for value in mistakes(GOLD))
    ctx = federation.client_context(0, 2)
    offered = federation.method.predictors(server, federation.state_of(ctx), federation.server_context(0))["personal"]
    live = federation.engine.worker.net_of_client(0)
    live.load(offered.tree)
    logits = offered.logits(live.net.eval(), torch.tensor(WORLD["x"][0], dtype=torch.float64))
    assert matches({"": logits}, {"": GOLD["out"]["logits_of_client_0"]})


def test_golden_discrepancy_of_two_views():
    net, x = GoldenNet(), torch.tensor(WORLD["x"][0], dtype=torch.float64)
    z, second = (net.features(view) for view in (x, torch.tensor(WORLD["second_view"][0], dtype=torch.float64)))
    found = discrepancy(z, second, Batch(x, torch.tensor(WORLD["y"][0])))
    assert float(found.detach()) == pytest.approx(GOLD["first_mmd"], abs=1e-7)


def test_golden_share_under_given_noise(monkeypatch):
    federation, _ = golden(1)
    live = federation.engine.worker.net_of_client(0)
    live.load(federation.tasks[0].init)
    z = live.net.features(torch.tensor(WORLD["x"][0], dtype=torch.float64))
    noise = torch.tensor(GOLD["with_noise"]["noise"], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand_like", lambda scores: (-(-noise).exp()).exp())  # of which the noise is made
    scores = live.net.extra(z * context_of(federation.tasks[0].init)) + noise
    assert matches({"": torch.softmax(scores, 1)[:, 0]}, {"": GOLD["with_noise"]["r"]})
    head = {name: federation.tasks[0].init[name] for name in HEAD}
    context = context_of(federation.tasks[0].init)
    share = torch.tensor(GOLD["with_noise"]["r"], dtype=torch.float64)
    wanted = live.net.head(share * z) + live.net.head((1 - share) * z)
    assert matches({"": gated_logits(live.net, z, head, context, noise=True)}, {"": wanted.tolist()}, tolerance=1e-6)


def test_the_discrepancy_by_hand_and_under_a_mask():
    a, b = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]])
    batch = Batch(a, torch.tensor([0, 0]))
    assert float(discrepancy(a, a, batch)) == 0

    def k(square):
        return sum(float(torch.tensor(-square / 2 / width).exp()) for width in (10, 15, 20, 50))

    by_hand = (2 * k(0) + 2 * k(4)) / 4 + k(0) - 2 * k(1)
    assert float(discrepancy(a, b, batch)) == pytest.approx(by_hand, abs=1e-6)
    padded = Batch(torch.ones(3, 1), torch.zeros(3, dtype=torch.int64), torch.tensor([True, True, False]))
    rows = [torch.cat([part, torch.full((1, 1), 9.0)]) for part in (a, b)]
    assert float(discrepancy(*rows, padded)) == pytest.approx(by_hand, abs=1e-6)


def test_noise_is_in_training_and_not_in_tests():
    toy = world(configured("fedcp"), LABELS, net=Tiny)
    job, batch = toy.job(0), Batch(*toy.samples(0))
    consts = toy.method.begin(job.payload, job.state, job.ctx).consts
    with torch.no_grad():
        toy.net.head.weight.add_(torch.randn(4, 6))  # with equal heads the shares do not matter
    for training, values in ((True, 2), (False, 1)):
        net = toy.net.train(training)
        found = {toy.method.loss(net, batch, consts).terms["ce"].item() for _ in range(2)}
        assert len(found) == values
