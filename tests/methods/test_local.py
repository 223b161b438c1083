"""Local training, and methods that keep some roles private."""

import pytest

from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.phases import OptimizerSpec
from support import Recording, Tiny, TinyBN, configured, furthest, same_bits, same_tree, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0], [3, 3, 2, 0, 1]]
MOMENTUM = OptimizerSpec(lr=0.1, momentum=0.9)


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
