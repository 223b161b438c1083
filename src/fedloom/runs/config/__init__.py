"""Floor 5: the keys of a config, how a config is read and checked, and the objects built from it before training."""
