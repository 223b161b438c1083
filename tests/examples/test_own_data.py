"""`examples/own_data.py` runs at small size: every kind of data is read, dealt and learnt from."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_data.py"


def test_every_kind_of_data_is_learnt_from():
    found = runpy.run_path(str(EXAMPLE))["main"](samples=240, rounds=3)
    assert len(found) == 6
    assert sorted(found.values())[2] > 0.9, found  # standardised: three species, alike in number
    assert min(found.values()) > 0.4, found  # as measured, it is learnt more slowly; guessing gives a third
    assert found["CSV"] == found["Parquet"]
