import pytest

from fedloom.methods import METHODS
from golden_world import READ, Values
from support import DOUBLE, SINGLE


@pytest.fixture(params=[DOUBLE, SINGLE], ids=["float64", "float32"])
def precision(request):
    """Both precisions in which methods are held to golden files."""
    return request.param


@pytest.fixture
def registry(monkeypatch):
    """What a test registers is gone after it."""
    METHODS.names()
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))


@pytest.fixture(scope="module", autouse=True)
def golden_values_are_read(request):
    """Fail a file of tests that leaves values of its golden entries unread.

    The entries are the file's constants, as `GOLD = GOLDEN["scaffold"]` or a dict of such. Texts are for people, and a
    probe is the fingerprint of a tree beside it (`test_golden_baselines.py`). Where only some of the file's tests run,
    nothing is checked.
    """
    yield
    constants = list(vars(request.module).values())
    constants += [value for several in constants if isinstance(several, dict) for value in several.values()]
    entries = [v for v in constants if isinstance(v, Values) and len(v.path) == 2 and "world" not in v.path]
    tests = {item for item in request.session.items if item.module is request.module}
    ran = {item for item in tests if hasattr(item, "ran")}
    whole_file = {name for name in vars(request.module) if name.startswith("test_")} == {t.originalname for t in tests}
    if entries and tests == ran and whole_file:
        unread = {path for entry in entries for path in entry.paths() - READ if path[-1] != "probe"}
        assert not unread, f"golden values that no test of this file reads: {sorted(map('/'.join, unread))}"


@pytest.fixture(autouse=True)
def noted(request):
    """Note that a test ran in this process."""
    yield
    request.node.ran = True
