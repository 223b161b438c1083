"""Real processes on this machine: TLS, node keys, faults. Minutes: needs the extra `flower`, and FEDLOOM_REAL=1."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.bad_link import Link
from fedloom.flower.certificates import make_node_key
from fedloom.flower.node import Node
from fedloom.flower.node_registry import FederationError
from fedloom.flower.processes import family
from fedloom.flower.server import serve
from fedloom.flower.status import read_status
from fedloom.flower.up import LocalFederation, collect_result, up
from fedloom.flower.wire import Message
from fedloom.runs.run import run
from flower_world import Faulty, config_of
from hostile_node import hostile

pytest.importorskip("flwr", reason="needs the extra flower")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(os.environ.get("FEDLOOM_REAL") != "1", reason="starts ten processes: FEDLOOM_REAL=1 runs it"),
]


DEALT = {"source": "digits", "partition": "dirichlet", "alpha": 0.5, "clients": 3, "val": 0.0}
STATED = 1_000  # bytes beside payloads, for each node, second and direction: docs/deployment/measurements.md


def final(out, round_):
    return (out / "checkpoint" / f"round-{round_:06d}" / "server.safetensors").read_bytes()


def until(true, seconds):
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.2)


@pytest.mark.parametrize("method", ["fedsc", "fedco2", "fedssa"])
def test_three_nodes_with_tls_and_keys_have_the_bits_of_the_simulation(method, tmp_path):
    protocol = "global/global" if method == "fedsc" else "personal/local"
    config = config_of(method, scenario=DEALT, rounds=2, evaluation={"every": 2, "protocol": protocol})
    result = up(config, tmp_path / "real", say=print)
    simulated = run(config, out=tmp_path / "simulated")
    assert final(tmp_path / "real", 2) == final(tmp_path / "simulated", 2)
    assert result.numbers["accuracy"] == simulated.numbers["accuracy"]


def test_a_killed_node_rejoins_a_wrong_key_is_refused_and_a_killed_server_goes_on(tmp_path):
    """All three clients are needed in each round, so the bits are those of a simulation."""
    waits = {"min_clients": 3, "round_timeout": 300.0, "join_timeout": 200.0}
    config = config_of("scaffold", scenario=DEALT, rounds=4, evaluation={"every": 4}, flower=waits)
    out = tmp_path / "real"
    with LocalFederation(config, tmp_path / "there", insecure=False, port=None, say=print) as there:
        make_node_key(tmp_path / "stranger")
        stranger = there.start_node(0, key=tmp_path / "stranger", name="stranger")
        assert stranger.wait(60) != 0
        process = there.run(out)
        until((out / "checkpoint" / "round-000001").is_dir, 200)
        for pid in family(there.processes.pid_of("node-000001")):
            os.kill(pid, signal.SIGKILL)
        started_until_it_stays(there, 1)
        until((out / "checkpoint" / "round-000002").is_dir, 300)
        (server,) = [pid for pid in family(there.processes.pid_of("superlink")) if _is_server(pid)]
        os.kill(server, signal.SIGKILL)
        process.wait(120)
        with pytest.raises(FederationError, match="repeat the command"):
            collect_result(out, there.processes)
        there.run(out).wait(400)
        result = collect_result(out, there.processes)
    assert result.numbers["rounds"] == 4
    assert not any("not on its disk" in text for text in result.numbers["degenerate"])
    assert [seat.round for seat in read_status(out).nodes] == [4, 4, 4]
    run(config, out=tmp_path / "simulated")
    assert final(out, 4) == final(tmp_path / "simulated", 4)


def started_until_it_stays(there, client):
    """As a service manager does: Flower turns a killed node away until it has missed two heartbeats."""
    for _ in range(10):
        with contextlib.suppress(subprocess.TimeoutExpired):
            there.start_node(client).wait(30)
            continue
        return
    raise AssertionError("the node never came in")


def residents(folder):
    """The processes that nodes below a folder keep."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes()
            if b"fedloom.flower.resident" in words and str(folder).encode() in words:
                yield int(file.parent.name)


def test_a_killed_process_of_a_node_is_named_and_costs_no_round(tmp_path):
    waits = {"min_clients": 3, "round_timeout": 400.0, "heartbeat": 1.0, "part_bytes": 1 << 16}
    config = config_of("scaffold", scenario=DEALT, rounds=3, local_epochs=3000, evaluation={"every": 3}, flower=waits)
    out = tmp_path / "real"
    with LocalFederation(config, tmp_path / "there", insecure=True, port=None, say=print) as there:
        process = there.run(out)
        until((out / "checkpoint" / "round-000001").is_dir, 300)
        until(lambda: any(n.progress and n.progress.phase == "training" for n in read_status(out).nodes), 200)
        log = there.processes.log("run")
        for _ in range(3):  # one that is killed between two messages goes on, and nobody notices
            until(lambda: [*residents(tmp_path)], 60)
            os.kill(next(residents(tmp_path)), signal.SIGKILL)
            with contextlib.suppress(AssertionError):
                until(lambda: "is lost, and is sent once more" in log.read_text(), 30)
                break
        process.wait(400)
        collect_result(out, there.processes)
        text = log.read_text()
    assert "is lost, and is sent once more" in text
    run(config, out=tmp_path / "simulated")
    assert final(out, 3) == final(tmp_path / "simulated", 3)
    until(lambda: not [*residents(tmp_path)], 20)


class Counted(LocalFederation):
    """Its nodes reach the SuperLink through a link that counts."""

    def _start_superlink(self):
        super()._start_superlink()
        self.link = Link(self.port)
        self.port = self.link.port


def test_bytes_on_the_sockets_are_those_reported_and_the_overhead_that_the_page_states(tmp_path):
    large = {"name": "mlp", "hidden": [1000, 1000]}
    config = config_of("fedavg", model=large, scenario={**DEALT, "clients": 2}, rounds=2, evaluation={"every": 2})
    out, began = tmp_path / "real", time.monotonic()
    with Counted(config, tmp_path / "there", insecure=False, port=None, say=print) as there:
        there.run(out).wait(300)
        there.link.close()
        up, down, seconds = *there.link.carried.values(), time.monotonic() - began
        result = collect_result(out, there.processes)
    print(f"up {up} of {result.numbers['bytes_up']}, down {down} of {result.numbers['bytes_down']}, {seconds:.0f} s")
    least, more = result.numbers["bytes_up"], 2 * STATED * seconds
    assert least <= up <= 1.05 * least + more
    least = result.numbers["bytes_down"]
    assert least <= down <= 1.05 * least + more


class WithHostileNodes(LocalFederation):
    """Client 1 sends NaN, then 100 MB; client 2 joins as client 0. peak: memory of the server's app, in kB."""

    hostile: Path
    peak = 0

    def start_node(self, client, key=None, name=None):
        start = self.processes.start
        words = {1: hostile(self.hostile, "upload"), 2: hostile(self.hostile, "thief")}.get(client, [])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.processes, "start", lambda name, command: start(name, [*words, *command]))
            return super().start_node(client, key, name)

    def watch(self, process):
        while process.poll() is None:
            for pid in family(self.processes.pid_of("superlink")):
                with contextlib.suppress(OSError):
                    if _is_server(pid):
                        status = Path(f"/proc/{pid}/status").read_text()
                        self.peak = max(self.peak, int(status.partition("VmHWM:")[2].split()[0]))
            time.sleep(0.5)


def test_hostile_nodes_cost_themselves_their_rounds_and_not_the_run(tmp_path, monkeypatch):
    """(i) an upload with NaN, (ii) an oversized one, (iii) another client's id; beside them a proxy that is dead."""
    monkeypatch.setattr(WithHostileNodes, "hostile", tmp_path / "hostile", raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    wait = {"join_timeout": 20.0, "round_timeout": 60.0}
    config = config_of("fedavg", scenario=DEALT, rounds=2, evaluation={"every": 2}, flower=wait)
    out, began = tmp_path / "real", time.monotonic()
    with WithHostileNodes(config, tmp_path / "there", insecure=False, port=None, say=print) as there:
        there.watch(there.run(out))
        result = collect_result(out, there.processes)
        log = there.processes.log("run").read_text()
    print(f"{time.monotonic() - began:.0f} s; the server's app had at most {there.peak // 1024} MB")
    status = read_status(out)
    assert (result.numbers["rounds"], status.refused) == (2, 2)
    assert "round 1: the upload of client 1 is refused: model/" in log
    assert "not all numbers are finite" in log
    assert "round 2: the upload of client 1 is refused: an unusable reply: more than" in log
    assert [seat.round for seat in status.nodes] == [2, 0]
    (absence,) = status.absent
    assert absence.client == 2
    assert "is that of client 2, and it joins as client 0" in absence.reason
    (told,) = result.numbers["degenerate"]
    assert told.startswith("client 2 never took part: node ")
    assert "it joins as client 0" in told

    config_ = config.model_copy(update={"flower": config.flower.model_copy(update={"join_timeout": 0.1})})
    nodes = {client: Node(config, client, tmp_path / "states", config.scenario.build(config.seed)) for client in (0, 1)}
    refused = Faulty(nodes, lambda request, a: Message(a.facts) if (request.do, request.client) == ("train", 1) else a)
    serve(config_, refused, out=tmp_path / "expected")
    assert final(out, 2) == final(tmp_path / "expected", 2)


def _is_server(pid):
    return b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()
