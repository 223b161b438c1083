"""Flower that is not there, or is another one than was tested."""

from importlib.metadata import PackageNotFoundError

import pytest

from command_line import call
from fedloom.core.errors import ConfigError
from fedloom.flower import transport


def test_flower_that_is_not_installed_is_one_line(tmp_path, capsys, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(transport, "version", missing)
    code, _, err = call(capsys, "flower", "up", "demo", "--out", str(tmp_path / "run"))
    assert (code, err) == (2, "error: Flower is not installed; pip install 'fedloom[flower]'\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("found", "fits"), [("1.40.9", False), ("1.41.0", True), ("1.43.0", False), ("2.0", False)])
def test_only_tested_versions_of_flower_are_taken(found, fits, monkeypatch):
    monkeypatch.setattr(transport, "version", lambda name: found)
    if fits:
        assert transport.require_flower() == found
    else:
        with pytest.raises(ConfigError, match=rf"Flower {found}: fedloom is tested with 1.41 to 1.42; pip install"):
            transport.require_flower()
