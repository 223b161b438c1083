"""FedDBE against golden numbers of two rounds after its opening; its private vector and its running mean."""

import torch

from fedloom.core.records import get_tensor, get_tree
from fedloom.methods import METHODS, OptimizerSpec
from fedloom.methods.feddbe import BIAS
from golden_world import SHARED_BASELINES, WORLD, golden_run, matches, mistakes, probe, refuted
from support import TinyBN, after, configured, same_bits, same_tree, world

GOLD = SHARED_BASELINES["feddbe"]
FEDDBE = METHODS.get("feddbe")
LABELS = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3]]


def both(federation, clients):
    """The fingerprint of the server's model and that of the vectors of some clients."""
    biases = torch.cat([get_tensor(federation.states[client], "bias") for client in clients])
    return probe(get_tree(federation.server, "model")) + probe({"": biases}, [""])


def test_golden_rounds():
    for rounds, drawn in enumerate(WORLD["rounds"][:2], 1):
        federation, servers = golden_run(FEDDBE, rounds, **GOLD["options"])
        wanted = GOLD["out"][f"round{rounds}"]
        assert matches(servers[-1]["model"], wanted["server"])
        assert matches({"": servers[-1]["goal"]}, {"": GOLD["out"]["goal"]})
        for client, bias in wanted["bias"].items():
            assert matches({"": get_tensor(federation.states[int(client)], "bias")}, {"": bias})
        assert [*wanted["bias"]] == [str(client) for client in drawn]
        assert abs(both(federation, drawn) - wanted["probe"]) < 1e-6
    assert all(abs(both(federation, drawn) - value) > 1e-5 for value in mistakes(GOLD))
    assert refuted(servers[-1]["model"], GOLD)


def test_golden_without_the_consensus():
    federation, _ = golden_run(FEDDBE, 2, **GOLD["options"] | {"kappa": 0.0})
    assert abs(both(federation, WORLD["rounds"][1]) - GOLD["kappa_0_probe"]) < 1e-6
    assert "goal" not in federation.server


def test_without_consensus_and_with_a_still_vector_it_is_fedavg():
    ours, theirs = (
        after(world(configured(name, **options), LABELS, net=TinyBN, participation=0.7), 3)
        for name, options in (("feddbe", {"kappa": 0.0, "bias": False}), ("fedavg", {}))
    )
    assert same_bits(ours.federation.server, theirs.federation.server)
    assert not any(get_tensor(state, "bias").any() for state in ours.federation.states.values())
    assert [found.code for found in ours.federation.initial_diagnostics] == ["feddbe.no_consensus"]


def test_weight_decay_leaves_the_vector_alone_and_nothing_private_travels():
    decayed = OptimizerSpec(lr=0.1, weight_decay=0.5)
    toy = after(world(configured("feddbe", bias=False), LABELS, optimizer=decayed), 1)
    state = {"bias": torch.ones(6)}
    done = toy.worker.run(toy.job(0, round_=2, state=state))
    assert same_tree(done.state, state)
    assert not any(name.startswith("extra") for name in done.upload["model"])


def test_the_model_for_all_has_the_first_vector_and_a_personal_one_its_own():
    toy = after(world(configured("feddbe"), LABELS, net=TinyBN), 2)
    server, method, context = toy.federation.server, toy.method, toy.federation.server_context()
    state = {"bias": torch.full_like(toy.task.init[BIAS], 0.5)}
    (model,) = method.predictors(server, None, context).items()
    (own,) = method.predictors(server, state, context).items()
    assert (model[0], own[0]) == ("global", "personal")
    assert torch.equal(model[1].tree[BIAS], toy.task.init[BIAS])
    assert torch.equal(own[1].tree[BIAS], state["bias"])


def test_a_client_that_missed_the_opening_trains_without_the_pull():
    toy = world(configured("feddbe"), LABELS)
    assert set(toy.worker.run(toy.job(0)).terms) == {"ce"}
    toy.federation.step()
    assert set(toy.worker.run(toy.job(0)).terms) == {"ce", "consensus"}
