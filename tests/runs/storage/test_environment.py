"""What is told of the machine."""

import subprocess
import sys

import numpy as np

from fedloom.runs.storage.data_record import peak_memory_mb

_PEAK = "from fedloom.runs.storage.data_record import peak_memory_mb; print(peak_memory_mb())"


def test_peak_memory_is_this_process_own():
    block = np.ones(2**27)
    assert peak_memory_mb() > block.nbytes / 2**20
    child = float(subprocess.run([sys.executable, "-c", _PEAK], check=True, capture_output=True).stdout)
    assert child < peak_memory_mb() - 500
    del block
