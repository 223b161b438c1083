"""FedAvg, FedBN and local training by hand."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedloom.methods import METHODS
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.nets.net import BN_ROLES, Role
from support import Recording, Tiny, TinyBN, configured, furthest, same_bits, same_tree, world

# -- fedavg ------------------------------------------------------------------------------------------------------------
LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0], [3, 3, 2, 0, 1]]
DECAY = OptimizerSpec(lr=0.2, momentum=0.9, weight_decay=0.1)


@pytest.mark.parametrize(
    ("net", "spec", "oracle"),
    [
        (Tiny, OptimizerSpec(lr=0.2), lambda p: torch.optim.SGD(p, lr=0.2)),
        (TinyBN, OptimizerSpec(lr=0.2), lambda p: torch.optim.SGD(p, lr=0.2)),
        (Tiny, DECAY, lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, weight_decay=0.1)),
        (TinyBN, DECAY, lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, weight_decay=0.1)),
        (Tiny, OptimizerSpec("adam", lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    ],
)
def test_one_client_one_batch_one_epoch_is_one_step(net, spec, oracle):
    toy = world(configured("fedavg"), [[0, 1, 2, 3, 0, 1]], batch_size=6, optimizer=spec, net=net)
    reference = net()
    reference.load_state_dict(toy.task.init)
    x, y = toy.samples(0)
    cross_entropy(reference.train()(x), y).backward()
    oracle(reference.parameters()).step()
    report = toy.federation.step()
    assert report.steps == 1
    # Adam divides by |g|: rounding in gradients near zero shows a little more.
    assert furthest(toy.federation.server["model"], reference.state_dict()) < (2e-5 if spec.name == "adam" else 1e-6)
    assert furthest(toy.federation.server["model"], toy.task.init) > 5e-3


def test_two_epochs_of_batches_are_a_plain_torch_loop_over_the_same_shuffles():
    spec = OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=1e-3)
    toy = world(configured("fedavg"), LABELS, epochs=2, batch_size=3, optimizer=spec)
    reference = Tiny()
    reference.load_state_dict(toy.task.init)
    sgd = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    shuffle = toy.task.streams.numpy("shuffle", 1, 0)
    x, y = toy.samples(0)
    for _ in range(2):
        order = torch.from_numpy(shuffle.permutation(7))
        for part in (order[:3], order[3:6], order[6:]):
            sgd.zero_grad()
            cross_entropy(reference(x[part]), y[part]).backward()
            sgd.step()
    done = toy.worker.run(toy.job(0))
    assert furthest(done.upload["model"], reference.state_dict()) < 1e-6


# -- fedbn -------------------------------------------------------------------------------------------------------------
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


# -- local -------------------------------------------------------------------------------------------------------------
MOMENTUM = OptimizerSpec(lr=0.1, momentum=0.9)


@pytest.mark.parametrize("net", [Tiny, TinyBN])
def test_every_client_trains_alone(net):
    """The federation's clients end where one client, fed with its own last weights, ends."""
    toy = world(configured("local"), LABELS, net=net, epochs=2, optimizer=MOMENTUM)
    for _ in range(3):
        toy.federation.step()
    for client in range(3):
        alone = world(configured("local"), LABELS, net=net, epochs=2, optimizer=MOMENTUM)
        state = {"model": alone.task.init}
        for round_ in (1, 2, 3):
            state = alone.worker.run(alone.job(client, round_=round_, state=state)).state
        assert same_bits(state, toy.federation.states[client])
        assert furthest(state["model"], alone.task.init) > 1e-2


def test_there_is_a_personal_model_for_everyone_and_no_global_one():
    toy = world(configured("local"), LABELS, participation=1 / 3)
    (sampled,) = toy.federation.step().participants
    ctx = ServerContext(toy.task, 1)
    assert toy.method.predictors(toy.federation.server, None, ctx) == {}
    for client in range(3):
        state = toy.federation.state_of(toy.federation.client_context(client, 1))
        offered = toy.method.predictors(toy.federation.server, state, ctx)
        assert list(offered) == ["personal"]
        expected = toy.federation.states[client]["model"] if client == sampled else toy.task.init
        assert same_tree(offered["personal"].tree, expected)
