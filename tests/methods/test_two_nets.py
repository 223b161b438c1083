"""FML, FedKD and FedMRL: golden numbers of two nets, what teaches what, ranks, refusals."""

import functools

import pytest
import torch
from torch import nn

import golden_world
from fedloom.core.errors import ConfigError
from fedloom.engine.processes import Processes
from fedloom.engine.stacked import Batched
from fedloom.methods import METHODS, Batch, Start
from fedloom.methods.fedkd import factored, rank_for, restored
from fedloom.methods.fedmrl import own_logits
from fedloom.nets.blueprint import prepare_net
from golden_world import (
    WORLD,
    GoldenNet,
    assert_golden,
    golden_entries,
    golden_run,
    matches,
    noting_uploads,
    personal,
    probe,
    variant_probe,
)
from support import Recording, Tiny, TinyBN, configured, near, same_bits, same_tree, world

GOLD = golden_entries("fml fedkd fedmrl")


# -- fml ---------------------------------------------------------------------------------------------------------------
LABELS_FML = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
MEME, OWN_FML = ([f"{net}.{name}" for name in WORLD["init"]] for net in ("meme", "own"))
FML = {("epochs" if name == "steps" else name): value for name, value in GOLD["fml"]["options"].items() if name != "lr"}


def test_golden_rounds_of_fml():
    federation, servers = assert_golden(METHODS.get("fml"), GOLD["fml"], prefix="meme.", own="own.", **FML)
    assert servers[-1]["model"].keys() == set(MEME)
    for client, wanted in GOLD["fml"]["out"]["own_probes"].items():
        assert abs(probe(personal(federation, int(client)), OWN_FML) - wanted) < 1e-7


def test_golden_of_uniform_weights():
    found = variant_probe(METHODS.get("fml"), GOLD["fml"], prefix="meme.", weights="uniform", **FML)
    assert abs(found - GOLD["fml"]["uniform_probe"]) < 1e-7


@pytest.mark.parametrize("taught", ["own", "meme"])
def test_no_gradient_reaches_the_teacher(taught):
    toy = world(configured("fml", alpha=0.3), LABELS_FML)
    with torch.no_grad():  # the nets begin alike, and then agree
        toy.net["own"].head.weight.add_(1.0)
    terms = toy.method.loss(toy.net, Batch(toy.data.x, toy.data.y), {}).terms
    (terms[f"ce_{taught}"] + terms[f"kl_{taught}"]).backward()
    for name, value in toy.net.named_parameters():
        assert (value.grad is not None) is name.startswith(taught)


def test_predictors():
    toy = world(configured("fml"), LABELS_FML)
    toy.federation.step()
    context = toy.federation.server_context()
    toy.net.load_state_dict(toy.method.predictors(toy.federation.server, None, context)["global"].tree)
    offered = toy.method.predictors(toy.federation.server, toy.federation.states[0], context)
    assert offered.keys() == {"personal", "meme"}
    toy.net.load_state_dict(offered["personal"].tree)
    said = {kind: one.logits(toy.net, toy.data.x) for kind, one in offered.items()}
    assert torch.equal(said["personal"], toy.net["own"](toy.data.x))
    assert torch.equal(said["meme"], toy.net["meme"](toy.data.x))


def test_a_meme_of_another_model_and_refusals():
    toy = world(configured("fml", meme="logistic"), LABELS_FML, net="mlp", rounds=1)
    toy.federation.step()
    assert len(toy.federation.server["model"]) < len(toy.federation.states[0]["model"])
    one, other = (world(configured("fml"), LABELS_FML, net=net) for net in ("mlp", "logistic"))
    with pytest.raises(ConfigError, match=r"fml\.meme: the meme of group 1 is not that of group 0"):
        one.method.examine([one.task, other.task], 2)


# -- fedkd -------------------------------------------------------------------------------------------------------------
FEDKD = METHODS.get("fedkd")
LABELS_FEDKD = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
MENTOR, MENTEE = ([f"{net}.{name}" for name in WORLD["init"]] for net in ("mentor", "mentee"))
ENERGY = GOLD["fedkd"]["options"]


@pytest.mark.parametrize("way", ["full_rank", "compressed"])
def test_golden_rounds_of_fedkd(way):
    options = ENERGY if way == "compressed" else {"compresses": "nothing"}
    kind, uploads = noting_uploads(FEDKD)
    federation, servers = assert_golden(kind, GOLD["fedkd"], way, prefix="mentee.", **options)
    for client, wanted in GOLD["fedkd"][way]["own_probes"].items():
        own = federation.states[int(client)]["model"]
        assert abs(probe(own, [*MENTOR, "extra.weight"]) - wanted) < 1e-6
        assert matches(personal(federation, int(client)), {n: own[n].tolist() for n in MENTOR})
    if way == "compressed":
        for place, wanted in GOLD["fedkd"][way]["ranks"].items():
            number, sender, entry = place.split("/")
            server = servers[int(number.removeprefix("round")) - 1]
            factors = server["factors"] if sender == "server" else uploads[number][sender]["model"]
            assert len(factors[f"mentee.{entry}:s"]) == wanted
        assert abs(probe(servers[-1]["model"], MENTEE) - GOLD["fedkd"]["denominator_with_gradient_probe"]) > 1e-6


def test_golden_of_compressed_weights():
    _, servers = golden_run(FEDKD, rounds=2, compresses="weights", **ENERGY)
    assert abs(probe(servers[-1]["model"], MENTEE) - GOLD["fedkd"]["compressed_weights_probe"]) < 1e-7


def test_golden_ranks_by_energy():
    head = torch.linalg.svdvals(torch.tensor(WORLD["init"]["head.weight"], dtype=torch.float64))
    for energy, rank in GOLD["fedkd"]["ranks_of_init_head_by_energy"].items():
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
        world(configured("fedkd", **options), LABELS_FEDKD, net=TinyBN, epochs=2, participation=0.6, rounds=3)
        for options in ({"compresses": "nothing"}, {"compresses": way, "energy_first": 1.0, "energy_last": 1.0})
    )
    for _ in range(3):
        plain.federation.step()
        full.federation.step()
        assert near({"model": plain.federation.server["model"]}, {"model": full.federation.server["model"]}, 1e-5)


def test_a_client_that_missed_a_round_receives_the_mentee_whole():
    toy = world(configured("fedkd"), LABELS_FEDKD, net=TinyBN, participation=0.4, rounds=4, engine=Recording)
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
    toys = [world(configured("fedkd"), LABELS_FEDKD, net=TinyBN, epochs=2, rounds=3) for _ in range(2)]
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
    toy = world(configured("fedkd", mentee="logistic"), LABELS_FEDKD, net="mlp", rounds=2)
    toy.federation.step()
    assert {name.partition(".")[0] for name in toy.federation.server["model"]} == {"mentee"}
    assert toy.task.init["extra.weight"].shape == (200, 5)


def test_refusals():
    one, other = (world(configured("fedkd"), LABELS_FEDKD, net=net) for net in ("mlp", "logistic"))
    with pytest.raises(ConfigError, match=r"fedkd\.mentee: the mentee of group 1 is not that of group 0"):
        one.method.examine([one.task, other.task], 2)


# -- fedmrl ------------------------------------------------------------------------------------------------------------
WIDTH = GOLD["fedmrl"]["options"]["small_width"]
FEDMRL = METHODS.get("fedmrl")
LABELS_FEDMRL = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3]]
OWN_FEDMRL = [f"own.{name}" for name in WORLD["init"]]


def given(module, values):
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(torch.tensor(values[name], dtype=torch.float64))
    return module


class SmallNet(GoldenNet):
    """The golden world's small net, of fewer features."""

    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Linear(3, WIDTH).double(), nn.Linear(WIDTH, 4).double()
        given(self, GOLD["fedmrl"]["first_small"])


class Golden(FEDMRL):
    def extra(self, net):
        return given(super().extra(net), GOLD["fedmrl"]["first_map"])


@pytest.fixture
def small_net(monkeypatch):
    build = functools.partial(prepare_net, build_model=lambda name: SmallNet())
    monkeypatch.setattr(golden_world, "prepare_net", build)


@pytest.mark.parametrize("way", ["out", "tied_heads"])
def test_golden_rounds_of_fedmrl(small_net, way):
    gold, run = GOLD["fedmrl"], {"small": "few features", "tied_heads": way == "tied_heads"}
    federation, _ = assert_golden(Golden, gold, way, prefix="small.", own=None, **run)
    for client, wanted in gold[way]["own"].items():
        own = federation.states[int(client)]["model"]
        for letter, prefix in (("o", "own."), ("p", "extra.")):
            parts = {name[2:]: value for name, value in wanted.items() if name[0] == letter}
            assert matches(own, parts, prefix=prefix)
        assert abs(probe(own, [*OWN_FEDMRL, "extra.weight", "extra.bias"]) - gold[way]["own_probes"][client]) < 1e-6
        tested = federation.engine.worker.net_of_client(int(client))
        tested.load(personal(federation, int(client)))
        logits = own_logits(tested.net.eval(), torch.tensor(WORLD["public"], dtype=torch.float64))
        assert matches({"": logits}, {"": gold[way]["logits_on_public"][client]})


def test_golden_uniform_mean(small_net):
    run = {"small": "few features", "weights": "uniform"}
    found = variant_probe(Golden, GOLD["fedmrl"], prefix="small.", **run)
    assert abs(found - GOLD["fedmrl"]["uniform_probe"]) < 1e-7


def test_the_small_loss_does_not_reach_the_own_head():
    toy = world(configured("fedmrl"), LABELS_FEDMRL, net=Tiny)
    terms = toy.method.loss(toy.net, Batch(toy.data.x, toy.data.y), {}).terms
    terms["ce_small"].backward()
    moved = {name for name, value in toy.net.named_parameters() if value.grad is not None and value.grad.any()}
    assert {"small.head.weight", "own.fc.weight", "small.fc.weight", "extra.weight"} <= moved
    assert not any(name.startswith("own.head") for name in moved)


def test_each_net_is_clipped_alone():
    toy = world(configured("fedmrl", clip=0.5), LABELS_FEDMRL, net=Tiny)
    gradients = {name: torch.full_like(value, 3.0) for name, value in toy.net.named_parameters()}
    (phase,) = toy.method.phases(Start(toy.task.init, {}), toy.job(0).ctx)
    clipped = phase.grad_map(gradients, {}, {})
    for part in ("own", "small", "extra"):
        norm = torch.cat([value.flatten() for name, value in clipped.items() if name.startswith(part)]).norm()
        assert float(norm) == pytest.approx(0.5)


def test_refusals_and_findings():
    shape = (1, 2, 2)
    with pytest.raises(ConfigError, match=r"fedmrl\.small: its features have 200 entries, those of group 0 4"):
        world(configured("fedmrl", small="mlp"), LABELS_FEDMRL, net="logistic", shape=shape)
    nested, alike = (
        world(configured("fedmrl", small=s), LABELS_FEDMRL, net="mlp", shape=shape) for s in ("logistic", "mlp")
    )
    assert nested.method.examine([nested.task], 2) == []
    assert [found.code for found in alike.method.examine([alike.task], 2)] == ["fedmrl.not_nested"]
    with pytest.raises(ConfigError, match=r"fedmrl\.small: the small of group 1 is not that of group 0"):
        nested.method.examine([nested.task, alike.task], 2)
