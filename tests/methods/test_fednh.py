"""FedNH: golden numbers, unit prototypes, and classes that nobody holds."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.methods.fednh import FedNH, W
from golden_world import GOLDEN, golden_run, matches, probe, refuted
from support import Recording, Tiny, TinyBN, after, configured, same_tree, world

GOLD = GOLDEN["fednh"]
NAMES = ("fc.weight", "fc.bias", W)
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


class Given(FedNH):
    """From the golden world's first prototypes."""

    def first_prototypes(self, task):
        return torch.tensor(GOLD["first_rows"], dtype=torch.float64)


Given.__name__ = "FedNH"


def test_golden():
    federation, servers = golden_run(Given, rounds=2, **GOLD["options"])
    before = Given().first_prototypes(None)
    for number, server in enumerate(servers, 1):
        wanted = GOLD["out"][f"round{number}"]
        assert matches(server["model"], wanted["server"], tolerance=2e-6)
        assert abs(probe(server["model"], NAMES) - wanted["probe"]) < 2e-6
        changed = (server["model"][W] != before).any(1)
        assert changed.tolist() == wanted["held"]
        before = server["model"][W]
    for client, own in GOLD["out"]["personal"].items():
        assert matches(federation.states[int(client)]["last"], own, tolerance=2e-6)
    assert refuted(servers[1]["model"], GOLD, NAMES)


def test_first_prototypes_are_orthonormal_and_of_the_seed():
    toys = [world(configured("fednh"), LABELS, seed=seed) for seed in (3, 3, 4)]
    rows = [toy.federation.server["model"][W] for toy in toys]
    assert torch.allclose(rows[0] @ rows[0].T, torch.eye(4), atol=1e-6)
    assert torch.equal(rows[0], rows[1])
    assert not torch.allclose(rows[0], rows[2])


def test_rows_stay_unit_and_those_without_data_stay_as_they_are():
    toy = world(configured("fednh"), [[0, 1, 1], [0, 0, 3]], epochs=2)
    first = toy.federation.server["model"][W]
    after(toy, 3)
    rows = toy.federation.server["model"][W]
    assert torch.allclose(rows.norm(dim=1), torch.ones(4), atol=1e-6)
    assert torch.equal(rows[2], first[2])
    assert not any(torch.equal(rows[c], first[c]) for c in (0, 1, 3))


def test_clients_do_not_train_the_prototypes_even_with_weight_decay():
    decay = OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=0.1)
    toy = world(configured("fednh"), LABELS, net=TinyBN, optimizer=decay, engine=Recording)
    first = toy.federation.server["model"][W]
    toy.federation.step()
    assert all(torch.equal(toy.federation.states[k]["last"][W], first) for k in range(5))
    assert all(W not in done.upload["model"] for done in toy.federation.engine.done)


def test_a_learned_scale_is_trained_and_averaged():
    toy = after(world(configured("fednh", "authors"), LABELS), 1)
    scale = float(toy.federation.server["model"]["extra.scale"])
    own = [float(state["last"]["extra.scale"]) for state in toy.federation.states.values()]
    assert scale != 20.0
    assert scale == pytest.approx(sum(own) / 5, rel=1e-6)


def test_predictors_are_cosines():
    toy = after(world(configured("fednh"), LABELS, participation=0.4), 1)
    ctx = ServerContext(toy.task, 1)
    (drawn, *_), x = toy.federation.states, torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    common = toy.method.predictors(toy.federation.server, None, ctx)["global"]
    own = toy.method.predictors(toy.federation.server, toy.federation.states[drawn], ctx)["personal"]
    new = toy.method.predictors(toy.federation.server, {}, ctx)["personal"]
    assert same_tree(own.tree, toy.federation.states[drawn]["last"])
    assert same_tree(new.tree, common.tree)
    net = toy.net
    net.load_state_dict(common.tree)
    z = net.features(x)
    wanted = 30 * torch.stack([torch.cosine_similarity(z, row, dim=1) for row in common.tree[W]], 1)
    assert torch.allclose(common.logits(net, x), wanted, atol=1e-5)


def test_fewer_features_than_classes_are_refused():
    with pytest.raises(ConfigError, match=r"fednh: 7 classes and 6 features: .* choose a wider model"):
        world(configured("fednh"), [[0, 6]], net=lambda: Tiny(7), classes=7)
