"""Fixtures of results made by hand, and of a cluster."""

from ray_cluster import cluster, ray
from toy_results import make_result, make_scenario, two_methods

__all__ = ["cluster", "make_result", "make_scenario", "ray", "two_methods"]
