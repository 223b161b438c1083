"""Where samples come from, one file per kind."""

from fedloom.data.sources import digits, given, idx, npz
from fedloom.data.sources.source import SOURCES, Source, Splits, source

__all__ = ["SOURCES", "Source", "Splits", "digits", "given", "idx", "npz", "source"]
