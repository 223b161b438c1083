"""Every method on every kind of data and net that it claims to take: one short run each; what it refuses, it names."""

import math

import numpy as np
import pytest
from torch import nn

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.data import from_arrays
from fedloom.methods import METHODS
from fedloom.methods.catalogue import entry
from support import sampled

QUICK = {"rounds": 2, "local_epochs": 1, "batch_size": 16, "participation": 0.6, "engine": "serial", "seed": 1}
N, CLASSES, CLIENTS = 96, 4, 4
EVERY = list(METHODS.names())
# Methods that yield both models are tested with the server's on some kinds, with the clients' on others.
PROTOCOL = {
    "label skew": lambda yields: f"{min(yields)}/global",
    "long tail": lambda yields: f"{max(yields)}/global",
    "domains": lambda yields: f"{min(yields)}/local",
    "rows": lambda yields: f"{max(yields)}/local",
    "text": lambda yields: f"{min(yields)}/global",
}
OWN_KEYS = {"scaffold": {"optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.0}}}


class Words(nn.Module):
    """Token ids [B, L] -> the mean of their embeddings [B, 8] -> logits [B, C]."""

    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.head = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.head(self.words(x).mean(1))


def images(channels=1):
    labels = np.arange(N) % CLASSES
    x = np.random.default_rng(0).integers(0, 200, (N, 8, 8, channels)).astype(np.uint8)
    x[np.arange(N), labels * 2] += 55
    return x, labels


def kinds():
    """By name: what `fl.scenario` makes it of, its keys, the model."""
    x, y = images()
    rows = np.random.default_rng(1).normal(size=(N, 6)).astype(np.float32) + y[:, None]
    tokens = np.random.default_rng(2).integers(0, 3, (N, 5)) + 3 * y[:, None]
    skewed = {"partition": "dirichlet", "alpha": 0.3, "clients": CLIENTS, "min_samples": 1}
    return {
        "label skew": (from_arrays(x, y), skewed, "digits-cnn"),
        "long tail": (from_arrays(x, y), {**skewed, "skews": [{"name": "long-tail", "rho": 8}]}, "digits-cnn"),
        "domains": (
            from_arrays(*images(3), domain=np.arange(N) % 3, domains=("a", "b", "c")),
            {"partition": "domains", "clients": 3},
            "digits-cnn",
        ),
        "rows": (from_arrays(rows, y), {"partition": "classes", "classes_per_client": 2, "clients": CLIENTS}, "mlp"),
        "text": (
            from_arrays(tokens, y, tokens=True),
            {"partition": "quantity", "alpha": 0.5, "clients": CLIENTS},
            Words,
        ),
    }


@pytest.fixture(scope="module")
def scenarios():
    return {
        kind: (fl.scenario(splits, **keys, val=0.1, public=0.1), model)
        for kind, (splits, keys, model) in kinds().items()
    }


def started(name, scenario, model, **keys):
    own = {**OWN_KEYS.get(name, {}), **({"augment": {"crop": 1}} if METHODS.get(name).spec.views == 2 else {})}
    return fl.run(name, scenario=scenario, model=model, **{**QUICK, **own, **keys})


def refusal_of(name, kind):
    """Why a method cannot take a kind of data; None if it must run."""
    if METHODS.get(name).spec.views == 2 and kind in ("rows", "text"):
        return "augment"
    return None


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("name", sampled(EVERY, "ditto", "fedgen", "fedkd", "fedproto", "scaffold"))
def test_every_method_runs_on_every_kind_of_data(name, kind, scenarios):
    scenario, model = scenarios[kind]
    refusal = refusal_of(name, kind)
    if refusal is not None:
        with pytest.raises(ConfigError, match=refusal):
            started(name, scenario, model)
        return
    result = started(name, scenario, model, evaluation={"protocol": PROTOCOL[kind](entry(name).abilities.predicts)})
    assert 0 <= result.numbers["accuracy"] <= 1
    assert math.isfinite(result.numbers["test_loss"])
    assert result.numbers["samples"] > 0


@pytest.mark.parametrize("name", sampled(EVERY, "fd", "fedkd", "fedproto", "fml", "scaffold"))
def test_different_nets_run_where_they_are_claimed_and_are_refused_elsewhere(name, scenarios):
    scenario, _ = scenarios["label skew"]
    nets = ["digits-cnn", {"name": "mlp", "hidden": [64]}]
    if not entry(name).abilities.any_architecture:
        with pytest.raises(ConfigError, match="one architecture"):
            started(name, scenario, nets, evaluation={"protocol": f"{entry(name).yields.split(', ')[0]}/global"})
        return
    if name == "heterofl":  # takes several widths of one kind of net
        with pytest.raises(ConfigError, match="several widths of one kind of model"):
            started(name, scenario, nets, evaluation={"protocol": "global/global"})
        widths = [{"name": "mlp", "hidden": [width]} for width in (64, 32)]
        result = started(name, scenario, widths, evaluation={"protocol": "global/global"})
        assert 0 <= result.numbers["accuracy"] <= 1
        return
    shared = {"fml": {"meme": "mlp"}, "fedkd": {"mentee": "mlp"}, "fedmrl": {"small": "digits-cnn"}}.get(
        name
    )  # the net that is averaged is one for all
    own = {} if shared is None else {name: shared}
    result = started(name, scenario, nets, evaluation={"protocol": "personal/global"}, **own)
    assert 0 <= result.numbers["accuracy"] <= 1
