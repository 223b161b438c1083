"""Wrappers: what can be put over any method, as in `fedprox+dp`."""
