"""FedPer, LG-FedAvg and FedRep: which part stays with the client, against golden numbers."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods import METHODS
from golden_world import GOLDEN, WORLD, golden_run, matches, personal, probe, refuted
from support import CLASSES, world

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


def test_fedrep_as_the_paper_weighs_clients():
    _, servers = golden_run(METHODS.get("fedrep"), rounds=2, weights="uniform", **OPTIONS["fedrep"])
    golden = GOLDEN["fedrep"]
    assert abs(probe(servers[-1]["model"], ("fc.weight", "fc.bias")) - golden["uniform_probe"]) < 1e-7


def test_fedrep_trains_the_head_first():
    federation, servers = golden_run(METHODS.get("fedrep"), rounds=2, **OPTIONS["fedrep"])
    assert refuted(servers[-1]["model"], GOLDEN["fedrep"], ("fc.weight", "fc.bias"))
    assert federation.states.keys() == {0, 1, 2}


def test_lgfedavg_refuses_heads_of_other_shapes():
    method = METHODS.get("lgfedavg").configured("sound", {})
    toy = world(method, LABELS)
    narrow = toy.task.init | {"head.weight": torch.zeros(CLASSES, 3)}
    with pytest.raises(ConfigError, match=r"lgfedavg shares the head: that of group 1 .* same feature width"):
        method.examine([toy.task, type(toy.task)(**{**_fields(toy.task), "init": narrow})], 2)


def _fields(task):
    return {name: getattr(task, name) for name in type(task).__dataclass_fields__}


def test_fedrep_without_body_epochs_leaves_the_body():
    _, servers = golden_run(METHODS.get("fedrep"), rounds=1, head_epochs=2, body_epochs=0)
    assert matches(servers[0]["model"], {name: WORLD["init"][name] for name in ("fc.weight", "fc.bias")})
