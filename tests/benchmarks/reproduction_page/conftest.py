"""Fixtures of results made by hand."""

from toy_results import make_result, make_scenario, two_methods

__all__ = ["make_result", "make_scenario", "two_methods"]
