"""Skews, which make clients differ beyond the partition; one file for each. They can be combined."""

from fedloom.data.skews.skew import SKEWS, Skew, skew

__all__ = ["SKEWS", "Skew", "skew"]
