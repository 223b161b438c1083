"""FedDF against golden numbers of two rounds; what teaches whom, and with which data."""

import dataclasses

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.methods import METHODS
from fedloom.methods.feddf import model_of
from golden_world import GOLDEN, golden_run, matches, probe, refuted
from support import Tiny, TinyBN, after, configured, dataset, furthest, mixed, same_bits, same_tree, world

GOLD = GOLDEN["feddf"]
FEDDF = METHODS.get("feddf")
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
PLAIN = {"server_optimizer": "sgd", "cosine": False, "server_batch_size": None}


def test_golden_rounds():
    _, servers = golden_run(FEDDF, rounds=2, **GOLD["options"], **PLAIN)
    for number, server in enumerate(servers, 1):
        wanted = GOLD["out"][f"round{number}"]
        assert matches(server["model"], wanted["server"], tolerance=5e-9)
        assert abs(probe(server["model"]) - wanted["probe"]) < 5e-8
    assert refuted(servers[-1]["model"], GOLD)


def test_labels_at_the_server_are_never_read():
    public = dataset([0, 1, 2, 3, 0])
    other = dataclasses.replace(public, y=torch.full((5,), -7), classes=("unknown",))
    toys = [after(world(configured("feddf"), LABELS, public=data), 2) for data in (public, other)]
    assert same_bits(*(toy.federation.server for toy in toys))


def test_each_architecture_is_taught_by_all():
    torch.manual_seed(0)
    federation = mixed(configured("feddf", steps=20), [Tiny(), TinyBN()], LABELS, participation=0.5)
    federation.method.select = lambda server, count, ctx: [[0, 2], [1, 2], [0, 3]][ctx.round - 1]
    federation.step()
    assert model_of(1) not in federation.server  # nobody with the second net took part
    first = federation.job(1, 2)
    assert first.payload == {}
    assert same_tree(federation.method.begin(first.payload, {}, first.ctx).tree, federation.tasks[1].init)
    federation.step()
    own = federation.engine.done[-2]
    assert own.client == 1
    taught, sent = federation.server[model_of(1)], own.upload["model"]
    assert list(taught) == list(federation.tasks[1].init)
    assert 1e-4 < furthest(taught, sent) < 1.0  # the mean of one upload, moved towards both
    federation.step()
    assert same_tree(federation.engine.jobs[-1].payload["model"], taught)
    assert federation.method.predictors(federation.server, {}, federation.server_context(1)).keys() == {"personal"}


@pytest.mark.parametrize("wrapper", ["dw", "topk"])
def test_a_wrapper_takes_one_architecture(wrapper):
    after(world(METHODS.get(f"feddf+{wrapper}").configured("sound", {"steps": 3}), LABELS), 2)
    with pytest.raises(
        ConfigError, match=rf"feddf\+{wrapper}: a wrapper works on one architecture, the clients have 2"
    ):
        mixed(configured(f"feddf+{wrapper}"), [Tiny(), TinyBN()], LABELS)


def test_what_the_server_lacks_is_one_line():
    toy = world(configured("fedavg"), LABELS)
    with pytest.raises(
        ConfigError, match=r"feddf needs data at the server, and it has none: set scenario\.public"
    ) as said:
        type(toy.federation)(configured("feddf"), toy.federation.engine, [toy.task], toy.scenario, participation=1.0)
    assert "\n" not in str(said.value)
    nothing = Dataset(toy.data.x[:0], toy.data.y[:0], toy.data.classes)
    with pytest.raises(ConfigError, match="it has none"):
        world(configured("feddf"), LABELS, public=nothing)


def test_presets_have_the_published_number_of_steps():
    steps = {preset: configured("feddf", preset).options.steps for preset in ("paper", "authors", "sound")}
    assert steps == {"paper": 10_000, "authors": 10_000, "sound": 100}
    with pytest.raises(ConfigError, match=r"feddf\.server_lr = 0"):
        configured("feddf", server_lr=0)
