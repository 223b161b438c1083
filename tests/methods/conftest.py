import pytest
import torch

from support import DOUBLE, SINGLE


@pytest.fixture(autouse=True)
def one_thread():
    """One intra-operation thread, as in a run: more change the order of sums, and are slower on nets this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[DOUBLE, SINGLE], ids=["float64", "float32"])
def precision(request):
    """Both precisions in which methods are held to golden files."""
    return request.param
