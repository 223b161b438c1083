"""Diagnoses of a federation: how the papers' theory applies to its data and runs."""
