"""FedProto against golden numbers of three rounds; both predictors; what it shares with FedAvg and local training."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.records import get_table
from fedloom.methods import METHODS, ClassTable
from fedloom.methods.parts.prototypes import UNKNOWN, nearest
from golden_world import GOLDEN, SIZES, golden_run, matches, probe, refuted
from support import CLASSES, Recording, Tiny, configured, same_bits, world

GOLD = GOLDEN["fedproto"]
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
FEDPROTO = METHODS.get("fedproto")


def rows(server):
    return {"": get_table(server, "prototypes").values}


def test_golden_rounds():
    federation, servers = golden_run(FEDPROTO, **GOLD["options"])
    for number, server in enumerate(servers, 1):
        wanted = GOLD["out"][f"round{number}"]
        assert matches(rows(server), {"": wanted["rows"]}, tolerance=2e-6)
        assert get_table(server, "prototypes").held.tolist() == wanted["held"]
    for client, own in GOLD["out"]["own"].items():
        assert matches(federation.states[int(client)]["model"], own, tolerance=2e-6)
    assert refuted(rows(servers[-1]), GOLD, [""])
    assert abs(probe(rows(servers[-1]), [""]) - GOLD["drop_absent_probe"]) > 1e-3


def test_golden_nearest_prototype():
    federation, _ = golden_run(FEDPROTO, **GOLD["options"])
    x = federation.scenario.train_set.x
    for client, wanted in enumerate(GOLD["out"]["nearest"]):
        facts = federation.client_context(client, 3)
        offered = federation.method.predictors(
            federation.server, federation.state_of(facts), federation.server_context()
        )
        net = federation.engine.worker.loaded_nets[0].net
        net.load_state_dict(offered["nearest"].tree)
        said = offered["nearest"].logits(net, x[SIZES[client] : SIZES[client + 1]]).argmax(1)
        assert said.tolist() == wanted


def test_golden_of_uniform_weights():
    _, servers = golden_run(FEDPROTO, weights="uniform", **GOLD["options"])
    assert abs(probe(rows(servers[-1]), [""]) - GOLD["uniform_probe"]) < 2e-6


def test_average_model_offers_a_global_predictor():
    for average, kinds in ((True, {"global", "nearest"}), (False, set())):
        toy = world(configured("fedproto", average_model=average), LABELS)
        assert toy.method.predictors(toy.federation.server, None, toy.federation.server_context()).keys() == kinds
        assert toy.method.spec.architectures == ("one" if average else "any")
        assert ("model" in toy.method.spec.sends) is average


def test_as_the_authors_test_a_client_chooses_among_its_own_classes():
    toy = world(configured("fedproto", "authors"), LABELS, engine=Recording)
    toy.federation.step()
    assert "class_counts" not in toy.federation.engine.done[0].upload
    for client, labels in enumerate(LABELS):
        state = toy.federation.state_of(toy.federation.client_context(client, 1))
        offered = toy.method.predictors(toy.federation.server, state, toy.federation.server_context(client))
        scores = offered["nearest"].logits(toy.net, toy.data.x)
        assert set(scores.argmax(1).tolist()) <= set(labels)
        assert bool((scores[:, [c for c in range(CLASSES) if c not in labels]] == UNKNOWN).all())


def test_prototypes_of_the_last_epoch_are_taken_while_the_weights_move():
    later, during = (
        world(configured("fedproto", prototypes_from=way), LABELS, epochs=2) for way in ("after_training", "last_epoch")
    )
    for toy in (later, during):
        toy.federation.step()
    assert same_bits(later.federation.states[0], during.federation.states[0])
    assert not torch.equal(*(get_table(t.federation.server, "prototypes").values for t in (later, during)))


def test_classes_without_a_prototype_score_below_all_others():
    net = Tiny()
    x = torch.tensor([[1.0, -1, 0.5, 2, 0], [-2, 1, 1, 0, 0.3], [0, 3, -1, 0.5, 1]])
    z = net.features(x).detach()
    table = ClassTable(torch.stack([z[0], z[1] + 9, z[2], z[0]]), torch.tensor([True, True, True, False]))
    assert nearest(net, x, table).argmax(1)[[0, 2]].tolist() == [0, 2]
    assert nearest(net, x, table)[:, 3].tolist() == [UNKNOWN] * 3


def test_refusals():
    with pytest.raises(ConfigError, match=r"fedproto\.weight = -1"):
        configured("fedproto", weight=-1)
    toy = world(configured("fedproto"), LABELS)
    fields = {name: getattr(toy.task, name) for name in type(toy.task).__dataclass_fields__}
    wide = type(toy.task)(**{**fields, "feature_dim": 9})
    with pytest.raises(ConfigError, match=r"features: those of group 1 have 9 entries, those of group 0 \d+; choose"):
        toy.method.examine([toy.task, wide], 2)
