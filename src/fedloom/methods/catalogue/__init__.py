"""Descriptions of methods for lists and pages, read from the methods themselves."""
