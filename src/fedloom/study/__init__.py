"""Floor 6: configs, runs, run folders, resuming, comparing. Knows no single method."""
