"""Floor 5: trained models of a run, and files of them for other programs."""
