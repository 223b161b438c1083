"""Ray: clients of a round on all nodes of a cluster, with the bits of the serial engine. Needs the extra `ray`."""

from fedloom.engine.ray.engine import OnRay

__all__ = ["OnRay"]
