"""Floor 4: the round loop and the engines that execute clients. Knows no single method."""

from fedloom.engine.client import PASS_BATCH, LocalTraining, Worker
from fedloom.engine.loop import Federation, RoundReport
from fedloom.engine.serial import Engine, Serial

__all__ = ["PASS_BATCH", "Engine", "Federation", "LocalTraining", "RoundReport", "Serial", "Worker"]
