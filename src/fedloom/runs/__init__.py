"""Floor 6: one run, from its config to its result."""
