"""The Ray engine: runs the clients of a round on all nodes of a cluster, bit for bit equal to the serial engine."""

from fedloom.engine.ray.engine import OnRay

__all__ = ["OnRay"]
