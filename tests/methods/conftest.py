import pytest

from support import DOUBLE, SINGLE


@pytest.fixture(params=[DOUBLE, SINGLE], ids=["float64", "float32"])
def precision(request):
    """Both precisions in which methods are held to golden files."""
    return request.param
