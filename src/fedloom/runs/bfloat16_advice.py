"""Measure what `precision: bfloat16` would buy a long run on this machine, and say it once."""

from __future__ import annotations

import logging
import time

import torch

from fedloom.engine.client import Worker
from fedloom.nets.deep_copy import deep_copy
from fedloom.nets.net import Net
from fedloom.nets.user_model import error_line
from fedloom.runs.config.run_config import RunConfig

_log = logging.getLogger(__name__)
_WORTH_SECONDS = 300.0  # remaining time of a run from which on the measurement is made
_WORTH_GAIN = 1.25
_WARM_UP, _STEPS = 2, 5
_NATIVE = ("amx_bf16", "avx512_bf16")  # features of processors that multiply in bfloat16


def bfloat16_advice(config: RunConfig, worker: Worker, round_: int, seconds: float) -> str | None:
    """Return what bfloat16 would buy, after the first round of a long run; None if it would not buy much, or fails.

    Args:
        config: the run's config.
        worker: has the net and the training set; neither is changed.
        round_: the number of the round that has just ended.
        seconds: of that round.
    """
    long = seconds * (config.rounds - round_) >= _WORTH_SECONDS
    if round_ != 1 or not long or config.precision != "float32" or worker.device.type != "cpu" or not has_bfloat16():
        return None
    try:
        with torch.random.fork_rng(devices=[]):
            plain, half = step_seconds(worker)
    except Exception as error:  # the net may have operators that bfloat16 lacks; the run does not need them
        _log.info("precision = bfloat16 cannot be measured: %s", error_line(error))
        return None
    if plain < _WORTH_GAIN * half:
        return None
    return (
        f"precision = bfloat16 would train this network about {plain / half:.1f} times as fast on this processor "
        f"(measured: a step of {config.batch_size} samples takes {1e3 * plain:.3g} ms, in bfloat16 {1e3 * half:.3g} "
        "ms); it changes the results"
    )


def has_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16; False where torch does not tell."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in _NATIVE)


def step_seconds(worker: Worker) -> tuple[float, float]:
    """Return the shortest time of a plain step in float32 and in bfloat16, of a copy of the first net.

    Seconds are those of the processor, because other work on the machine shall not pass for a gain.
    """
    net = deep_copy(worker.loaded_nets[0].net)
    indices = torch.arange(min(worker.local_training.batch_size, len(worker.data)))
    x = worker.data.gather(indices)
    net.kernel_context = None
    net.train()
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(_WARM_UP + _STEPS):
        for half in times:
            started = time.thread_time()
            _step(net, x, half)
            times[half].append(time.thread_time() - started)
    return min(times[False][_WARM_UP:]), min(times[True][_WARM_UP:])


def _step(net: Net, x: torch.Tensor, half: bool) -> None:
    for module in net.modules():
        if isinstance(module, Net):
            module.in_bfloat16 = half
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    torch.autograd.grad(net(x).square().mean(), parameters, allow_unused=True)
