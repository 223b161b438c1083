"""FedAdagrad, FedAdam and FedYogi: golden numbers, one step by hand, buffers."""

import pytest
import torch

from fedloom.methods import METHODS
from golden_world import GOLDEN, golden_run, matches, probe, refuted, rounds_match
from support import configured, furthest

GOLD = GOLDEN["fedopt"]
NAMES = ("fedadagrad", "fedadam", "fedyogi")
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def options_of(name):
    known = METHODS.get(name).Options.model_fields
    return {k: v for k, v in GOLD["options"].items() if k in known} | ({"beta1": 0.0} if name == "fedadagrad" else {})


@pytest.mark.parametrize("name", NAMES)
def test_golden(name):
    _, servers = golden_run(METHODS.get(name), rounds=2, **options_of(name))
    wanted = GOLD[name.removeprefix("fed")]
    assert rounds_match(servers, wanted)
    assert matches(servers[1]["m"], wanted["final_m"])
    assert matches(servers[1]["v"], wanted["final_v"])
    if name != "fedadam":  # Yogi's rule in Adam's place is the fingerprint of Adam itself
        assert refuted(servers[1]["model"], GOLD)


def test_fedadam_is_none_of_the_known_mistakes():
    _, servers = golden_run(METHODS.get("fedadam"), rounds=2, **options_of("fedadam"))
    others = ("WRONG_adam_bias_corrected", "WRONG_sign", "adam_uniform_probe", "adam_v0_zero_probe")
    assert all(abs(probe(servers[1]["model"]) - GOLD[name]) > 1e-6 for name in others)


def test_v_may_start_at_zero():
    _, servers = golden_run(METHODS.get("fedadam"), rounds=2, v0=0.0, **options_of("fedadam"))
    assert abs(probe(servers[1]["model"]) - GOLD["adam_v0_zero_probe"]) < 1e-7


def test_bias_correction_is_that_of_keras():
    """torch's Adam on the same pseudo-gradients: without a tau to speak of, both have the same steps."""
    kind, options = METHODS.get("fedadam"), {"tau": 1e-12, "v0": 0.0, "server_lr": 0.1, "beta1": 0.9, "beta2": 0.999}
    _, servers = golden_run(kind, rounds=2, bias_correction=True, **options)
    weights = {name: value.clone() for name, value in golden_run(kind, rounds=1, lr=0.0)[1][0]["model"].items()}
    adam = torch.optim.Adam(list(weights.values()), lr=0.1, betas=(0.9, 0.999), eps=1e-12)
    last = {name: torch.zeros_like(value) for name, value in weights.items()}
    for server in servers:
        for name, value in weights.items():
            value.grad = -(server["m"][name] - 0.9 * last[name]) / 0.1  # the round's mean change, out of m
        adam.step()
        last = server["m"]
        assert furthest(weights, server["model"]) < 1e-6


def test_presets():
    assert configured("fedadagrad").options.beta1 == 0
    authors = configured("fedadam", "authors").options
    assert (authors.beta2, authors.v0, authors.bias_correction) == (0.999, 0.0, True)
    assert [configured(name, "authors").options.v0 for name in NAMES] == [0.0] * 3
    assert [configured(name, "paper").options.v0 for name in NAMES] == [None] * 3
