"""Floor 4: the round loop and the engines that execute clients. Knows no single method.

Read `loop.py`, `client.py`, `steps.py`, `serial.py`: they are the whole meaning. `processes/` and `stacked/` execute
the same otherwise, `fast/` sooner."""

from fedloom.engine.batch_sampler import PASS_BATCH
from fedloom.engine.client import Worker
from fedloom.engine.jobs import LocalTraining
from fedloom.engine.loop import Federation
from fedloom.engine.round_report import RoundReport
from fedloom.engine.serial import Engine, Serial

__all__ = ["PASS_BATCH", "Engine", "Federation", "LocalTraining", "RoundReport", "Serial", "Worker"]
