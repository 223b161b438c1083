"""Attacks on what clients upload: labels, inputs, membership. They measure what a federation tells of its clients."""
