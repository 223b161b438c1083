"""Groups of commands that `cli.py` registers."""
