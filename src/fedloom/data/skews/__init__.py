"""What makes clients differ beyond who holds what, one file per kind; they compose."""

from fedloom.data.skews.skew import SKEWS, Skew, skew

__all__ = ["SKEWS", "Skew", "skew"]
