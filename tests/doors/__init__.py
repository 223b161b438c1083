"""The cases of `tests/data/test_doors.py`, by what the files hold: each module has a list `DOORS`."""
