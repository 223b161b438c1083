"""A first config for a user's data: how to read them, and settings to begin with, each with its reason."""
