"""The processes engine: runs the clients of a round on several cores, bit for bit equal to the serial engine."""

from fedloom.engine.processes.engine import Processes, WorkerLost

__all__ = ["Processes", "WorkerLost"]
