"""Certificates and keys that a federation makes itself, and what is said of bad ones."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("cryptography", reason="needs the extra flower")

from fedloom.core.errors import ConfigError
from fedloom.flower import certificates


@pytest.fixture
def folder(tmp_path):
    certificates.create(tmp_path, ["127.0.0.1", "server.example.org"], 2)
    return tmp_path


def test_what_is_made_passes_and_private_keys_are_their_owner_s_alone(folder):
    notes = []
    for host in ("127.0.0.1", "server.example.org"):
        certificates.check(folder, host, notes.append)
    assert notes == []
    private = ["ca.key", "server.key", "node-000000", "node-000001"]
    assert [oct((folder / name).stat().st_mode & 0o777) for name in private] == ["0o600"] * 4
    assert (folder / "node-000000.pub").read_text().startswith("ecdsa-sha2-nistp384 ")


def test_a_certificate_is_for_the_loopback_too_and_one_that_is_not_is_refused(tmp_path, monkeypatch):
    for number, hosts in enumerate((["server.example.org"], ["10.0.0.7", "127.0.0.1"])):
        certificates.create(tmp_path / str(number), hosts, 0)
        for host in (*hosts, "127.0.0.1"):
            certificates.check(tmp_path / str(number), host, pytest.fail)
    monkeypatch.setattr(certificates, "LOOPBACK", "superlink")  # one that an earlier version made
    certificates.create(tmp_path / "old", ["superlink"], 0)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"server\.crt is for superlink, not for 127\.0\.0\.1; delete the folder's"):
        certificates.check(tmp_path / "old", "superlink", pytest.fail)


def test_keys_that_others_could_read_are_closed_and_links_stay(folder, tmp_path_factory):
    victim = tmp_path_factory.mktemp("outside") / "tool"
    victim.write_text("mine")
    victim.chmod(0o755)
    for name in ("ca.key", "server.key", "node-000000"):
        (folder / name).chmod(0o644)
    (folder / "other.key").symlink_to(victim)
    certificates.create(folder, ["127.0.0.1"], 2)
    assert [oct((folder / name).stat().st_mode & 0o777) for name in ("ca.key", "server.key", "node-000000")] == [
        "0o600"
    ] * 3
    assert oct(victim.stat().st_mode & 0o777) == "0o755"


def test_a_key_is_not_written_through_a_link(tmp_path):
    victim, keys = tmp_path / "victim", tmp_path / "keys"
    keys.mkdir()
    (keys / "node-000000").symlink_to(victim)  # a link to nowhere is no key yet
    certificates.create(keys, ["127.0.0.1"], 1)
    assert not victim.exists()
    assert not (keys / "node-000000").is_symlink()


def test_what_is_there_stays(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    certificates.create(folder, ["127.0.0.1"], 2)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_server_of_the_authority_is_believed(folder):
    """By OpenSSL, as Flower's HTTP client does it."""
    import socket
    import ssl
    import threading

    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    here, there = socket.socketpair()

    def serve():
        with server.wrap_socket(there, server_side=True) as one:
            one.sendall(b"hello")

    thread = threading.Thread(target=serve)
    thread.start()
    client = ssl.create_default_context(cafile=folder / "ca.crt")
    with client.wrap_socket(here, server_hostname="127.0.0.1") as one:
        assert one.recv(5) == b"hello"
    thread.join()


def test_missing_foreign_and_damaged_certificates_are_named(folder):
    with pytest.raises(ConfigError, match=r"is for 127.0.0.1, server.example.org, not for 10.0.0.1"):
        certificates.check(folder, "10.0.0.1", print)
    (folder / "server.crt").write_text("hello")
    with pytest.raises(ConfigError, match="no certificate in PEM"):
        certificates.check(folder, "127.0.0.1", print)
    (folder / "server.crt").unlink()
    with pytest.raises(ConfigError, match=r"server.crt is missing; delete .* `fedloom flower keys"):
        certificates.check(folder, "127.0.0.1", print)


def test_certificates_that_end_are_named(folder):
    notes, made = [], datetime.now(UTC)
    certificates.check(folder, "127.0.0.1", notes.append, now=made + timedelta(days=354, hours=12))
    assert [note.rpartition(", ")[2] for note in notes] == ["in 10 days"] * 2
    with pytest.raises(ConfigError, match="ended on"):
        certificates.check(folder, "127.0.0.1", notes.append, now=made + timedelta(days=366))


def test_what_is_said_of_certificates_that_ended_helps(folder):
    later = datetime.now(UTC) + timedelta(days=366)
    assert [text.rpartition("/")[2].split()[:2] for text in certificates.expiring(folder, later)] == [
        ["ca.crt", "ended"],
        ["server.crt", "ended"],
    ]
    for file in folder.glob("*.crt"):  # as the message says
        file.unlink()
    assert certificates.expiring(folder, later) == []
    node = (folder / "node-000000").read_bytes()
    certificates.create(folder, ["10.0.0.1"], 2)
    certificates.check(folder, "10.0.0.1", print)
    assert (folder / "node-000000").read_bytes() == node
    assert oct((folder / "server.key").stat().st_mode & 0o777) == "0o600"
