"""What hooks are told of training: the optimiser, the batch size, the round's learning rate, where a client began."""

import dataclasses

import pytest
import torch

from fedloom.core.streams import Streams
from fedloom.methods.contract.contexts import Start
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Objective, OptimizerSpec
from support import ENGINES, EVERY_ENGINE, Tiny, TinyBN, after, configured, furthest, same_on, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [3, 2, 1, 0, 0]]
DECAYING = [
    OptimizerSpec(lr=0.2, decay=0.5),
    OptimizerSpec(lr=0.2, momentum=0.9, weight_decay=0.01, decay=0.5),
    OptimizerSpec(name="adam", lr=0.02, decay=0.5),
]


# -- learning rates that decay -----------------------------------------------------------------------------------------
def torchs(spec, parameters, round_):
    lr = spec.lr * spec.decay ** (round_ - 1)
    if spec.name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=spec.momentum, weight_decay=spec.weight_decay)
    return torch.optim.Adam(parameters, lr=lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay)


@pytest.mark.parametrize("spec", DECAYING)
def test_rounds_of_one_client_are_those_of_torchs_optimiser_made_anew_at_a_lower_rate(spec):
    toy = after(world(Method(), LABELS[:1], optimizer=spec, epochs=2, rounds=4), 4)
    net = Tiny()
    net.load_state_dict(toy.task.init)
    x, y = toy.samples(0)
    for round_ in (1, 2, 3, 4):
        optimizer, order = torchs(spec, list(net.parameters()), round_), Streams(3).numpy("shuffle", round_, 0)
        for _ in range(2):
            for rows in torch.split(torch.from_numpy(order.permutation(7)), 4):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
                optimizer.step()
    ours = toy.federation.server["model"]
    assert furthest(ours, net.state_dict()) < 1e-6
    constant = dataclasses.replace(spec, decay=1.0)
    plain = after(world(Method(), LABELS[:1], optimizer=constant, epochs=2, rounds=4), 4)
    assert furthest(ours, plain.federation.server["model"]) > 1e-3


@pytest.mark.parametrize("spec", DECAYING)
def test_one_set_of_recordings_serves_all_rounds(spec):
    spec = dataclasses.replace(spec, decay=0.9)
    toy = world(configured("fedprox"), LABELS, optimizer=spec, net=TinyBN, rounds=11)
    toy.federation.round = 5  # past the rounds in which single steps are measured
    programs = [after(toy, 3, "replayed").worker.stepper.programs for _ in range(2)]
    assert programs[0] == programs[1] > 0


@pytest.mark.parametrize("engine", EVERY_ENGINE[1:])
@pytest.mark.parametrize("spec", DECAYING)
def test_every_engine_decays_alike(spec, engine):
    if engine != "stacked" or spec.name == "sgd":
        same_on(engine, configured("fedprox"), LABELS, 4, optimizer=spec)


# -- facts -------------------------------------------------------------------------------------------------------------
class Asking(Method):
    """Sends up what it was told, and keeps it."""

    def begin(self, payload, state, ctx):
        start = super().begin(payload, state, ctx)
        return Start(start.tree, {"pull": 0.1 * (1 + ctx.client)})

    def loss(self, net, batch, consts):
        ce = super().loss(net, batch, consts)
        return Objective.sum({"ce": ce, "pull": consts["pull"] * net.head.bias.square().sum()})

    def end(self, work, state, ctx):
        payload, _ = super().end(work, state, ctx)
        moved = {name: value - work.start.tree[name] for name, value in work.tree.items()}
        told = {
            "lr": ctx.lr,
            "rate": ctx.task.optimizer.lr,
            "batch": ctx.task.batch_size,
            "pull": work.start.consts["pull"],
            "steps": work.steps,
            **{f"term.{name}": value for name, value in work.terms.items()},
        }
        return payload | {"moved": moved, **told}, {"moved": moved, **told}


@pytest.mark.parametrize("engine", ENGINES)
def test_hooks_are_told_where_a_client_began_and_how_it_went(engine):
    spec = OptimizerSpec(lr=0.2, decay=0.5)
    toy = after(world(Asking(), LABELS, optimizer=spec, epochs=2, batch_size=3), 2, engine)
    before = after(world(Asking(), LABELS, optimizer=spec, epochs=2, batch_size=3), 1)
    received = before.federation.server["model"]
    for client, state in toy.federation.states.items():
        assert (state["lr"], state["rate"], state["batch"]) == (0.1, 0.2, 3)
        assert state["pull"] == pytest.approx(0.1 * (1 + client))
        assert state["steps"] == 2 * -(-len(LABELS[client]) // 3)
        assert furthest(state["moved"], {name: torch.zeros_like(v) for name, v in received.items()}) > 1e-3
    jobs = [before.job(client, round_=2) for client in range(3)]
    for client, job in enumerate(jobs):
        done = before.worker.run(job)
        ours = toy.federation.states[client]
        for name, value in done.upload["model"].items():
            assert torch.allclose(ours["moved"][name], value - received[name], rtol=0, atol=1e-5)
        assert done.terms.keys() == {"ce", "pull"}
        for name, value in done.terms.items():
            assert ours[f"term.{name}"] == pytest.approx(value, abs=1e-5)
