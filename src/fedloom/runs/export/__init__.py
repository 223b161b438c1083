"""Floor 6: trained models of a run, and files of them for other programs."""
