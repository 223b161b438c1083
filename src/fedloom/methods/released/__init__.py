"""Computations of authors' released code that differ from their papers."""
