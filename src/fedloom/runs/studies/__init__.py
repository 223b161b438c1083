"""Floor 5: many runs: comparisons, studies and tuning, on any number of processes and machines."""
