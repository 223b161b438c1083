"""Floor 2: sources, partitions, skews, scenarios. Knows nothing of models or methods."""

from fedloom.data.assemble import OwnSplit, make_scenario
from fedloom.data.attacks import ATTACKS
from fedloom.data.dataset import Dataset
from fedloom.data.partitions import PARTITIONS, export_indices
from fedloom.data.scenario import Scenario, describe_input, describe_scenario
from fedloom.data.skews import SKEWS
from fedloom.data.sources import SOURCES, from_arrays, from_clients, from_huggingface, from_torch
from fedloom.data.views import Views

__all__ = [
    "ATTACKS",
    "PARTITIONS",
    "SKEWS",
    "SOURCES",
    "Dataset",
    "OwnSplit",
    "Scenario",
    "Views",
    "describe_input",
    "describe_scenario",
    "export_indices",
    "from_arrays",
    "from_clients",
    "from_huggingface",
    "from_torch",
    "make_scenario",
]
