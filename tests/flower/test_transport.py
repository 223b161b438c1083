"""Versions of Flower, and the bound on a reply: it is turned away by its length, before its bytes are read."""

import itertools
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from command_line import call
from fedloom.core.errors import ConfigError
from fedloom.flower import message
from fedloom.flower.transport import ReplyBound, ReplyTooLarge


def response(length, path="pull-object"):
    headers = {} if length is None else {"content-length": str(length)}
    return SimpleNamespace(request=SimpleNamespace(url=SimpleNamespace(path=f"/v1/runtime/{path}")), headers=headers)


@pytest.fixture
def read():
    """Reads a reply of at most 1,000 bytes, in responses of these lengths."""
    http = SimpleNamespace(event_hooks={"response": []})
    client = SimpleNamespace(_interceptors=("first",), _client=http)  # the parts of Flower's client that a bound uses
    bound = ReplyBound(SimpleNamespace(_runtime_client=client))
    assert client._interceptors == ("first", bound)
    (hook,) = http.event_hooks["response"]

    names = itertools.count()

    def reply(*lengths, path="pull-object"):
        bound.begin(str(next(names)), 1000)
        bound._local.fetch = bound._fetch  # as `intercept` does in the thread of a request
        for length in lengths:
            hook(response(length, path))

    return reply


def test_what_fits_is_read(read):
    for lengths in ((0, 400, 600), (1000,), [0] * 64):
        read(*lengths)
    read(10**9, path="get-nodes")  # no part of a reply


@pytest.mark.parametrize("lengths", [[1001], [500, 501], [None], [0, 0, 10**12], [0] * 65])
def test_what_is_longer_or_in_endless_parts_is_not(read, lengths):
    read(*lengths[:-1])
    with pytest.raises(ReplyTooLarge, match="more than 1,000 bytes, or in too many parts; it was not read"):
        read(*lengths)


def test_a_grid_without_a_connection_has_no_bound():
    ReplyBound(SimpleNamespace()).begin("name", 10)


def test_flower_that_is_not_installed_is_one_line(tmp_path, capsys, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(message, "version", missing)
    code, _, err = call(capsys, "flower", "up", "demo", "--out", str(tmp_path / "run"))
    assert (code, err) == (2, "error: Flower is not installed; pip install 'fedloom[flower]'\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("found", "fits"), [("1.40.9", False), ("1.41.0", True), ("1.43.0", False), ("2.0", False)])
def test_only_tested_versions_of_flower_are_taken(found, fits, monkeypatch):
    monkeypatch.setattr(message, "version", lambda name: found)
    if fits:
        assert message.require_flower() == found
    else:
        with pytest.raises(ConfigError, match=rf"Flower {found}: fedloom is tested with 1.41 to 1.42; pip install"):
            message.require_flower()
