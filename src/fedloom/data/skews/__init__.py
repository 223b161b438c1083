"""What makes clients differ beyond who holds what, one file per kind; they compose."""

from fedloom.data.skews import label_noise, long_tail, noise, ratio, transforms
from fedloom.data.skews.skew import SKEWS, Skew, skew

__all__ = ["SKEWS", "Skew", "label_noise", "long_tail", "noise", "ratio", "skew", "transforms"]
