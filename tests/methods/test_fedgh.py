"""FedGH against golden numbers of two rounds; what moves the head, and what does not."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods import METHODS
from golden_world import GOLDEN, WORLD, golden_run, matches, personal, refuted
from support import configured, same_tree, world

GOLD = GOLDEN["fedgh"]
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
HEAD, BODY = ("head.weight", "head.bias"), ("fc.weight", "fc.bias")


class Kept(METHODS.get("fedgh")):
    """Keeps the head as a client left it."""

    def end(self, work, state, ctx):
        payload, own = super().end(work, state, ctx)
        return payload, own | {"trained": {name: work.tree[name] for name in HEAD}}


def test_golden_rounds():
    federation, servers = golden_run(Kept, rounds=2, **GOLD["options"])
    for number, server in enumerate(servers, 1):
        assert matches(server["model"], GOLD["out"][f"round{number}"]["server"], tolerance=2e-6)
        assert server["model"].keys() == set(HEAD)
    for client, own in GOLD["out"]["own"].items():
        state = federation.states[int(client)]
        assert matches(state["model"] | state["trained"], own, tolerance=2e-6)
        tested = personal(federation, int(client))
        assert same_tree({n: tested[n] for n in HEAD}, servers[-1]["model"])
        assert matches(tested, {name: own[name] for name in BODY}, tolerance=2e-6)
    assert refuted(servers[-1]["model"], GOLD, HEAD)


def test_without_server_epochs_the_head_stays():
    _, servers = golden_run(METHODS.get("fedgh"), rounds=2, server_epochs=0)
    assert matches(servers[-1]["model"], {name: WORLD["init"][name] for name in HEAD}, tolerance=0)


def test_refusals():
    toy = world(configured("fedgh"), LABELS)
    fields = {name: getattr(toy.task, name) for name in type(toy.task).__dataclass_fields__}
    narrow = toy.task.init | {"head.weight": torch.zeros(4, 3)}
    other = type(toy.task)(**{**fields, "init": narrow, "feature_dim": 3})
    with pytest.raises(ConfigError, match=r"fedgh shares the head: that of group 1 .* same feature width"):
        toy.method.examine([toy.task, other], 2)
    with pytest.raises(ConfigError, match=r"fedgh\.server_lr = 0"):
        configured("fedgh", server_lr=0)
