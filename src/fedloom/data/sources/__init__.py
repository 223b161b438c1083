"""Where samples come from, one file per kind."""

from fedloom.data.sources.hf import from_huggingface
from fedloom.data.sources.python import from_arrays, from_clients, from_torch
from fedloom.data.sources.source import SOURCES, Source, Splits, source

__all__ = ["SOURCES", "Source", "Splits", "from_arrays", "from_clients", "from_huggingface", "from_torch", "source"]
