"""The page of a run and its Prometheus text: what they show, to whom, and that the port is only read."""

import http.client
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser

import pytest

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.flower.processes import free_ports
from fedloom.flower.status import Absence, Failure, LogRecord, NodeStatus, StatusWriter, read_status
from fedloom.flower.watch import served, watched
from fedloom.runs.run import run
from fedloom.runs.storage.log import new_row
from flower_world import config_of

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def board(tmp_path):
    made = StatusWriter(config_of(), tmp_path)
    made.begin("ab12", 0)
    for round_ in (1, 2):
        rows = [new_row(round_, "participants", 2.0), new_row(round_, "seconds_total", 1.5)]
        made.on_round(config_of(), round_, [*rows, new_row(round_, "accuracy", 0.3 * round_, "test", "global/global")])
    made.set_nodes(
        [NodeStatus(client=k, node=(EVIL, "8")[k], online=not k, samples=3) for k in (0, 1)],
        [Absence(node="9", reason=EVIL)],
    )
    made.set_progress(0, "training", 0.25, EVIL)
    made.set_scores(1, {"cosine": -0.5, "outlier": True})
    made.on_note(config_of(), LogRecord(f"refused: {EVIL}", "refused", round=2, client=1))
    made.set_wait("uploads of round 2", [0], 60.0)
    return made


@pytest.fixture
def port(board, tmp_path):
    (number,) = free_ports(1)
    with served(lambda: (read_status(tmp_path), Failure.read(tmp_path)), number):
        yield number


def ask(port, path="/", method="GET", **headers):
    """Status code, headers and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers=headers)
    reply = connection.getresponse()
    return reply.status, reply.headers, reply.read().decode()


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_the_page_escapes_all_that_nodes_say_and_allows_its_own_script_alone(port):
    code, headers, text = ask(port)
    assert code == 200
    page = Tags()
    page.feed(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert page.text.count(EVIL) == 4  # node, progress, absence, error
    assert not any(name.startswith("on") or name == "style" for _, attrs in page.tags for name in attrs)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert re.search(r"script-src 'sha256-[\w+/=]+'; connect-src 'self'", policy)
    assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")


def test_the_page_has_clients_as_rows_rounds_as_charts_and_names_for_screen_readers(port):
    text = ask(port)[2]
    page = Tags()
    page.feed(text)
    words = " ".join(page.text.split())
    assert "Running: 2 of 3 rounds are finished, accuracy 60.0 %. 1 of 2 nodes are online." in words
    assert "accuracy: 30.0 % in round 1, 60.0 % in round 2; lowest 30.0 %, highest 60.0 %" in words
    assert "training 25 %" in words
    assert "stands out, cosine -0.5" in words
    names = [tag for tag, _ in page.tags]
    assert {"header", "main", "footer", "caption", "h1"} <= set(names)
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    labelled = [attrs["aria-labelledby"] for _, attrs in page.tags if "aria-labelledby" in attrs]
    assert len(labelled) >= 8
    assert set(labelled) <= ids
    assert [attrs["role"] for tag, attrs in page.tags if tag == "svg"] == ["img", "img"]
    first_cells = re.findall(r'<th scope="row">(.*?)</th>', text)
    assert first_cells == ["1", "0", "1", "2"]  # who stands out comes first; then the rounds


def test_a_silent_server_and_the_error_that_ended_a_run_are_named(board, port, tmp_path):
    status = read_status(tmp_path).model_copy(update={"written": time.time() - 60.0})
    status.write(tmp_path)
    Failure(error="client 1 failed", traceback="in train\n  ZeroDivisionError: x", exit_code=1).write(tmp_path)
    text = ask(port)[2]
    assert "The server has written nothing for half a minute" in text
    assert "flower-failed.json: client 1 failed; ZeroDivisionError: x" in text
    (tmp_path / "flower-status.json").write_text("{")
    code, headers, text = ask(port)
    assert (code, headers["Content-Type"]) == (503, "text/plain; charset=utf-8")
    assert "damaged" in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("path", "method", "host", "code"),
    [
        ("/", "GET", "evil.example", 421),  # its name was made to resolve to the loopback
        ("/metrics", "GET", "evil.example:80", 421),
        ("/", "GET", "127.0.0.1.evil.example", 421),
        ("/", "GET", "", 421),
        ("/", "GET", "localhost:9000", 200),  # a forwarded port
        ("/?x=1", "GET", "[::1]:9000", 200),
        ("/", "POST", "localhost", 501),
        ("/", "DELETE", "localhost", 501),
        ("/../flower-status.json", "GET", "localhost", 404),
        ("/flower-status.json", "GET", "localhost", 404),
        ("/%2e%2e/flower-status.json", "GET", "localhost", 404),
        ("//etc/passwd", "GET", "localhost", 404),
        ("/" + 70_000 * "x", "GET", "localhost", 414),
    ],
)
def test_the_port_is_only_read_and_only_by_its_own_name(port, path, method, host, code):
    found, headers, text = ask(port, path, method, Host=host)
    assert found == code
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    if code != 200:
        assert headers["Content-Type"].startswith("text/plain")
        assert len(text.splitlines()) == 1


def test_garbage_and_visitors_that_leave_are_survived(port, capfd):
    for sent in (b"\x16\x03\x01\x00\xff\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n", b"GET / HT"):
        with socket.create_connection(("127.0.0.1", port)) as visitor:
            visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset, not closed
            visitor.sendall(sent)
    assert ask(port)[0] == 200
    assert capfd.readouterr().err == ""


def test_no_run_and_a_port_in_use_are_named_before_anything_runs(port, tmp_path):
    with pytest.raises(RunFolderError, match="name the folder of a run over Flower"):
        served(lambda: (read_status(tmp_path / "nothing"), None), free_ports(1)[0]).__enter__()
    with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 cannot be used .* name another with --port"):
        watched(config_of(), "run", port).__enter__()


def test_many_clients_are_listed_in_part_and_the_page_says_so(tmp_path):
    board = StatusWriter(config_of(), None)
    board.set_nodes([NodeStatus(client=k, node=f"{k}", online=k != 700, samples=1) for k in range(1000)])
    (number,) = free_ports(1)
    with served(lambda: (board.status, None), number):
        text = ask(number)[2]
    assert "1,000 clients: the 200 that need attention most" in text
    assert re.findall(r'<th scope="row">(.*?)</th>', text)[:2] == ["700", "0"]


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_simulation_has_the_page_the_same_numbers_and_no_further_file(tmp_path):
    config = config_of("local", evaluation={"protocol": "personal/local"})
    (number,) = free_ports(1)
    pages = []

    def look(stop):
        while not stop.wait(0.02):
            pages.append(ask(number)[2])

    with watched(config, "mine", number) as writer:
        stop = threading.Event()
        thread = threading.Thread(target=look, args=(stop,))
        thread.start()
        seen = run(config, out=tmp_path / "seen", callbacks=[writer])
        last = ask(number)[2]
        stop.set()
        thread.join()
    alone = run(config, out=tmp_path / "alone")
    assert seen.numbers["accuracy"] == alone.numbers["accuracy"]
    assert names_in(tmp_path / "seen") == names_in(tmp_path / "alone")
    assert "local, run mine" in last
    assert "Finished: 3 of 3 rounds" in " ".join(last.split())
    assert "accuracy of 4 clients: lowest" in last
    assert "online" not in re.findall(r"<th scope=.col.>(.*?)</th>", last)
    assert all("Traceback" not in page for page in pages)


def test_a_scrape_tells_how_the_run_is_now(port):
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus-client")
    code, headers, text = ask(port, "/metrics")
    assert (code, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found, of_clients = {}, {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            assert (sample.labels["run"], sample.labels["method"]) == ("ab12", "fedavg")
            values = of_clients if "client" in sample.labels else found
            values[sample.name, sample.labels.get("client")] = sample.value
    names = ("round", "rounds", "nodes", "waiting_clients", "refused_total", "failed", "round_seconds", "test")
    assert [found[f"fedloom_{name}", None] for name in names] == [2, 3, 1, 1, 1, 0, 1.5, 0.6]
    assert of_clients["fedloom_client_progress_ratio", "0"] == 0.25
    assert ("fedloom_client_progress_ratio", "1") not in of_clients
    assert (of_clients["fedloom_client_outlier", "0"], of_clients["fedloom_client_outlier", "1"]) == (0, 1)
    assert (of_clients["fedloom_client_online", "0"], of_clients["fedloom_client_online", "1"]) == (1, 0)


def test_the_command_serves_until_ctrl_c(board, tmp_path):
    (number,) = free_ports(1)
    words = ["flower", "watch", str(tmp_path), "--port", str(number)]
    command = [sys.executable, "-m", "fedloom", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline() == f"http://127.0.0.1:{number}/; stop with Ctrl-C\n"
        assert ask(number)[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == "stopped\n"
