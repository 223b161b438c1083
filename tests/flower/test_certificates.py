"""Certificates and keys: what a federation creates itself, and one line for each that would fail."""

import re
import shutil
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("cryptography", reason="needs the extra flower")

from fedloom.flower import certificates
from fedloom.flower.certificates import key_findings, server_certificate_findings
from fedloom.flower.up import expiring_certificates

HOST = "server.example.org"


@pytest.fixture
def keys(tmp_path):
    certificates.create(tmp_path / "keys", [HOST], 2)
    return tmp_path / "keys"


def findings_of(keys, hosts=(HOST,), now=None):
    return server_certificate_findings(keys, hosts, now)


def error_of(findings):
    (error,) = [finding.text for finding in findings if finding.level == "error"]
    assert "\n" not in error
    return error


def test_a_good_certificate_is_one_line(keys):
    (finding,) = findings_of(keys)
    assert finding.level == "ok"
    assert finding.text.startswith(f"{keys / 'server.crt'} is for {HOST}, 127.0.0.1, until 20")


def test_one_that_ends_tomorrow_is_a_warning_with_its_date(keys, tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "_DAYS", 2)
    certificates.create(tmp_path / "short", [HOST], 0)
    findings = findings_of(tmp_path / "short")
    tomorrow = datetime.now(UTC) + timedelta(days=2, minutes=-5)
    assert [finding.text for finding in findings if finding.level == "warning"] == [
        f"{tmp_path / 'short' / name} ends on {tomorrow:%Y-%m-%d}, in 1 day" for name in ("ca.crt", "server.crt")
    ]
    assert "error" not in [finding.level for finding in findings]


@pytest.mark.parametrize(("days", "says"), [(400, "ended on 20"), (-1, "is valid from 20")])
def test_one_that_has_ended_or_not_begun_is_an_error(keys, days, says):
    errors = [f.text for f in findings_of(keys, now=datetime.now(UTC) + timedelta(days=days)) if f.level == "error"]
    assert len(errors) == 2
    assert says in errors[0]
    assert days > 0 or "this machine's clock says" in errors[0]


@pytest.mark.parametrize("host", ["other.example.org", "10.0.0.7", "::1"])
def test_one_for_another_host_is_an_error(keys, host):
    error = error_of(findings_of(keys, [HOST, host]))
    assert error.startswith(f"{keys / 'server.crt'} is for {HOST}, 127.0.0.1, not for {host}; delete the folder's .crt")


def test_one_without_the_loopback_is_an_error(tmp_path, monkeypatch):
    """Flower's SuperExec connects to 127.0.0.1, and `flwr run --stream` would hang."""
    monkeypatch.setattr(certificates, "LOOPBACK", HOST)
    certificates.create(tmp_path, [HOST], 0)
    monkeypatch.undo()
    assert "not for 127.0.0.1; delete" in error_of(findings_of(tmp_path))


def test_one_of_another_authority_is_an_error(keys, tmp_path):
    certificates.create(tmp_path / "others", [HOST], 0)
    shutil.copy(tmp_path / "others" / "ca.crt", keys)
    error = error_of(findings_of(keys))
    assert "server.crt is not signed by" in error
    assert "take the ca.crt of the folder that the server's certificate is from" in error


def test_a_key_that_does_not_fit_is_an_error(keys, tmp_path):
    certificates.create(tmp_path / "others", [HOST], 0)
    shutil.copy(tmp_path / "others" / "server.key", keys)
    assert error_of(findings_of(keys)).startswith(f"{keys / 'server.key'} is no key of {keys / 'server.crt'}; put its")


def test_a_wildcard_is_understood_as_the_connection_understands_it(tmp_path):
    certificates.create(tmp_path, ["*.example.org"], 0)
    assert [finding.level for finding in findings_of(tmp_path, ["server.example.org"])] == ["ok"]
    assert "not for example.com" in error_of(findings_of(tmp_path, ["example.com"]))


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda file: file.unlink(), "is missing; delete the folder's .crt"),
        (lambda file: (file.unlink(), file.mkdir()), "is a folder, need a file in PEM"),
        (lambda file: file.write_bytes(b""), "in PEM|no private key"),
        (lambda file: file.write_bytes(b"\xff\x00" * 99), "in PEM|no private key"),
        (lambda file: (file.unlink(), file.symlink_to("/dev/null")), "is no regular file|in PEM|cannot be read"),
    ],
)
def test_files_that_are_none_are_named(keys, name, spoil, says):
    spoil(keys / name)
    error = error_of(findings_of(keys))
    assert error.startswith(str(keys / name))
    assert re.search(says, error)


def test_keys_that_others_can_read_are_a_warning(keys):
    (keys / "server.key").chmod(0o644)
    (keys / "node-000000").chmod(0o640)
    for findings, name in ((findings_of(keys), "server.key"), (key_findings(keys / "node-000000"), "node-000000")):
        (warning,) = [finding.text for finding in findings if finding.level == "warning"]
        assert warning.endswith(f"so others can read it; run `chmod 600 {keys / name}`")


def test_a_public_key_of_another_node_is_an_error(keys):
    (finding,) = key_findings(keys / "node-000001")
    assert finding.text.startswith(f"{keys / 'node-000001'} is SHA256:")
    shutil.copy(keys / "node-000000.pub", keys / "node-000001.pub")
    assert "node-000001.pub is no public key of" in error_of(key_findings(keys / "node-000001"))


@pytest.mark.parametrize("content", [b"", b"hello", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_what_is_no_key_is_named(tmp_path, content):
    (tmp_path / "node").write_bytes(content)
    assert "no private key without a password" in error_of(key_findings(tmp_path / "node"))
    assert error_of(key_findings(tmp_path)) == (
        f"{tmp_path} is a folder, need a private key; name the file that `fedloom flower keys` wrote"
    )


def test_a_key_that_is_too_short_for_openssl_is_an_error(tmp_path, monkeypatch):
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    monkeypatch.setattr(ec, "generate_private_key", lambda curve: rsa.generate_private_key(65537, 1024))
    certificates.create(tmp_path, [HOST], 0)
    assert "server.crt cannot be used (" in error_of(findings_of(tmp_path))


# -- what is created --------------------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path):
    certificates.create(tmp_path, ["127.0.0.1", "server.example.org"], 2)
    return tmp_path


def mode(file):
    return oct(file.stat().st_mode & 0o777)


def test_what_is_made_passes_and_private_keys_are_their_owner_s_alone(folder):
    assert [finding.level for finding in findings_of(folder, ["127.0.0.1", "server.example.org"])] == ["ok"]
    private = ["ca.key", "server.key", "node-000000", "node-000001"]
    assert [mode(folder / name) for name in private] == ["0o600"] * 4
    assert (folder / "node-000000.pub").read_text().startswith("ecdsa-sha2-nistp384 ")


def test_keys_that_others_could_read_are_closed_and_links_stay(folder, tmp_path_factory):
    victim = tmp_path_factory.mktemp("outside") / "tool"
    victim.write_text("mine")
    victim.chmod(0o755)
    for name in ("ca.key", "server.key", "node-000000"):
        (folder / name).chmod(0o644)
    (folder / "other.key").symlink_to(victim)
    certificates.create(folder, ["127.0.0.1"], 2)
    assert [mode(folder / name) for name in ("ca.key", "server.key", "node-000000")] == ["0o600"] * 3
    assert mode(victim) == "0o755"


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


def test_what_is_said_of_certificates_that_ended_helps(folder):
    later = datetime.now(UTC) + timedelta(days=366)
    expired = [text.rpartition("/")[2].split(" on")[0] for text in expiring_certificates(folder, later)]
    assert expired == ["ca.crt ended", "server.crt ended"]
    for file in folder.glob("*.crt"):  # as the message says
        file.unlink()
    assert expiring_certificates(folder, later) == []
    node = (folder / "node-000000").read_bytes()
    certificates.create(folder, ["10.0.0.1"], 2)
    assert [finding.level for finding in findings_of(folder, ["10.0.0.1"])] == ["ok"]
    assert (folder / "node-000000").read_bytes() == node
