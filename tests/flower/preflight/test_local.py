"""`fedloom flower up` makes the server's checks before it starts a process."""

from __future__ import annotations

import collections
import shutil

import pytest

pytest.importorskip("cryptography", reason="needs the extra flower")

from fedloom.core.errors import ConfigError
from fedloom.flower import certificates, transport
from fedloom.flower import up as module
from fedloom.flower.up import HOST, LocalFederation
from flower_world import config_of


@pytest.fixture(autouse=True)
def flower(monkeypatch):
    monkeypatch.setattr(transport, "version", lambda name: "1.42.0")
    monkeypatch.setattr(module, "executable", lambda name: f"/nowhere/{name}")


def federation(folder, say=pytest.fail):
    return LocalFederation(config_of(), folder, insecure=False, port=None, say=say)


def test_a_certificate_that_ends_tomorrow_is_said_and_the_federation_is_ready(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "_DAYS", 2)
    lines = []
    federation(tmp_path, lines.append)
    assert [line.split("/")[-1].split()[:3] for line in lines] == [
        ["ca.crt", "ends", "on"],
        ["server.crt", "ends", "on"],
    ]
    assert (tmp_path / "home" / "config.toml").is_file()


def test_a_certificate_of_another_authority_ends_it_in_one_line(tmp_path):
    federation(tmp_path)
    certificates.create(tmp_path / "others", [HOST], 0)
    shutil.copy(tmp_path / "others" / "ca.crt", tmp_path / "keys")
    with pytest.raises(ConfigError, match=r"server\.crt is not signed by .*ca\.crt"):
        federation(tmp_path)


def test_a_certificate_for_another_host_ends_it_in_one_line(tmp_path):
    certificates.create(tmp_path / "keys", ["server.example.org"], 0)
    federation(tmp_path)  # it is for the loopback, too
    shutil.rmtree(tmp_path / "keys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "LOOPBACK", "server.example.org")
        certificates.create(tmp_path / "keys", ["server.example.org"], 0)
    with pytest.raises(ConfigError, match=r"is for server\.example\.org, not for 127\.0\.0\.1; delete"):
        federation(tmp_path)


def test_a_full_disk_ends_it_in_one_line(tmp_path, monkeypatch):
    usage = collections.namedtuple("Usage", "total used free")(10**9, 10**9, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match=r"has 0 B free, and checkpoints need about .*; free space"):
        federation(tmp_path)


def test_two_errors_are_one_line_that_counts_the_other(tmp_path, monkeypatch):
    federation(tmp_path)
    (tmp_path / "keys" / "server.crt").unlink()
    (tmp_path / "keys" / "server.crt").mkdir()
    usage = collections.namedtuple("Usage", "total used free")(10**9, 10**9, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match=r"server\.crt is a folder, need .* \(and 1 more: fedloom flower check\)$"):
        federation(tmp_path)
