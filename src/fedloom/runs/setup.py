"""The method, its nets and its tasks, built from a config before any training; and the hint that bfloat16 is faster."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data import Dataset, Scenario
from fedloom.engine import PASS_BATCH, LocalTraining, Worker
from fedloom.engine.device import check_precision, find_device
from fedloom.engine.speedups import Speedups
from fedloom.evaluation import Evaluator, FewShotEvaluator
from fedloom.methods import Method
from fedloom.methods.contract.contexts import Diagnostic, Task
from fedloom.methods.wrappers.finetuning import WORDS as TUNING_WORDS
from fedloom.nets.blueprint import Blueprint
from fedloom.nets.net import Net, deep_copy
from fedloom.nets.probe import check_classifies, check_entries, check_trains, is_foreign
from fedloom.nets.user_model import error_line
from fedloom.runs.config.run_config import RunConfig


@dataclass(frozen=True, slots=True)
class Setup:
    """A method, and for each of its architectures a blueprint, a net with the first weights, and a task."""

    method: Method
    streams: Streams
    blueprints: list[Blueprint]
    nets: list[Net]
    tasks: list[Task]

    @staticmethod
    def from_config(config: RunConfig, input_shape: tuple[int, ...], num_classes: int, clients: int) -> "Setup":
        """Build a config's setup for samples [n, *input_shape] of `num_classes` classes. Raises `ConfigError`."""
        streams, method = Streams(config.seed), config.build_method()
        blueprints = config.blueprints(input_shape, num_classes, method)
        nets = [blueprint.build(streams) for blueprint in blueprints]
        for blueprint, net in zip(blueprints, nets, strict=True):
            if is_foreign(net):
                check_entries(net, blueprint.model)
        facts: dict[str, Any] = {"clients": clients, "num_classes": num_classes, "streams": streams}
        facts |= {key: getattr(config, key) for key in ("rounds", "local_epochs", "optimizer", "batch_size")}
        tasks = [
            Task.of(net, group=group, blueprint=blueprint, **facts)
            for group, (blueprint, net) in enumerate(zip(blueprints, nets, strict=True))
        ]
        return Setup(method, streams, blueprints, nets, tasks)

    def diagnostics(self, config: RunConfig, data: Dataset) -> list[Diagnostic]:
        """Find settings that are seldom intended. Raises `ConfigError` for a net that cannot train."""
        x = data.gather(torch.arange(min(2, len(data))))
        by_code: dict[str, tuple[str, str]] = {
            diagnostic.code: diagnostic
            for blueprint, net in zip(self.blueprints, self.nets, strict=True)
            for diagnostic in check_trains(net, x, data.num_classes, config.batch_size, blueprint.model)
        }
        protocols, name = config.evaluation.tested_protocols, self.method.name()
        tests_global = all(protocol.startswith("global") for protocol in protocols)
        if tests_global and set(self.method.wrappers) & set(TUNING_WORDS):
            tested = f"evaluation.protocol = '{', '.join(protocols)}' tests the global model"
            text = f"{tested}, which {name} does not tune; take personal/local"
            by_code["untested_tuning"] = "untested_tuning", text
        return [Diagnostic(code, text, 1.0) for code, text in by_code.values()]

    def worker(self, config: RunConfig, data: Dataset) -> Worker:
        """Build the worker of the clients. Raises `ConfigError` for a net that does not classify `data`."""
        for blueprint, net in zip(self.blueprints, self.nets, strict=True):
            check_classifies(net, data.gather(torch.arange(min(2, len(data)))), data.num_classes, blueprint.model)
        local = LocalTraining(config.batch_size, config.optimizer, config.augment)
        asked, engine = config.engine.device, config.engine.name
        device = find_device(asked, engine, self.nets, data, config.batch_size)
        check_precision(config.precision, device)
        half, speedups = config.precision == "bfloat16", Speedups(steps=config.engine.fast)
        return Worker(self.method, self.nets, data, local, device, bfloat16=half, speedups=speedups)

    def evaluators(
        self, config: RunConfig, worker: Worker, scenario: Scenario
    ) -> Mapping[str, Evaluator | FewShotEvaluator]:
        """Build the evaluators of a scenario, by protocol, and hand them to the worker for tests on clients."""
        on_device = replace(scenario, train_set=worker.data, test_set=scenario.test_set.to(worker.device))
        evaluation = config.evaluation
        if evaluation.protocol == "few-shot":
            shape = evaluation.episode_shape()
            few_shot = FewShotEvaluator(worker.loaded_nets[0], on_device, shape, self.streams, batch=PASS_BATCH)
            return {evaluation.protocol: few_shot}
        scored = ("auroc",) if evaluation.decision else ()  # its states hold the scores of thresholds
        settings: dict[str, Any] = {"also": evaluation.also, "metrics": (*evaluation.metrics, *scored)}
        settings |= {"scores_mib": evaluation.scores_mib, "keep_scores": config.keeps_scores}
        worker.evaluators = {
            protocol: Evaluator(on_device, protocol, batch=PASS_BATCH, **settings)
            for protocol in evaluation.tested_protocols
        }
        return worker.evaluators


def check_devices(config: RunConfig, method: Method, *, over_flower: bool) -> None:
    """Raise `ConfigError` if `config` and `method` need virtual time in a federation of real nodes (`over_flower`), or
    with observers of whole rounds."""
    devices, asynchronous = config.devices, method.spec.arrivals is not None
    if over_flower and (devices is not None or asynchronous):
        key = f"method = '{config.method}'" if asynchronous else "devices"
        why = "virtual time is for simulations; over Flower, devices are real and flower.round_timeout is the deadline"
        raise ConfigError(f"{key}: {why}")
    watched = "drift" if config.drift else "checkpoint.keep_clients" if config.checkpoint.keep_clients else ""
    if watched and (asynchronous or (devices is not None and devices.late == "next_round")):
        raise ConfigError(f"{watched}: needs clients that start from one state, and here rounds overlap; leave it out")


_log = logging.getLogger(__name__)
_WORTH_SECONDS = 300.0  # remaining time of a run from which on the measurement is made
_WORTH_GAIN = 1.25
_WARM_UP, _STEPS = 2, 5
_NATIVE = ("amx_bf16", "avx512_bf16")  # features of processors that multiply in bfloat16


def bfloat16_advice(config: RunConfig, worker: Worker, round_: int, seconds: float) -> str | None:
    """Measure, after the first round_ of `seconds`, if bfloat16 would speed a long run of `worker` up; say so."""
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
    """Return the shortest processor time of a plain step of the first net in float32 and in bfloat16, in seconds."""
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
