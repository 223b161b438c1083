"""A small federation for trials, whose rounds and tests are timed, or whose clients' operations are counted."""

from __future__ import annotations

import time
from dataclasses import replace

from fedloom.data import Scenario
from fedloom.engine import Federation, Serial
from fedloom.engine.choose import choose_engine
from fedloom.engine.flops import flops_per_sample
from fedloom.engine.speedups import Speedups
from fedloom.nets.net import Net
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.protocol_tests import ProtocolTests
from fedloom.runs.setup import Setup


class TrialFederation:
    """The federation and the tests of a run, without its log, summary and closing round.

    Args:
        config: config of the trial, whose engine runs clients in this process.
        scenario: its data.
        plain_steps: take every step in Python, though the config lets C++ replay steps; nothing is compiled then.
    """

    def __init__(self, config: RunConfig, scenario: Scenario, *, plain_steps: bool = False) -> None:
        replays = config.engine.fast
        if plain_steps:
            config = config.model_copy(update={"engine": config.engine.model_copy(update={"fast": False})})
        data = scenario.train_set
        setup = Setup.from_config(config, data.input_shape, scenario.num_classes, scenario.clients)
        self.worker = setup.worker(config, data)
        if plain_steps and replays:  # tests are as fast as those of the config
            for module in (module for net in setup.nets for module in net.modules() if isinstance(module, Net)):
                Speedups().prepare(module)
        self.federation = Federation(
            setup.method,
            Serial(self.worker),
            [replace(task, rounds=task.rounds + 1) for task in setup.tasks],  # a closing round is no part of a trial
            scenario,
            participation=config.participation,
            nets=[net.functional for net in setup.nets],
        )
        self.federation.engine = choose_engine(self.federation, self.worker, config.engine).engine
        self._tests = ProtocolTests(config, setup, self.worker, self.federation)

    def __enter__(self) -> TrialFederation:
        return self

    def __exit__(self, *_: object) -> None:
        self.federation.engine.close()
        self.federation.states.close()

    def round_seconds(self) -> float:
        """Take the next round; return its CPU seconds."""
        began = time.process_time()
        self.federation.step()
        return time.process_time() - began

    def test_seconds(self) -> float:
        """Test as after the present round; return the CPU seconds."""
        began = time.process_time()
        self._tests.rows(self.federation.round)
        return time.process_time() - began

    def operations(self, local_epochs: int) -> float:
        """Count the operations of a client's next round for each of its samples, summed over the architectures.

        Args:
            local_epochs: of that round; two are counted, and each further one has the operations of the second.
        """
        total = 0.0
        for task in self.federation.tasks:
            job = self.federation.job(task.group, self.federation.round + 1)
            ctx = replace(job.ctx, task=replace(job.ctx.task, local_epochs=local_epochs))
            total += flops_per_sample(self.worker, replace(job, ctx=ctx))
        return total
