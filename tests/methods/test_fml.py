"""FML against golden numbers of two rounds; no gradient reaches a teacher."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods import METHODS, Batch
from golden_world import GOLDEN, WORLD, golden_run, matches, personal, probe, refuted
from support import TinyBN, configured, same_bits, world

GOLD = GOLDEN["fml"]
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
MEME, OWN = ([f"{net}.{name}" for name in WORLD["init"]] for net in ("meme", "own"))
OPTIONS = {"alpha": GOLD["options"]["alpha"], "beta": GOLD["options"]["beta"]}


def test_golden_rounds():
    federation, servers = golden_run(METHODS.get("fml"), rounds=2, epochs=GOLD["options"]["steps"], **OPTIONS)
    for number, server in enumerate(servers, 1):
        assert matches(server["model"], GOLD["out"][f"round{number}"]["server"], prefix="meme.")
        assert server["model"].keys() == set(MEME)
    for client, own in GOLD["out"]["own"].items():
        assert matches(federation.states[int(client)]["model"], own, prefix="own.")
        assert abs(probe(personal(federation, int(client)), OWN) - GOLD["out"]["own_probes"][client]) < 1e-7
    assert refuted(servers[-1]["model"], GOLD, MEME)


def test_golden_of_uniform_weights():
    _, servers = golden_run(METHODS.get("fml"), rounds=2, epochs=GOLD["options"]["steps"], weights="uniform", **OPTIONS)
    assert abs(probe(servers[-1]["model"], MEME) - GOLD["uniform_probe"]) < 1e-7


@pytest.mark.parametrize("taught", ["own", "meme"])
def test_no_gradient_reaches_the_teacher(taught):
    toy = world(configured("fml", alpha=0.3), LABELS)
    with torch.no_grad():  # the nets begin alike, and then agree
        toy.net["own"].head.weight.add_(1.0)
    terms = toy.method.loss(toy.net, Batch(toy.data.x, toy.data.y), {}).terms
    (terms[f"ce_{taught}"] + terms[f"kl_{taught}"]).backward()
    for name, value in toy.net.named_parameters():
        assert (value.grad is not None) is name.startswith(taught)


def test_without_distillation_memes_are_fedavg_and_own_nets_local():
    fml, fedavg, local = (
        world(configured(name, **options), LABELS, net=TinyBN)
        for name, options in (("fml", {"alpha": 1, "beta": 1}), ("fedavg", {}), ("local", {}))
    )
    for _ in range(2):
        for toy in (fml, fedavg, local):
            toy.federation.step()
    for name, value in fedavg.federation.server["model"].items():
        assert torch.equal(fml.federation.server["model"][f"meme.{name}"], value)
    for client, state in local.federation.states.items():
        mine = fml.federation.states[client]["model"]
        assert same_bits({"model": {f"own.{n}": v for n, v in state["model"].items()}}, {"model": mine})


def test_predictors():
    toy = world(configured("fml"), LABELS)
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
    toy = world(configured("fml", meme="logistic"), LABELS, net="mlp", rounds=1)
    toy.federation.step()
    assert len(toy.federation.server["model"]) < len(toy.federation.states[0]["model"])
    one, other = (world(configured("fml"), LABELS, net=net) for net in ("mlp", "logistic"))
    with pytest.raises(ConfigError, match=r"fml\.meme: the meme of group 1 is not that of group 0"):
        one.method.examine([one.task, other.task], 2)
    with pytest.raises(ConfigError, match=r"fml\.alpha = 1\.5"):
        configured("fml", alpha=1.5)
