"""Floor 5: one run, from its config to its result."""
