"""A SuperNode under supervision: a script stands in for it, whose heartbeats and end are scripted."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from fedloom.flower import supernode
from fedloom.flower.supernode import change_requests, supernode_options, supervise

# Arguments: the pipe, a folder, and what each start does in turn. Each start writes its id and its child's to `pids`.
STUB = """
import os, pathlib, subprocess, sys, time
pipe, folder, *acts = sys.argv[1:]
pids = pathlib.Path(folder) / "pids"
number = len(pids.read_text().splitlines()) if pids.exists() else 0
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
with pids.open("a") as file:
    print(os.getpid(), child.pid, file=file)
for act in acts[min(number, len(acts) - 1)].split():
    if act == "beat":
        os.write(int(pipe), b".")
    elif act == "end":
        child.kill()
        sys.exit(7)
    else:
        time.sleep(float(act))
"""
SILENCE = "no heartbeat of the SuperNode was answered for"


@pytest.fixture(autouse=True)
def few_starts(monkeypatch):
    monkeypatch.setattr(supernode, "_MOST_STARTS", 3)


def supervised(folder: Path, *acts: str, faults: list[str] | None = None) -> tuple[str, list[str]]:
    """Return why the supervision ended, and all that was said. faults: results of the tests of the connection."""
    said: list[str] = []
    find_fault = (lambda: faults.pop(0) if faults else "") if faults is not None else lambda: ""
    command, times = [sys.executable, "-c", STUB], {"missed": 2, "interval": 1.0, "first_pause": 0.01}
    return supervise([str(folder), *acts], find_fault, said.append, command=command, **times), said


def pids(folder: Path) -> list[list[int]]:
    return [[int(pid) for pid in line.split()] for line in (folder / "pids").read_text().splitlines()]


def are_gone(ids: list[int]) -> bool:
    """Wait shortly until all have ended: killed processes take a moment, and a zombie has ended."""
    for _ in range(100):
        stats = [path.read_text() for pid in ids if (path := Path(f"/proc/{pid}/stat")).exists()]
        if all(stat.rpartition(")")[2].split()[0] in "ZX" for stat in stats):
            return True
        time.sleep(0.05)
    return False


def test_a_node_that_never_joined_is_not_started_again(tmp_path):
    assert supervised(tmp_path, "end") == ("the SuperNode ended with code 7; its output above may say why", [])


def test_a_node_that_has_joined_is_started_again_with_growing_pauses(tmp_path):
    reason, said = supervised(tmp_path, "beat end", "end")
    assert reason.startswith("the SuperNode ended with code 7")
    assert said == [f"the SuperNode ended with code 7; it is started again in {s} s" for s in ("0.01", "0.02", "0.04")]
    assert len(pids(tmp_path)) == 4


def test_a_node_that_is_alive_and_offline_is_replaced_with_its_children(tmp_path):
    _, said = supervised(tmp_path, "beat 60", "beat end", "end")
    assert said[0] == f"{SILENCE} 3.00 s, although the SuperLink answers; it is started again in 0.01 s"
    assert are_gone(pids(tmp_path)[0])


def test_a_node_is_left_alone_while_the_link_is_down(tmp_path):
    """One good test of the connection between two bad ones proves nothing: Flower may be about to try again."""
    _, said = supervised(tmp_path, "beat 4.5 beat end", "end", faults=["no route", "", "no route", "no route"])
    assert said[0] == f"{SILENCE} 2.00 s: no route"
    assert "the SuperNode is online again" in said
    assert not any("although" in line for line in said)


def test_an_interrupt_ends_the_node_with_its_children(tmp_path):
    def interrupt() -> str:
        if not (tmp_path / "pids").exists():
            return "it has not started its child yet"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervise([str(tmp_path), "60"], interrupt, print, missed=1, interval=1.0, command=[sys.executable, "-c", STUB])
    assert are_gone(pids(tmp_path)[0])


def test_only_answered_heartbeats_are_reported(monkeypatch):
    status = {"/v1/fleet/send-node-heartbeat": 200, "/v1/fleet/pull-messages": 200, "/down/send-node-heartbeat": 503}
    monkeypatch.setattr(httpx.Client, "send", httpx.Client.send)  # restored afterwards
    pipe, reported = os.pipe()
    change_requests(reported)
    transport = httpx.MockTransport(lambda request: httpx.Response(status[request.url.path]))
    with httpx.Client(transport=transport, base_url="http://superlink") as client:
        for path in status:
            client.post(path)
    os.close(reported)
    assert os.read(pipe, 10) == b"."
    os.close(pipe)


@pytest.mark.parametrize(
    "text", ["_ssl.c:989: The handshake operation timed out", "[SSL: UNEXPECTED_EOF_WHILE_READING]"]
)
def test_a_broken_connection_is_no_reason_to_give_up_for_good(text, monkeypatch):
    """Flower's rule is that an error is final if its text holds one of these words."""

    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("certificate verify failed" if request.url.path == "/wrong" else text)

    monkeypatch.setattr(httpx.Client, "send", httpx.Client.send)  # restored afterwards
    change_requests(-1)
    with httpx.Client(transport=httpx.MockTransport(fail), base_url="https://superlink") as client:
        with pytest.raises(httpx.ConnectTimeout) as caught:
            client.post("/v1/fleet/pull-messages")
        assert not any(word in str(caught.value).lower() for word in ("certificate", "ssl", "tls"))
        assert str(caught.value.__cause__) == text
        with pytest.raises(httpx.ConnectTimeout, match="certificate verify failed"):
            client.post("/wrong")


def test_a_node_whose_supervisor_was_killed_ends_at_its_next_heartbeat():
    code = """
import httpx, os, time
from fedloom.flower.supernode import change_requests
pipe, reported = os.pipe()
change_requests(reported)
os.close(pipe)
with httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200))) as client:
    client.post("http://superlink/v1/fleet/send-node-heartbeat")
time.sleep(60)
"""
    began = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code], timeout=50).returncode == -15
    assert time.monotonic() - began < 40


def test_options_name_full_paths_and_leave_out_what_is_not_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"authority": Path("ca.crt"), "key": Path("k"), "state": Path("states"), "data": None}
    words = supernode_options("a:8000", 3, 9000, **files)
    assert words[6:8] == ["--node-config", f'partition-id=3 state="{tmp_path}/states"']
    assert words[8:] == ["--root-certificates", "ca.crt", "--auth-supernode-private-key", "k"]
    assert supernode_options("a:8000", 3, 9000, authority=None, key=Path("k"))[-2:] == ["partition-id=3", "--insecure"]
