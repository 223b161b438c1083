"""A reply is turned away by its length, before its bytes are read."""

from types import SimpleNamespace

import pytest

from fedloom.flower.bounds import ReplyBound, ReplyTooLarge

PULL = "http://127.0.0.1/v1/runtime/pull-object"


class Client:
    """The parts of Flower's HTTP client that a bound touches."""

    def __init__(self):
        self._interceptors = ("first",)
        self._client = SimpleNamespace(event_hooks={"response": []})


def response(length, url=PULL):
    headers = {} if length is None else {"content-length": str(length)}
    return SimpleNamespace(request=SimpleNamespace(url=SimpleNamespace(path=url)), headers=headers)


@pytest.fixture
def check():
    grid = SimpleNamespace(_runtime_client=Client())
    bound = ReplyBound(grid)
    (hook,) = grid._runtime_client._client.event_hooks["response"]
    assert grid._runtime_client._interceptors == ("first", bound)
    bound.begin(1000)
    return bound, hook


def test_what_fits_is_read(check):
    bound, hook = check
    for length in (0, 400, 600):
        hook(response(length))
    bound.begin(1000)
    hook(response(1000))


@pytest.mark.parametrize("lengths", [[1001], [500, 501], [None], [0, 0, 10**12]])
def test_what_is_longer_is_not(check, lengths):
    _, hook = check
    for length in lengths[:-1]:
        hook(response(length))
    with pytest.raises(ReplyTooLarge, match="more than 1,000 bytes, or in too many parts; it was not read"):
        hook(response(lengths[-1]))


def test_a_reply_in_endless_small_parts_is_not_read(check):
    _, hook = check
    for _ in range(64):
        hook(response(0))
    with pytest.raises(ReplyTooLarge):
        hook(response(0))


def test_other_responses_do_not_count(check):
    _, hook = check
    hook(response(10**9, "http://127.0.0.1/v1/runtime/get-nodes"))
    hook(response(1000))


def test_a_grid_without_a_connection_has_no_bound():
    ReplyBound(SimpleNamespace()).begin(10)
