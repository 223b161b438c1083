"""The device that clients are trained and tested on: which one a config means on this machine, and its name in results.

`auto` counts operations and times nothing, because another device has other bits: the same run must find the same
device, whatever else the machine does."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence

import torch

from fedloom.core.errors import ConfigError, short_repr
from fedloom.core.process_settings import gpu_settings
from fedloom.data.dataset import Dataset
from fedloom.engine.flops import FlopCounter
from fedloom.nets.net import Net

AUTO = "auto"
DEVICES = r"^(auto|cpu|cuda(:\d+)?)$"
VARIABLE = "FEDLOOM_DEVICE"
CPU_ENGINES = {
    "processes": "processes do not help clients that share a device",
    "ray": "workers of Ray train on the CPU",
    "threads": "threads replay steps on the CPU",
}
_CPU = torch.device("cpu")
_BACKWARD = 3  # a training step takes about three times the operations of a forward pass
# A GPU needs about 2 ms to launch the operators of a small net's step, however small they are (LeNet5 on an H200). A
# core of a CPU makes about 50 million operations in that time.
_WORTH_OPERATIONS = 5e7


def find_device(asked: str, engine: str, nets: Sequence[Net], data: Dataset, batch_size: int) -> torch.device:
    """Return the device that a run of these nets is to use, from `engine.device` and `engine.name`. Raises
    `ConfigError` if the one asked for does not exist, or if the engine cannot use it."""
    origin = "engine.device"
    if asked == AUTO and (variable := os.environ.get(VARIABLE)):
        asked, origin = variable, f"${VARIABLE}"
        if not re.match(DEVICES, asked):
            raise ConfigError(f"{origin} = {short_repr(asked)}: need auto, cpu, cuda or cuda:1")
    if asked == AUTO:
        worth = engine not in CPU_ENGINES and torch.cuda.is_available()
        worth = worth and any(step_operations(net, data, batch_size) >= _WORTH_OPERATIONS for net in nets)
        return torch.device("cuda:0") if worth else _CPU
    device = torch.device(asked)
    if device.type == "cuda":
        device_count = torch.cuda.device_count()
        if (device.index or 0) >= device_count:
            choices = "cpu" + (f", or cuda:0 to cuda:{device_count - 1}" if device_count else "")
            problem = f"torch {torch.__version__} finds {device_count} CUDA devices here{_why_none()}; use {choices}"
            raise ConfigError(f"{origin} = '{asked}': {problem}")
        if engine in CPU_ENGINES:
            raise ConfigError(f"engine = {engine} on '{asked}': {CPU_ENGINES[engine]}; use serial, batched or auto")
    return device


def check_precision(precision: str, device: torch.device) -> None:
    """Raises `ConfigError` if a device does not compute in the config's `precision`."""
    if precision == "tf32" and device.type != "cuda":
        remedy = "take float32, or engine.device=cuda"
        raise ConfigError(f"precision = tf32: a format of NVIDIA GPUs, and this run trains on {device}; {remedy}")
    # False: a GPU that only emulates bfloat16 does not count.
    if precision == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise ConfigError(f"precision = bfloat16: {device_name(device)} has no bfloat16; take float32 or tf32")


@contextlib.contextmanager
def device_settings(device: torch.device, precision: str, deterministic: bool) -> Iterator[None]:
    """Set torch for a run on a device in the block. precision: the config's. deterministic: whether numbers repeat."""
    on_gpu = device.type == "cuda"
    with gpu_settings(tf32=precision == "tf32", deterministic=deterministic) if on_gpu else contextlib.nullcontext():
        yield


def step_operations(net: Net, data: Dataset, batch_size: int) -> float:
    """Return the floating-point operations of a training step of `batch_size` samples of data, two for each
    multiply-add, estimated from a forward pass in evaluation mode, which draws no numbers and changes no buffer."""
    samples = torch.arange(min(2, len(data)))
    was_training = net.training
    net.eval()
    try:
        with torch.no_grad(), FlopCounter() as counter:
            net(data.gather(samples))
    finally:
        net.train(was_training)
    return float(_BACKWARD * counter.total * batch_size / max(1, len(samples)))


def device_name(device: torch.device) -> str:
    """Return the device's kind with its model, e.g. "cuda (NVIDIA H200)"; "cpu" for the CPU."""
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type


def device_note(asked: str, device: torch.device) -> str | None:
    """Return a sentence on the device that was found for `engine.device`; None on machines without a GPU."""
    if device.type != "cpu":
        return f"trains on {device_name(device)}"
    if asked == AUTO and not os.environ.get(VARIABLE) and torch.cuda.is_available():
        detail = "engine.device=cuda takes it"
        return f"trains on the CPU, because a step of this net is too small for a GPU to pay; {detail}"
    return None


def _why_none() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return ", because this torch is built for the CPU alone"
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return f", with CUDA_VISIBLE_DEVICES={visible!r}"
    return ""
