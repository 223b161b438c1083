"""Local training, and methods that keep some roles private."""

import pytest
import torch

from fedloom.core.records import to_bytes
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import BN_ROLES, Role
from support import Recording, Tiny, TinyBN, configured, furthest, same_bits, same_tree, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0], [3, 3, 2, 0, 1]]
MOMENTUM = OptimizerSpec(lr=0.1, momentum=0.9)
BN_LABELS = [[0, 1, 2, 3, 0, 1], [1, 1, 0, 0], [3, 3, 2, 0, 1]]
IMAGES = {"net": "lenet5-bn", "shape": (1, 28, 28), "optimizer": MOMENTUM}


# -- Local -------------------------------------------------------------------------------------------------------------
def test_nothing_travels():
    toy = world(configured("local"), LABELS, engine=Recording)
    for _ in range(2):
        report = toy.federation.step()
        assert report.bytes_up == report.bytes_down == 0
        assert toy.federation.server == {}
    assert all(job.payload == {} for job in toy.federation.engine.jobs)
    assert all(done.upload == {} for done in toy.federation.engine.done)


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


def test_clients_keep_their_weights_when_not_sampled():
    toy = world(configured("local"), LABELS, participation=1 / 3, optimizer=MOMENTUM)
    for _ in range(8):
        before = {client: to_bytes(state) for client, state in toy.federation.states.items()}
        (client,) = toy.federation.step().participants
        after = {k: to_bytes(state) for k, state in toy.federation.states.items()}
        assert {k: v for k, v in after.items() if k != client} == {k: v for k, v in before.items() if k != client}
        assert after[client] != before.get(client)
    assert len(toy.federation.states) == 3


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


# -- private batch norm (FedBN in one line) ----------------------------------------------------------------------------
class PrivateNorms(Method):
    """Batch norm stays at home."""

    spec = Spec(private=BN_ROLES)


def parts(toy):
    """Names of private and of shared entries of lenet5-bn, written out."""
    private = {
        f"norm{i}.{name}"
        for i in (1, 2)
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
    shared = {f"{layer}.{kind}" for layer in ("conv1", "conv2", "fc1", "fc2", "head") for kind in ("weight", "bias")}
    assert private | shared == set(toy.task.init)
    return private, shared


def test_private_roles_never_travel_and_shared_ones_are_averaged():
    toy = world(PrivateNorms(), BN_LABELS, **IMAGES, engine=Recording)
    private, shared = parts(toy)
    for _ in range(2):
        toy.federation.engine.jobs.clear()
        toy.federation.engine.done.clear()
        toy.federation.step()
        done = toy.federation.engine.done
        assert set(toy.federation.server["model"]) == shared
        assert all(set(job.payload["model"]) == shared for job in toy.federation.engine.jobs)
        assert all(set(d.upload["model"]) == shared for d in done)
        assert all(set(d.state["model"]) == private for d in done)
        for name, value in toy.federation.server["model"].items():
            a, b, c = (d.upload["model"][name].double() for d in done)
            assert torch.allclose(value.double(), (6 * a + 4 * b + 5 * c) / 15, rtol=0, atol=1e-6)


def test_private_roles_of_a_client_are_touched_by_nobody_else():
    toy = world(PrivateNorms(), BN_LABELS, **IMAGES)
    private, shared = parts(toy)
    toy.federation.step()
    for client in range(3):
        alone = world(PrivateNorms(), BN_LABELS, **IMAGES)
        assert same_bits(alone.worker.run(alone.job(client)).state, toy.federation.states[client])
        job = toy.job(client, round_=2)
        start = toy.method.begin(job.payload, job.state, job.ctx).tree
        for name in private:
            assert torch.equal(start[name], toy.federation.states[client]["model"][name])
        for name in shared:
            assert torch.equal(start[name], toy.federation.server["model"][name])
        assert list(start) == list(toy.task.init)
    weights = [toy.federation.states[client]["model"]["norm1.running_mean"] for client in range(3)]
    assert not torch.allclose(weights[0], weights[1], atol=1e-5)
    assert not torch.allclose(weights[1], weights[2], atol=1e-5)


def test_private_roles_of_unsampled_clients_do_not_change():
    toy = world(PrivateNorms(), BN_LABELS, **IMAGES, participation=1 / 3)
    for _ in range(5):
        before = {client: to_bytes(state) for client, state in toy.federation.states.items()}
        (client,) = toy.federation.step().participants
        for other, state in before.items():
            if other != client:
                assert to_bytes(toy.federation.states[other]) == state


def test_counters_of_a_client_count_its_own_steps():
    toy = world(PrivateNorms(), BN_LABELS, **IMAGES, batch_size=2)
    for _ in range(3):
        toy.federation.step()
    for client, steps in enumerate((3, 2, 2)):  # 6, 4 and 5 samples in twos, without the batch of one
        counter = toy.federation.states[client]["model"]["norm1.num_batches_tracked"]
        assert counter.dtype == torch.int64
        assert int(counter) == 3 * steps


def test_private_roles_give_a_personal_predictor_and_no_global_one():
    toy = world(PrivateNorms(), BN_LABELS, **IMAGES, participation=1 / 3)
    (sampled,) = toy.federation.step().participants
    ctx = ServerContext(toy.task, 1)
    private, _ = parts(toy)
    assert toy.method.predictors(toy.federation.server, None, ctx) == {}
    for client in range(3):
        state = toy.federation.state_of(toy.federation.client_context(client, 1))
        (predictor,) = toy.method.predictors(toy.federation.server, state, ctx).values()
        assert list(predictor.tree) == list(toy.task.init)
        for name, value in predictor.tree.items():
            own = toy.federation.states[client]["model"] if client == sampled else toy.task.init
            assert torch.equal(value, own[name] if name in private else toy.federation.server["model"][name])


def test_private_norms_without_batch_norm_are_fedavg():
    toys = [world(method, LABELS, net=Tiny, optimizer=MOMENTUM) for method in (PrivateNorms(), configured("fedavg"))]
    for _ in range(3):
        for toy in toys:
            toy.federation.step()
        assert same_bits(*(toy.federation.server for toy in toys))
    assert list(toys[0].method.predictors(toys[0].federation.server, None, ServerContext(toys[0].task, 3))) == [
        "global"
    ]


def test_a_private_head():
    class PrivateHead(Method):
        spec = Spec(private=frozenset({Role.HEAD}))

    toy = world(PrivateHead(), LABELS, optimizer=MOMENTUM)
    for _ in range(2):
        toy.federation.step()
    assert set(toy.federation.server["model"]) == {"fc.weight", "fc.bias"}
    assert all(set(state["model"]) == {"head.weight", "head.bias"} for state in toy.federation.states.values())
