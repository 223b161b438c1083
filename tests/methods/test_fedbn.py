"""FedBN: batch norm stays with the client, everything else is averaged alike."""

import pytest
import torch

from fedloom.methods import METHODS
from fedloom.methods.contract.contexts import ServerContext
from fedloom.nets.net import BN_ROLES, Role
from support import Recording, Tiny, TinyBN, configured, furthest, same_tree, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0], [3, 3, 2, 0, 1]]
AFFINE = {"norm.weight", "norm.bias"}
STATISTICS = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
SHARED = {"fc.weight", "fc.bias", "head.weight", "head.bias"}


def trained(method, net=TinyBN, rounds=3, **options):
    toy = world(method, LABELS, net=net, epochs=2, engine=Recording, **options)
    for _ in range(rounds):
        toy.federation.step()
    return toy


def server_model(toy):
    return toy.federation.server["model"]


@pytest.mark.parametrize(
    ("statistics", "own"), [("personal", AFFINE | STATISTICS), ("shared", AFFINE)], ids=["personal", "shared"]
)
def test_batch_norm_never_travels(statistics, own):
    toy = trained(configured("fedbn", bn_stats=statistics))
    engine = toy.federation.engine
    shared = SHARED | (STATISTICS - own)
    assert len(engine.done) == len(engine.jobs) == 9
    assert all(set(job.payload) == {"model"} and set(job.payload["model"]) == shared for job in engine.jobs)
    assert all(set(done.upload) == {"model", "samples"} for done in engine.done)
    assert all(set(done.upload["model"]) == shared for done in engine.done)
    assert set(server_model(toy)) == shared
    assert all(set(state) == {"model"} and set(state["model"]) == own for state in toy.federation.states.values())


@pytest.mark.parametrize(("weights", "shares"), [("uniform", (1, 1, 1)), ("samples", (7, 3, 5))])
def test_clients_weigh_alike_or_by_samples(weights, shares):
    toy = trained(configured("fedbn", weights=weights), rounds=1)
    sent = [done.upload["model"] for done in toy.federation.engine.done]
    for name, value in server_model(toy).items():
        mean = sum(w * tree[name].double() for w, tree in zip(shares, sent, strict=True)) / sum(shares)
        assert torch.allclose(value.double(), mean, rtol=0, atol=1e-6)


def test_weighted_by_samples_without_batch_norm_it_is_fedavg():
    ours, plain = (trained(configured(*name), net=Tiny) for name in (["fedbn"], ["fedavg"]))
    ours_weighted = trained(configured("fedbn", weights="samples"), net=Tiny)
    assert same_tree(server_model(ours_weighted), server_model(plain))
    assert furthest(server_model(ours), server_model(plain)) > 1e-4
    assert all(state == {} for state in ours.federation.states.values())


@pytest.mark.parametrize("statistics", ["personal", "shared"])
def test_a_net_without_batch_norm_is_reported_before_the_run(statistics):
    method = configured("fedbn", bn_stats=statistics)
    (diagnostic,) = world(method, LABELS, net=Tiny).federation.initial_diagnostics
    assert diagnostic.code == "fedbn.no_batch_norm"
    assert "\n" not in diagnostic.message
    assert world(method, LABELS, net=TinyBN).federation.initial_diagnostics == []


def test_clients_that_never_took_part_are_tested_with_the_first_batch_norm():
    toy = world(configured("fedbn"), LABELS, net=TinyBN, participation=1 / 3)
    (sampled,) = toy.federation.step().participants
    for client in range(3):
        state = toy.federation.state_of(toy.federation.client_context(client, 1))
        offered = toy.method.predictors(toy.federation.server, state, ServerContext(toy.task, 1))
        assert list(offered) == ["personal"]
        for name, value in offered["personal"].tree.items():
            if name in SHARED:
                assert torch.equal(value, server_model(toy)[name])
            elif client != sampled:
                assert torch.equal(value, toy.task.init[name])
    assert toy.method.predictors(toy.federation.server, None, ServerContext(toy.task, 1)) == {}


def test_what_stays_is_said_by_the_options_of_the_method_not_of_its_class():
    assert configured("fedbn").spec.private == METHODS.get("fedbn").spec.private == BN_ROLES
    assert configured("fedbn", bn_stats="shared").spec.private == {Role.BN_AFFINE}
    assert configured("fedbn").spec.private == BN_ROLES
