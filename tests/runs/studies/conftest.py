"""The fixture of a cluster."""

from ray_cluster import cluster, ray

__all__ = ["cluster", "ray"]
