"""A node's way to the server, with a server of this process on the loopback."""

import contextlib
import http.server
import re
import ssl
import threading
import time

import pytest

pytest.importorskip("cryptography", reason="needs the extra flower")

from fedloom.core.errors import ConfigError
from fedloom.flower import certificates
from fedloom.flower.preflight import connection_findings, parse_address
from fedloom.flower.processes import free_ports


class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_error(404)  # which has a date

    def log_message(self, *arguments):
        pass


class Undated(Handler):
    def date_time_string(self, timestamp=None):
        return "soon"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextlib.contextmanager
def serving(keys=None, handler=Handler):
    """Serve on the loopback; yield the address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *arguments: None  # a node that does not believe the certificate
    if keys is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys / "server.crt", keys / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def keys(tmp_path):
    certificates.create(tmp_path / "keys", ["server.example.org"], 0)
    return tmp_path / "keys"


def error_of(address, authority, clock=time.time):
    (error,) = [finding for finding in connection_findings(address, authority, clock) if finding.level == "error"]
    assert "\n" not in error.text
    return error.text


def test_a_good_way_is_three_lines(keys):
    with serving(keys) as address:
        findings = list(connection_findings(address, keys / "ca.crt"))
    assert [(finding.subject, finding.level) for finding in findings] == [
        ("address", "ok"), ("certificate", "ok"), ("clock", "ok"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "level", "says"),
    [
        (420, "error", r"this machine's clock is (6\.9\d|7\.0\d) min ahead of the server's; set it by NTP"),
        (8, "error", r"[789]\.\d+ s ahead of the server's"),
        (-400, "error", r"6\.6\d min behind the server's"),
        (-100, "warning", r"1\.6\d min behind the server's"),
        (0, "ok", "agrees"),
    ],
)
def test_a_wrong_clock_is_named_with_its_difference(keys, seconds, level, says):
    with serving(keys) as address:
        clock = list(connection_findings(address, keys / "ca.crt", lambda: time.time() + seconds))[-1]
    assert (clock.subject, clock.level) == ("clock", level)
    assert re.search(says, clock.text)


def test_a_clock_that_is_years_behind_is_told_beside_the_certificate(keys):
    """The certificate has not begun by this clock; the second line says why."""
    with serving(keys) as address:
        findings = list(connection_findings(address, keys / "ca.crt", lambda: time.time() - 3e8))
    assert [finding.level for finding in findings] == ["ok", "error", "error"]
    assert "is valid from" in findings[1].text
    assert "behind the server's" in findings[2].text


def test_a_server_without_tls_is_reached_without_an_authority():
    with serving() as address:
        assert [finding.subject for finding in connection_findings(address, None)] == ["address", "clock"]


def test_a_proxy_of_the_environment_is_a_warning_without_its_password(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@proxy.example.org:3128")
    monkeypatch.delenv("REQUEST_METHOD", raising=False)
    with serving() as address:
        (_, _, proxy) = connection_findings(address, None)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert len(list(connection_findings(address, None))) == 2
    assert (proxy.subject, proxy.level) == ("address", "warning")
    assert "through the proxy 'proxy.example.org:3128' of the environment" in proxy.text
    assert "secret" not in proxy.text


def test_a_server_without_a_date_is_a_warning():
    with serving(handler=Undated) as address:
        (_, clock) = connection_findings(address, None)
    assert (clock.level, clock.subject) == ("warning", "clock")
    assert "compare the clocks manually" in clock.text


def test_a_certificate_that_ends_tomorrow_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "_DAYS", 2)
    certificates.create(tmp_path, [], 0)
    with serving(tmp_path) as address:
        (warning,) = [f.text for f in connection_findings(address, tmp_path / "ca.crt") if f.level == "warning"]
    assert warning.startswith(f"the certificate of {address} ends on 20")
    assert warning.endswith("in 1 day")


def test_a_certificate_of_another_authority_is_an_error(keys, tmp_path):
    certificates.create(tmp_path / "others", [], 0)
    with serving(keys) as address:
        error = error_of(address, tmp_path / "others" / "ca.crt")
    assert error.startswith(f"the certificate of {address} is not signed by {tmp_path / 'others' / 'ca.crt'} (")


def test_a_certificate_for_another_host_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "LOOPBACK", "server.example.org")
    certificates.create(tmp_path, ["server.example.org"], 0)
    with serving(tmp_path) as address:
        error = error_of(address, tmp_path / "ca.crt")
    assert f"the certificate of {address} is for server.example.org, not for 127.0.0.1; call the server as" in error


def test_a_server_that_speaks_no_tls_is_an_error(keys):
    with serving() as address:
        assert f"{address} speaks no TLS" in error_of(address, keys / "ca.crt")


def test_a_port_at_which_nobody_listens_is_an_error(keys):
    (port,) = free_ports(1)
    error = error_of(f"127.0.0.1:{port}", keys / "ca.crt")
    assert f"127.0.0.1:{port} [127.0.0.1] cannot be reached (Connection refused); start the SuperLink" in error


@pytest.mark.parametrize(
    "address", ["", "server", "server:", ":8000", "server:0", "server:65536", "server:²", "s:8000/x"]
)
def test_what_is_no_address_is_an_error(address):
    with pytest.raises(ConfigError, match=r"need host:port, e\.g\. server"):
        parse_address(address)


def test_an_authority_that_is_a_folder_or_no_certificate_is_an_error(keys, tmp_path):
    assert error_of("127.0.0.1:1", tmp_path).startswith(
        f"{tmp_path} is a folder, need a certificate in PEM; get ca.crt"
    )
    (tmp_path / "ca.crt").write_text("hello")
    assert "ca.crt: no certificate in PEM; get ca.crt from" in error_of("127.0.0.1:1", tmp_path / "ca.crt")


def test_names_that_no_dns_takes_are_one_line():
    for host in ("a" * 300, "..", "x y"):
        assert "does not resolve" in error_of(f"{host}:8000", None)
