"""Floor 5: the keys of a config, how it is read and checked, and what is built from it before training."""
