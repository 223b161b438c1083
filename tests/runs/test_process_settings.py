"""What the caller has set in the process changes no bit of a run, and is there afterwards."""

import contextlib
import hashlib
import locale
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.core.process_settings import SETTINGS

ENGINES: list[Any] = ["serial", {"name": "processes", "workers": 2}]


LABELS = np.arange(80) % 3
IMAGES = np.random.default_rng(0).normal(LABELS[:, None, None, None] / 2, 1, (80, 1, 6, 6)).astype("float32")


class Mixed(nn.Module):
    """Convolution, batch norm, attention, einsum, dropout, and an initialisation that draws."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.mixing = nn.Parameter(torch.randn(8, 8) / 3)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.convolution(x)).relu().flatten(2)
        tokens: Tensor = torch.einsum("bct,cd,de->bte", h, self.mixing, self.mixing)
        logits: Tensor = self.head(self.attention(tokens).mean(1))
        return logits


@contextlib.contextmanager
def changed(read: Callable[[], Any], write: Callable[[Any], object], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def setting(name: str, value: Any) -> AbstractContextManager[Any]:
    (known,) = [known for known in SETTINGS if known.name == name]
    return changed(known.read, known.write, value)


def deterministic() -> AbstractContextManager[Any]:
    return setting("torch.use_deterministic_algorithms", (True, False))


@contextlib.contextmanager
def warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def set_default_tensor_type(kind: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        torch.set_default_tensor_type(kind)


def set_default_device(device: torch.device | None) -> None:
    torch.set_default_device(None if device == torch.device("cpu") else device)


CALLERS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "default dtype": lambda: setting("torch.set_default_dtype", torch.float64),
    "half as default dtype": lambda: setting("torch.set_default_dtype", torch.float16),
    "default tensor type": lambda: changed(lambda: torch.FloatTensor, set_default_tensor_type, torch.DoubleTensor),
    "default device": lambda: changed(torch.get_default_device, set_default_device, torch.device("meta")),
    "with a device": lambda: torch.device("meta"),
    "no gradients": lambda: changed(torch.is_grad_enabled, torch.set_grad_enabled, False),
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "flush denormals": lambda: setting("torch.set_flush_denormal", True),
    "matmul precision": lambda: setting("torch.set_float32_matmul_precision", "medium"),
    "deterministic": deterministic,
    "deterministic, warns": lambda: setting("torch.use_deterministic_algorithms", (True, True)),
    "threads": lambda: setting("torch.set_num_threads", 4),
    "no oneDNN": lambda: setting("torch.backends.mkldnn.enabled", False),
    "deterministic oneDNN": lambda: setting("torch.backends.mkldnn.deterministic", True),
    "no NNPACK": lambda: torch.backends.nnpack.flags(enabled=False),
    "cuDNN": lambda: torch.backends.cudnn.flags(enabled=False, benchmark=True, deterministic=True, allow_tf32=False),
    "anomalies": lambda: setting("torch.autograd.set_detect_anomaly", (True, True)),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast of the process": lambda: setting("torch.set_autocast_enabled('cpu')", True),
    "attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "no fast path": lambda: setting("torch.backends.mha.set_fastpath_enabled", False),
    "seed of torch": lambda: changed(torch.get_rng_state, torch.set_rng_state, torch.Generator().get_state()),
    "seed of NumPy": lambda: changed(np.random.get_state, np.random.set_state, np.random.RandomState(7).get_state()),
    "seed of Python": lambda: changed(random.getstate, random.setstate, random.Random(7).getstate()),
    "NumPy raises": lambda: np.errstate(all="raise"),
    "warnings are errors": warnings_are_errors,
    "locale": lambda: changed(
        lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name), "C"
    ),
}


def drawn() -> list[float]:
    """What the generators of the process would give next."""
    with changed(torch.get_rng_state, torch.set_rng_state, torch.get_rng_state()):
        first = float(torch.rand(()))
    with changed(random.getstate, random.setstate, random.getstate()):
        second = random.random()
    with changed(np.random.get_state, np.random.set_state, np.random.get_state()):  # noqa: NPY002
        return [first, second, float(np.random.random())]  # noqa: NPY002


def trained(engine: Any) -> str:
    """The sha256 of the weights after a run, with a scenario and a model that are made for it."""
    scenario = fl.scenario((IMAGES, LABELS), clients=2)
    how = {"rounds": 1, "local_epochs": 2, "batch_size": 16, "seed": 3}
    result = fl.run("fedavg", scenario=scenario, model=Mixed, engine=engine, **how)
    digest = hashlib.sha256()
    for name, value in result.model().state_dict().items():
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def plain() -> str:
    return trained("serial")


@pytest.mark.parametrize("engine", ENGINES, ids=["serial", "processes"])
@pytest.mark.parametrize("caller", CALLERS)
def test_a_run_has_the_same_bits_whatever_the_caller_has_set(caller: str, engine: Any, plain: str) -> None:
    generators = drawn()
    with CALLERS[caller]():
        before = [known.read() for known in SETTINGS]
        assert trained(engine) == plain
        assert [known.read() for known in SETTINGS] == before
    assert drawn() == generators
