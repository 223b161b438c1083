"""FedKD against golden numbers of two rounds, with and without compression; ranks; the same bits on every engine."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.engine.processes import Processes
from fedloom.engine.stacked import Batched
from fedloom.methods import METHODS, Batch
from fedloom.methods.fedkd import factored, rank_for, restored
from golden_world import GOLDEN, WORLD, golden_run, matches, noting_uploads, personal, probe
from support import Recording, TinyBN, configured, near, same_bits, same_tree, world

GOLD = GOLDEN["fedkd"]
FEDKD = METHODS.get("fedkd")
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
MENTOR, MENTEE = ([f"{net}.{name}" for name in WORLD["init"]] for net in ("mentor", "mentee"))
ENERGY = GOLD["options"]


@pytest.mark.parametrize("way", ["full_rank", "compressed"])
def test_golden_rounds(way):
    options = ENERGY if way == "compressed" else {"compresses": "nothing"}
    kind, uploads = noting_uploads(FEDKD)
    federation, servers = golden_run(kind, rounds=2, **options)
    for number, server in enumerate(servers, 1):
        assert matches(server["model"], GOLD[way][f"round{number}"]["server"], prefix="mentee.")
    for client, wanted in GOLD[way]["own_probes"].items():
        own = federation.states[int(client)]["model"]
        assert abs(probe(own, [*MENTOR, "extra.weight"]) - wanted) < 1e-6
        assert matches(personal(federation, int(client)), {n: own[n].tolist() for n in MENTOR})
    if way == "compressed":
        ranks = GOLD[way]["ranks"]
        for number, server in enumerate(servers, 1):
            for entry in ("fc.weight", "head.weight"):
                assert len(server["factors"][f"mentee.{entry}:s"]) == ranks[f"round{number}/server/{entry}"]
                for client, upload in uploads[f"round{number}"].items():
                    rank = len(upload["model"][f"mentee.{entry}:s"])
                    assert rank == ranks[f"round{number}/{client}/{entry}"]
        assert abs(probe(servers[-1]["model"], MENTEE) - GOLD["denominator_with_gradient_probe"]) > 1e-6


def test_golden_of_compressed_weights():
    _, servers = golden_run(FEDKD, rounds=2, compresses="weights", **ENERGY)
    assert abs(probe(servers[-1]["model"], MENTEE) - GOLD["compressed_weights_probe"]) < 1e-7


def test_golden_ranks_by_energy():
    head = torch.linalg.svdvals(torch.tensor(WORLD["init"]["head.weight"], dtype=torch.float64))
    for energy, rank in GOLD["ranks_of_init_head_by_energy"].items():
        assert rank_for(head, float(energy)) == rank
    assert rank_for(torch.zeros(3), 0.9) == 1


def test_factors_give_the_tree_back():
    torch.manual_seed(0)
    tree = {
        "conv": torch.randn(4, 3, 2, 2),
        "bias": torch.randn(4),
        "wide": torch.randn(2, 9),
        "steps": torch.tensor(7),
    }
    parts = factored(tree, 1.0)
    assert parts["conv:v"].shape == (4, 3, 2, 2)
    assert parts["conv:u"].shape == (4, 4)
    back = restored(parts)
    assert list(back) == list(tree)
    assert all(torch.allclose(back[name], value, atol=1e-6) for name, value in tree.items())
    assert back["steps"].dtype == torch.int64
    turned = factored({"wide": -tree["wide"]}, 1.0)
    assert torch.equal(turned["wide:u"], parts["wide:u"])
    assert torch.equal(turned["wide:v"], -parts["wide:v"])


@pytest.mark.parametrize("way", ["updates", "weights"])
def test_at_full_rank_it_is_the_run_without_compression(way):
    plain, full = (
        world(configured("fedkd", **options), LABELS, net=TinyBN, epochs=2, participation=0.6, rounds=3)
        for options in ({"compresses": "nothing"}, {"compresses": way, "energy_first": 1.0, "energy_last": 1.0})
    )
    for _ in range(3):
        plain.federation.step()
        full.federation.step()
        assert near({"model": plain.federation.server["model"]}, {"model": full.federation.server["model"]}, 1e-5)


def test_a_client_that_missed_a_round_receives_the_mentee_whole():
    toy = world(configured("fedkd"), LABELS, net=TinyBN, participation=0.4, rounds=4, engine=Recording)
    last = set()
    for _ in range(4):
        toy.federation.engine.jobs.clear()
        server = toy.federation.server
        report = toy.federation.step()
        for job in toy.federation.engine.jobs:
            assert ("factors" in job.payload) is (job.ctx.client in last)
            start = toy.method.begin(job.payload, job.state, job.ctx).tree
            assert same_tree(toy.method._shared(start, toy.task), server["model"])
        last = set(report.participants)


@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_a_client_of_one_class_that_both_nets_are_certain_of_stays_finite(apart):
    """Where its nets are alike, as at the start, a term would be 0 / 0."""
    toy = world(configured("fedkd"), [[0, 0, 0, 0]])
    with torch.no_grad():
        for net in (toy.net["mentor"], toy.net["mentee"]):
            net.head.bias[0] = 1000.0
        toy.net["mentor"].fc.bias.add_(apart)
    objective = toy.method.loss(toy.net, Batch(toy.data.x, toy.data.y), {})
    assert objective.terms["ce_mentor"] == objective.terms["ce_mentee"] == 0
    objective.total.backward()
    assert objective.total.isfinite()
    assert all(value.grad.isfinite().all() for value in toy.net.parameters())


@pytest.mark.parametrize("engine", ["processes", "batched"])
def test_engines_agree(engine):
    toys = [world(configured("fedkd"), LABELS, net=TinyBN, epochs=2, rounds=3) for _ in range(2)]
    other = toys[1].federation
    if engine == "processes":
        other.engine = Processes(toys[1].worker, [toys[1].task], workers=2)
    else:
        other.engine = Batched(toys[1].worker, 8)
    for _ in range(3 if engine == "processes" else 2):
        toys[0].federation.step()
        other.step()
    other.engine.close()
    if engine == "processes":
        assert same_bits(toys[0].federation.server, other.server)
        assert all(same_bits(state, other.states[client]) for client, state in toys[0].federation.states.items())
    else:
        assert near({"model": toys[0].federation.server["model"]}, {"model": other.server["model"]}, 1e-5)


def test_mentor_and_mentee_may_have_different_architectures():
    toy = world(configured("fedkd", mentee="logistic"), LABELS, net="mlp", rounds=2)
    toy.federation.step()
    assert {name.partition(".")[0] for name in toy.federation.server["model"]} == {"mentee"}
    assert toy.task.init["extra.weight"].shape == (200, 5)


def test_refusals():
    one, other = (world(configured("fedkd"), LABELS, net=net) for net in ("mlp", "logistic"))
    with pytest.raises(ConfigError, match=r"fedkd\.mentee: the mentee of group 1 is not that of group 0"):
        one.method.examine([one.task, other.task], 2)
    with pytest.raises(ConfigError, match=r"fedkd\.energy_last = 1\.1"):
        configured("fedkd", energy_last=1.1)
