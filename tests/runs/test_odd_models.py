"""Models that do unusual things: the same numbers on every engine, or a line that says why not."""

import hashlib
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.methods import METHODS
from support import Notes, sampled

ENGINES: dict[str, Any] = {
    "serial": "serial",
    "plain steps": {"name": "serial", "fast": False},
    "processes": {"name": "processes", "workers": 2},
}
LABELS = np.arange(90) % 3
SAMPLES = np.random.default_rng(0).normal(LABELS[:, None], 1.0, (90, 6)).astype("float32")


class Plain(nn.Module):
    """6 inputs, 5 features, 3 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.begin()

    def begin(self) -> None:
        pass

    def features(self, x: Tensor) -> Tensor:
        return self.first(x).relu()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


class ReplacesABuffer(Plain):
    def begin(self) -> None:
        self.register_buffer("mean", torch.zeros(5))

    def features(self, x: Tensor) -> Tensor:
        z = super().features(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * z.detach().mean(0)
        return z - self.mean


class NoiseOfNumPy(Plain):
    def features(self, x: Tensor) -> Tensor:
        noise = float(np.random.random()) if self.training else 0.0  # noqa: NPY002
        return super().features(x) * (1 + noise)


class NoiseOfPython(Plain):
    def features(self, x: Tensor) -> Tensor:
        return super().features(x) * (1 + (random.random() if self.training else 0.0))


class OldWeightNorm(Plain):
    def begin(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated
            nn.utils.weight_norm(self.first)


class Pruned(Plain):
    def begin(self) -> None:
        prune.l1_unstructured(self.first, "weight", 0.5)


class OldSpectralNorm(Plain):
    def begin(self) -> None:
        nn.utils.spectral_norm(self.first)


class RandomTests(Plain):
    def features(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().features(x))


class Stores(Plain):
    def features(self, x: Tensor) -> Tensor:
        self.last = super().features(x)
        return self.last


class Counts(Plain):
    def begin(self) -> None:
        self.passes = 0

    def features(self, x: Tensor) -> Tensor:
        self.passes += self.training
        return super().features(x)


class Normed(Plain):
    def begin(self) -> None:
        self.norm = nn.BatchNorm1d(5)

    def features(self, x: Tensor) -> Tensor:
        return self.norm(super().features(x))  # type: ignore[no-any-return]


class Double(Normed):
    """In double precision."""

    def begin(self) -> None:
        super().begin()
        self.double()

    def features(self, x: Tensor) -> Tensor:
        return super().features(x.double())


def trained(model: Any, engine: Any = "serial", method: str = "fedavg", **keys: Any) -> tuple[Any, list[str]]:
    """A run's result, and its notes."""
    notes = Notes()
    scenario = fl.scenario((SAMPLES, LABELS), clients=3, partition="dirichlet", alpha=1.0, seed=1)
    settings = {"rounds": 3, "local_epochs": 2, "batch_size": 8} | keys
    return fl.run(method, scenario=scenario, model=model, engine=engine, callbacks=[notes], **settings), notes.texts


def numbers(result: Any) -> tuple[str, list[Any]]:
    """The sha256 of the final weights, and the accuracies."""
    digest = hashlib.sha256()
    for value in result.model().state_dict().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest(), result.curve()


SAME = [
    ReplacesABuffer,
    NoiseOfNumPy,
    NoiseOfPython,
    OldWeightNorm,
    Pruned,
    OldSpectralNorm,
    RandomTests,
    Stores,
    Double,
]


@pytest.mark.parametrize("model", SAME)
def test_engines_have_the_same_bits(model: type[nn.Module]) -> None:
    first, *others = [numbers(trained(model, engine)[0]) for engine in ENGINES.values()]
    assert all(other == first for other in others)


class CountsInABuffer(Plain):
    def begin(self) -> None:
        self.register_buffer("passes", torch.zeros(()))

    def features(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes = self.passes + 1
        return super().features(x) * (1 + 0.1 * self.passes)


def test_a_buffer_that_is_replaced_moves_in_stacks_too() -> None:
    serial, batched = (trained(CountsInABuffer, engine)[0].model().state_dict() for engine in ("serial", "batched"))
    assert serial["passes"] > 0
    assert all(torch.allclose(value, serial[name], atol=1e-4) for name, value in batched.items())


def test_stacks_refuse_a_model_that_mixes_samples() -> None:
    with pytest.raises(ConfigError, match=r"engine: batched cannot run this: its training mixes the samples"):
        trained(ReplacesABuffer, "batched")


def test_state_in_python_is_named_once_and_kept_in_the_result() -> None:
    result, notes = trained(Counts)
    (note,) = notes
    assert "keeps state in Python: passes changed" in note
    assert result.numbers["degenerate"] == [note]


@pytest.mark.parametrize("model", [Plain, Normed, Stores, Pruned, OldWeightNorm])
def test_of_other_models_nothing_is_said(model: type[nn.Module]) -> None:
    assert trained(model)[1] == []


def test_batch_norm_and_batches_of_one_are_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"batch_size = 1: model Normed has batch norm"):
        trained(Normed, batch_size=1)
    trained(Plain, batch_size=1, rounds=1)


def test_a_module_that_was_made_in_inference_mode_trains() -> None:
    plain = numbers(trained(_seeded())[0])
    with torch.inference_mode():
        module = _seeded()
    assert numbers(trained(module)[0]) == plain
    with torch.inference_mode():
        assert numbers(trained(module)[0]) == plain


def _seeded() -> Normed:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Normed()


# Two augmented views of a sample, and second-order steps, have tests of their own.
OF_ONE_VIEW = [name for name, kind in METHODS if kind.spec.views == 1 and not kind.spec.public]


@pytest.mark.parametrize("name", sampled(OF_ONE_VIEW, "ccvr", "ditto", "fedgen", "fedkd", "fedproto", "scaffold"))
def test_every_method_trains_a_model_in_double_precision(name: str) -> None:
    protocol = {"evaluation": {"protocol": "personal/local"}}
    try:
        client, (result, _) = None, trained(Double, method=name)
    except ConfigError:  # it has no global model
        client, (result, _) = 0, trained(Double, method=name, **protocol)
    state = result.model(client).state_dict()
    assert state["head.weight" if "head.weight" in state else next(iter(state))].dtype is torch.float64
