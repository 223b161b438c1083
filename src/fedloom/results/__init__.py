"""Floor 6: tables, statistics and comparisons of finished runs. Needs no torch."""
