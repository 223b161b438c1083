"""The method, its nets and its tasks, built from a config and the shape of its data before any training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from fedloom.core.streams import Streams
from fedloom.data import Dataset, Scenario
from fedloom.engine import PASS_BATCH, LocalTraining, Worker
from fedloom.engine.speedups import Speedups
from fedloom.evaluation import Evaluator, FewShotEvaluator
from fedloom.methods import Method
from fedloom.methods.contract.contexts import Diagnostic, Task
from fedloom.methods.wrappers.finetuning import WORDS as TUNING_WORDS
from fedloom.nets.blueprint import Blueprint
from fedloom.nets.net import Net
from fedloom.nets.probe import check_classifies
from fedloom.nets.training_probe import check_entries, check_trains, is_foreign
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
    def from_config(config: RunConfig, input_shape: tuple[int, ...], num_classes: int, clients: int) -> Setup:
        """Build the setup for samples [n, *input_shape] of `num_classes` classes. Raises `ConfigError` for a model that
        does not fit."""
        streams, method = Streams(config.seed), config.build_method()
        blueprints = config.blueprints(input_shape, num_classes, method)
        nets = [blueprint.build(streams) for blueprint in blueprints]
        for blueprint, net in zip(blueprints, nets, strict=True):
            if is_foreign(net):
                check_entries(net, blueprint.model)
        tasks = [
            Task.of(
                net,
                clients=clients,
                num_classes=num_classes,
                rounds=config.rounds,
                local_epochs=config.local_epochs,
                streams=streams,
                optimizer=config.optimizer,
                batch_size=config.batch_size,
                group=group,
                blueprint=blueprint,
            )
            for group, (blueprint, net) in enumerate(zip(blueprints, nets, strict=True))
        ]
        return Setup(method, streams, blueprints, nets, tasks)

    def diagnostics(self, config: RunConfig, data: Dataset) -> list[Diagnostic]:
        """Find settings that are seldom intended. Raises `ConfigError` for a net that cannot train."""
        x = data.gather(torch.arange(min(2, len(data))))
        by_code = {
            diagnostic.code: diagnostic
            for blueprint, net in zip(self.blueprints, self.nets, strict=True)
            for diagnostic in check_trains(net, x, data.num_classes, config.batch_size, blueprint.model)
        }
        diagnostics = [Diagnostic(code, text, 1.0) for code, text in by_code.values()]
        protocols = config.evaluation.tested_protocols
        tests_global = all(protocol.startswith("global") for protocol in protocols)
        if tests_global and set(self.method.wrappers) & set(TUNING_WORDS):
            text = (
                f"evaluation.protocol = '{', '.join(protocols)}' tests the global model, which {self.method.name()} "
                "does not tune; take personal/local"
            )
            diagnostics.append(Diagnostic("untested_tuning", text, 1.0))
        return diagnostics

    def worker(self, config: RunConfig, data: Dataset) -> Worker:
        """Build the worker of the clients. Raises `ConfigError` for a net that does not classify `data`."""
        for blueprint, net in zip(self.blueprints, self.nets, strict=True):
            check_classifies(net, data.gather(torch.arange(min(2, len(data)))), data.num_classes, blueprint.model)
        local = LocalTraining(config.batch_size, config.optimizer, config.augment)
        device = config.engine.torch_device()
        half, speedups = config.precision == "bfloat16", Speedups(steps=config.engine.fast)
        return Worker(self.method, self.nets, data, local, device, bfloat16=half, speedups=speedups)

    def evaluators(
        self, config: RunConfig, worker: Worker, scenario: Scenario
    ) -> Mapping[str, Evaluator | FewShotEvaluator]:
        """Build the evaluators of a scenario, by protocol; the worker gets them, too, for tests on clients."""
        on_device = replace(scenario, train_set=worker.data, test_set=scenario.test_set.to(worker.device))
        evaluation = config.evaluation
        if evaluation.protocol == "few-shot":
            shape = evaluation.episode_shape()
            few_shot = FewShotEvaluator(worker.loaded_nets[0], on_device, shape, self.streams, batch=PASS_BATCH)
            return {evaluation.protocol: few_shot}
        also, metrics, mib = evaluation.also, evaluation.metrics, evaluation.scores_mib
        worker.evaluators = {
            protocol: Evaluator(on_device, protocol, batch=PASS_BATCH, also=also, metrics=metrics, scores_mib=mib)
            for protocol in evaluation.tested_protocols
        }
        return worker.evaluators
