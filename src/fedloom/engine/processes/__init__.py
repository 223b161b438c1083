"""The processes engine: clients of a round on several cores, with the bits of the serial one."""

from fedloom.engine.processes.engine import Processes, WorkerLost

__all__ = ["Processes", "WorkerLost"]
