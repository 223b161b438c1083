"""The server's new state is tested before it is kept."""

import pytest
import torch

from fedloom.core.errors import RunFolderError
from fedloom.core.tables import ClassTable
from fedloom.flower.bounds import UploadNorm
from fedloom.flower.checks import References


def state(weight, row=0.0):
    table = ClassTable(torch.tensor([[row], [0.0]]), torch.tensor([True, False]))
    return {"model": {"w": torch.tensor([weight]), "count": torch.tensor(3)}, "prototypes": table, "scale": 1.0}


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (state(float("nan")), "the server's model would not be finite"),
        (state(1.0, float("inf")), "the server's prototypes would not be finite"),
        (state(1e38), "the server's model would reach 1e\\+38"),
        (state(1.0, 2e9), "the server's prototypes would reach 2e\\+09"),
        ({**state(1.0), "scale": float("nan")}, "the server's scale would not be finite"),
    ],
)
def test_a_state_that_clients_cannot_use_is_refused(after, says):
    import re

    references = References()
    fault = references.fault(state(0.0), after)
    assert fault is not None
    assert re.search(says, fault)
    assert not references.steps


def test_a_state_that_moves_far_further_than_before_is_refused():
    """Steps of 1 and 2 are good; 101 is more than 50 times 2, and 99 is not."""
    guard = References()
    assert guard.fault(state(0.0), state(1.0)) is None
    assert guard.fault(state(1.0), state(3.0)) is None
    assert "the server's model would change 50.5 times as far" in str(guard.fault(state(3.0), state(104.0)))
    assert guard.fault(state(3.0), state(102.0)) is None


def test_the_largest_upload_is_measured_by_what_is_usual():
    guard = References(items={"model": 10.0, "rows": 0.1})
    assert guard.size([UploadNorm("model", "model", 20.0), UploadNorm("rows", "row 1", 0.5)]) == 5.0
    assert guard.size([]) == 0.0


def test_what_is_usual_outlives_the_server(tmp_path):
    references = References(items={"model/body/change": 0.5}, steps={"model": 2.0})
    references.write(tmp_path)
    assert References.read(tmp_path) == references
    (tmp_path / References.FILE).write_text("{")
    with pytest.raises(RunFolderError, match="delete it, and the run continues"):
        References.read(tmp_path)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1.0", "null", '"x"'])
def test_references_that_bound_nothing_are_refused(tmp_path, value):
    (tmp_path / "flower-references.json").write_text(f'{{"items": {{"model": {value}}}, "steps": {{}}}}')
    with pytest.raises(RunFolderError, match="damaged; delete it"):
        References.read(tmp_path)
