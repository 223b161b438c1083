"""Floor 6: many runs: comparisons, grids of cells and tuning, on any number of processes and machines."""
