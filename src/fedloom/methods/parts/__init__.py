"""Losses and reducers shared by several methods."""
