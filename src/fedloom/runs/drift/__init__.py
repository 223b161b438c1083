"""Drift: how far the clients of a round, and its aggregate, move apart."""
