import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """One intra-operation thread, as in a run: more change the order of sums, and are slower on nets this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
