"""The process that a node keeps: one for all messages, which ends with the node."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml

from fedloom._version import __version__
from fedloom.core.errors import ConfigError
from fedloom.flower import resident
from fedloom.flower.message import Message
from fedloom.flower.wire import ErrorReply, JoinReply, JoinRequest, read
from flower_world import config_of

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="a node keeps a process on Linux alone")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A node, whose parent is a process that sleeps, and what joins it."""
    short = tempfile.mkdtemp(prefix="fl-")  # a socket's path has at most 107 characters
    monkeypatch.setattr("tempfile.tempdir", short)
    config = config_of()
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config.resolved()))
    parent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    descriptor = os.pidfd_open(parent.pid)
    request = JoinRequest(run="ab", fingerprint=config.fingerprint(), version=__version__)
    yield resident._Node(file, 1, tmp_path / "states", ""), descriptor, parent, request.to_message()
    parent.kill()
    parent.wait()
    os.close(descriptor)
    until(lambda: not [*Path(short).glob("*/*")])
    shutil.rmtree(short)


def asked(node, descriptor, message):
    with resident._connection(node, descriptor) as connection:
        resident._send(connection, message)
        return resident._receive(connection)


def process_of(path):
    """The process that was started for a socket."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(path).encode() in file.read_bytes():
                return int(file.parent.name)
    raise AssertionError("no process")


def until(true):
    ends = time.monotonic() + 60
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_one_process_answers_all_messages_until_its_parent_ends(place):
    node, descriptor, parent, message = place
    path = resident._socket_file(node)
    assert read(asked(node, descriptor, message), JoinReply).client == 1
    pid = process_of(path)
    assert read(asked(node, descriptor, message), JoinReply).client == 1
    assert process_of(path) == pid
    part = node.folder / "parts" / "client-000001" / ("0" * 64) / "00000"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"1")
    parent.kill()
    until(lambda: not path.exists())
    assert part.exists()  # a SuperNode that was killed starts again, and fetches only what is missing


def test_a_message_without_a_body_is_whole_once_its_facts_are_sent():
    ours, theirs = socket.socketpair()

    class Closing:
        def sendall(self, data):
            ours.sendall(data)
            theirs.close()  # as a process does that has answered

    with ours:
        resident._send(Closing(), Message("{}", b""))


def test_one_that_is_killed_is_started_again(place):
    node, descriptor, _, message = place
    asked(node, descriptor, message)
    with resident._connection(node, descriptor) as connection:
        os.kill(process_of(resident._socket_file(node)), signal.SIGKILL)
        assert resident._receive(connection) is None
    assert read(asked(node, descriptor, message), JoinReply).client == 1


def test_a_config_that_is_wrong_is_one_line(place, tmp_path):
    node, descriptor, _, message = place
    node.config.write_text("method: fedavgg\nscenario: {source: digits}\n")
    assert "scenario.alpha is missing" in read(asked(node, descriptor, message), ErrorReply).error


def test_other_data_are_those_of_another_process(place, tmp_path):
    node, data = place[0], tmp_path / "data.yaml"
    table = tmp_path / "table.csv"
    table.write_text("1")
    data.write_text("source: csv\nfiles: [{train: table.csv}]\n")
    node = node._replace(data=str(data))
    before = resident._socket_file(node)
    assert resident._socket_file(node) == before
    table.write_text("22")
    after = resident._socket_file(node)
    assert (before == after, before.name[:16] == after.name[:16]) == (False, True)


def test_a_folder_that_others_can_enter_is_refused(place):
    resident._socket_file(place[0]).parent.chmod(0o755)
    with pytest.raises(ConfigError, match="only this user can enter"):
        resident._socket_file(place[0])


def test_loading_the_app_of_a_message_loads_no_torch():
    code = "import sys, fedloom.flower.resident; print(sys.modules.keys() & {'torch', 'numpy', 'pydantic'})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
