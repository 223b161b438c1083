"""Floor 7: the tables of the five papers as studies (`recipes/`), compared with the printed values (`values/`)."""
