"""Floor 2: sources, partitions, scenarios. Knows nothing of models or methods."""

from fedloom.data.dataset import Dataset
from fedloom.data.partitions import PARTITIONS
from fedloom.data.scenario import Scenario, make_scenario
from fedloom.data.sources import SOURCES
from fedloom.data.views import Views

__all__ = ["PARTITIONS", "SOURCES", "Dataset", "Scenario", "Views", "make_scenario"]
