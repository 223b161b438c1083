"""Floor 6: trained models out of a run, and files that other programs load."""
