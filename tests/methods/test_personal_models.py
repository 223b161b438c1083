"""FedPer, LG-FedAvg, FedRep, FedBABU, Ditto, APFL, FedALA, Per-FedAvg and pFedMe against golden numbers; what stays."""

import pytest
import torch

from fedloom.methods import METHODS, OptimizerSpec
from fedloom.methods.contract.phases import Train
from golden_world import GOLDEN, WORLD, assert_golden, golden_run, matches, personal, probe, refuted, variant_probe
from support import TinyBN, TinyInstance, configured, same_bits, world

# -- personal_parts ----------------------------------------------------------------------------------------------------
LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0], [3, 3, 2, 0, 1], [2, 2]]
OPTIONS = {"fedper": {}, "lgfedavg": {}, "fedrep": GOLDEN["fedrep"]["options"]}


@pytest.mark.parametrize("name", OPTIONS)
def test_golden_rounds(name):
    golden = GOLDEN[name]
    for rounds in (1, 2):
        federation, servers = golden_run(METHODS.get(name), rounds=rounds, **OPTIONS[name])
        wanted = golden["out"][f"round{rounds}"]
        assert matches(servers[-1]["model"], wanted["server"])
        assert servers[-1]["model"].keys() == wanted["server"].keys()
        for client, value in wanted["personal_probes"].items():
            assert abs(probe(personal(federation, int(client))) - value) < 1e-7
    for client, own in golden["out"]["own"].items():
        assert matches(federation.states[int(client)]["model"], own)


def test_fedrep_weighs_clients_as_the_paper_does():
    found = variant_probe(METHODS.get("fedrep"), GOLDEN["fedrep"], weights="uniform", **OPTIONS["fedrep"])
    assert abs(found - GOLDEN["fedrep"]["uniform_probe"]) < 1e-7


def test_fedrep_trains_the_head_first():
    federation, servers = golden_run(METHODS.get("fedrep"), rounds=2, **OPTIONS["fedrep"])
    assert refuted(servers[-1]["model"], GOLDEN["fedrep"], ("fc.weight", "fc.bias"))
    assert federation.states.keys() == {0, 1, 2}


def test_fedrep_without_body_epochs_leaves_the_body():
    _, servers = golden_run(METHODS.get("fedrep"), rounds=1, head_epochs=2, body_epochs=0)
    assert matches(servers[0]["model"], {name: WORLD["init"][name] for name in ("fc.weight", "fc.bias")})


# -- personal_models ---------------------------------------------------------------------------------------------------
BODY = ("fc.weight", "fc.bias")
ENTRIES = tuple(WORLD["init"])


def adapted(federation, client):
    """The fingerprint of a client's personal model after it has adapted it."""
    worker, facts = federation.engine.worker, federation.client_context(client, federation.round)
    offered = federation.method.predictors(federation.server, {}, federation.server_context(client))["personal"]
    worker.adapt(worker.loaded_nets[0], offered, facts, federation.scenario.train.tensor(client))
    return probe(worker.loaded_nets[0].tree)


@pytest.mark.parametrize("tuned", ["all", "head"])
def test_fedbabu(tuned):
    golden = GOLDEN["fedbabu"]
    federation, servers = golden_run(METHODS.get("fedbabu"), rounds=2, tuned=tuned, tuning_epochs=1)
    head = {name: torch.tensor(WORLD["init"][name], dtype=torch.float64) for name in ("head.weight", "head.bias")}
    for server, wanted in zip(servers, ("round1", "round2"), strict=True):
        assert matches(server["model"] | head, golden["out"][wanted]["server"])
        assert server["model"].keys() == set(BODY)
    assert refuted(servers[1]["model"] | head, golden)
    for client, wanted in golden["finetuned_probes"].items():
        assert abs(adapted(federation, int(client)) - wanted[tuned]) < 1e-7


def test_fedbabu_keeps_the_head_to_the_bit_under_weight_decay():
    optimizer = OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=0.1)
    toy = world(configured("fedbabu"), LABELS, net=TinyBN, optimizer=optimizer, epochs=2)
    toy.federation.step()
    offered = toy.method.predictors(toy.federation.server, None, toy.federation.server_context())["global"]
    head = [name for name in toy.task.init if name.startswith("head.")]
    assert head
    assert all(torch.equal(offered.tree[name], toy.task.init[name]) for name in head)
    assert not toy.federation.states


def test_ditto():
    gold = GOLDEN["ditto"]
    federation, _ = assert_golden(METHODS.get("ditto"), gold, prefix="shared.", **gold["options"])
    for client, own in gold["own"].items():
        state = federation.states[int(client)]["model"]
        assert matches(state, own, prefix="own.")
        assert (
            abs(probe(state, [f"own.{name}" for name in ENTRIES]) - gold["WRONG_anchor_after_training"][client]) > 1e-6
        )


@pytest.mark.parametrize("which", ["fixed", "adaptive"])
def test_apfl(which):
    gold = GOLDEN["apfl"]
    options = gold["options"] if which == "adaptive" else gold["options"] | {"alpha_lr": 0.0}
    federation, _ = assert_golden(METHODS.get("apfl"), gold, which, prefix="shared.", own="own.", **options)
    for client, alpha in gold[which]["alpha"].items():
        assert abs(float(federation.states[int(client)]["model"]["extra.alpha"]) - alpha) < 1e-7


def test_fedala():
    golden = GOLDEN["fedala"]
    run = {"share": 1.0, "first": 1, **golden["options"]}
    federation, servers = assert_golden(METHODS.get("fedala"), golden, **run)
    for client, value in golden["out"]["personal_probes"].items():
        assert abs(probe(personal(federation, int(client))) - value) < 1e-7
    for number in range(1, len(servers) + 1):
        after_it, _ = golden_run(METHODS.get("fedala"), number, **run)
        for client, mix in golden["out"][f"round{number}"]["mix"].items():
            weights = after_it.states[int(client)]["model"]
            assert matches(weights, {f"extra.{name.replace('.', '_')}": value for name, value in mix.items()})


def test_fedala_has_nothing_to_mix_in_a_clients_first_round():
    ala, plain = (world(configured(name), LABELS, net=TinyBN, rounds=1) for name in ("fedala", "fedavg"))
    ala.federation.step()
    plain.federation.step()
    assert same_bits(ala.federation.server, plain.federation.server)


def test_fedalas_first_mixing_takes_many_passes_and_later_ones_a_single_one():
    toy = world(configured("fedala", share=1.0, first=7), LABELS, net=TinyBN, rounds=4)
    method, federation = toy.method, toy.federation
    passes = []
    for round_ in range(1, 5):
        job = federation.job(0, round_)
        phases = method.phases(method.begin(job.payload, job.state, job.ctx), job.ctx)
        passes.append([phase.epochs for phase in phases[:-1] if isinstance(phase, Train)])
        federation.step()
    assert passes == [[], [7], [1], [1]]


def test_fedalas_mixing_ends_when_its_losses_settle():
    toy = world(configured("fedala", share=1.0, first=200, eta=1e-9), LABELS, net=TinyBN, rounds=2)
    toy.federation.step()
    training = toy.federation.step().steps
    batches = sum(-(-len(labels) // 4) for labels in LABELS)
    assert training < 2 * batches * 20  # a rate that moves nothing settles after a few passes, not after 200


class PerFedAvg(METHODS.get("perfedavg")):
    """With batches in the order in which samples are stored, as the golden world splits them."""

    def loss(self, net, batch, consts):
        stored = torch.cat([torch.tensor(x, dtype=torch.float64) for x in WORLD["x"]])
        places = ((batch.x[:, None].double() - stored).abs() < 1e-4).all(2).int().argmax(1).argsort()
        return super().loss(net, batch._replace(x=batch.x[places], y=batch.y[places]), consts)


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_perfedavg(variant):
    golden = GOLDEN["perfedavg"]
    federation, servers = golden_run(PerFedAvg, rounds=2, variant=variant, **golden["options"])
    for number, server in enumerate(servers, 1):
        assert matches(server["model"], golden[variant][f"round{number}"]["server"])
    for client, value in golden[variant]["adapted"].items():
        assert abs(adapted(federation, int(client)) - value) < 1e-7
        assert abs(value - golden["exact"]["adapted"][client]) > 1e-6  # neither is the exact meta-gradient
    assert refuted(servers[1]["model"], golden)


PFEDME = dict(GOLDEN["pfedme"]["options"])


def test_pfedme():
    golden = GOLDEN["pfedme"]
    _, servers = assert_golden(METHODS.get("pfedme"), golden, prefix="shared.", own="own.", **PFEDME)
    shared = probe(servers[-1]["model"], [f"shared.{name}" for name in ENTRIES])
    assert abs(shared - golden["restarted_each_batch_probe"]) > 1e-6


def test_pfedme_as_its_authors_run_it():
    run = PFEDME | {"weights": "samples", "decay": 1e-3}
    found = variant_probe(METHODS.get("pfedme"), GOLDEN["pfedme"], prefix="shared.", **run)
    assert abs(found - GOLDEN["pfedme"]["authors_probe"]) < 1e-7


@pytest.mark.parametrize("net", [TinyBN, TinyInstance])
def test_pfedme_gives_the_shared_net_the_statistics_of_the_own_one(net):
    toy = world(configured("pfedme"), LABELS, net=net)
    toy.federation.step()
    assert toy.federation.server["model"]["shared.norm.running_mean"].all()
