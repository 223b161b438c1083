"""The commands of the deployment pages, run as a reader types them: with processes as nodes, and folders as machines.

Every command, config and file is taken from the pages' text. `SUBSTITUTIONS` is all that changes before a command runs.
The quick tests count that every command of the pages is run here, or says why not.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from fedloom import __version__
from fedloom.flower.processes import ChildProcesses, free_ports
from fedloom.flower.status import read_status
from fedloom.results.result import Result
from flower_world import listens
from typed_commands import Typed, block_of, commands_of

PAGES = Path(__file__).parents[2] / "docs" / "deployment"
TUTORIAL, OPERATIONS = PAGES / "tutorial.md", PAGES / "operations.md"
ON_ONE_MACHINE, THREE, ON_RAY = (
    "2. Rehearse on one machine",
    "3. Three machines with separate data",
    "On Flower's simulation runtime",
)
# The sections whose commands a test below runs, all of them in their order.
RUN = {
    (TUTORIAL.name, THREE),
    (TUTORIAL.name, ON_ONE_MACHINE),
    (OPERATIONS.name, ON_RAY),
    (OPERATIONS.name, "Before the start"),
    (OPERATIONS.name, "Watch a federation"),
    (OPERATIONS.name, "Status page"),
    (OPERATIONS.name, "Prometheus"),
    (OPERATIONS.name, "Who may join"),
    (OPERATIONS.name, "Renew the certificate"),
    (OPERATIONS.name, "Add a node"),
    (OPERATIONS.name, "Remove a node"),
}
# What no test can run, and why.
NOT_RUN = {
    "pip wheel . --no-deps": "needs a package index for what builds the wheel, and the repository",
    f"pip install './fedloom-{__version__}-py3-none-any.whl[flower]'": "needs a package index, for Flower",
    "pip install 'fedloom[flower]'": "needs a package index; tests/test_extras.py checks that the extra exists",
    "pip install 'flwr[simulation]'": "needs a package index; the environment of this test has Ray already",
    "flower-supernode --trusted-entities FILE": "needs an app that Flower's Hub has signed",
    "flwr run @account/app": "needs an account at Flower's Hub",
}
# The machines are folders of this one and have one loopback: hosts become its address, machines' paths their folders,
# and fixed ports free ones. Copies over the network become copies. `{...}` is filled in by `Machines`. The run has
# fewer rounds.
SUBSTITUTIONS = [
    ("scp ", "cp "),
    ("node-0.example.org:/srv/fedloom", "{root}/node-0"),
    ("node-1.example.org:/srv/fedloom", "{root}/node-1"),
    ("node-2.example.org:/srv/fedloom", "{root}/node-2"),
    ("server.example.org", "127.0.0.1"),
    ("0.0.0.0", "127.0.0.1"),
    (":8000", ":{superlink_port}"),
    ("--port 8000", "--port {superlink_port}"),
    ("flower check server ", "flower check server --port {superlink_port} "),
    ("flower node ", "flower node --port {own_port} "),
    ("flower metrics ", "flower metrics --port {metrics_port} "),
    ("flower watch ", "flower watch --port {page_port} "),
    ("/srv/fedloom", "{machine}"),
    ("/var/lib/fedloom", "{machine}/states"),
    ("SHA256:...", "{fingerprint}"),
    ("NODE-ID", "{node_id}"),
    ("rounds: 20", "rounds: 1"),
]
STAYS = ("flower-superlink", "fedloom flower node", "fedloom flower metrics", "fedloom flower watch")
_COMMAND_SECONDS = 300.0
_START_SECONDS = 120.0

try:
    version("flwr")
    HAS_FLOWER = True
except PackageNotFoundError:
    HAS_FLOWER = False
real = pytest.mark.skipif(
    not HAS_FLOWER or os.environ.get("FEDLOOM_REAL") != "1", reason="starts processes: FEDLOOM_REAL=1 runs it"
)


def all_commands() -> list[Typed]:
    return [command for page in sorted(PAGES.glob("*.md")) for command in commands_of(page)]


def in_section(page: Path, section: str) -> list[Typed]:
    return [command for command in commands_of(page) if command.section == section and command.text not in NOT_RUN]


def test_every_command_of_the_pages_is_run_or_says_why_not() -> None:
    commands = all_commands()
    left_out = [
        command for command in commands if (command.page, command.section) not in RUN and command.text not in NOT_RUN
    ]
    assert not left_out
    assert NOT_RUN.keys() <= {command.text for command in commands}
    assert {(command.page, command.section) for command in commands} >= RUN
    assert len(commands) >= 45


def test_every_substitution_is_needed() -> None:
    texts = [command.text for command in all_commands()] + [block_of(TUTORIAL, "source: nodes")]
    texts.append(block_of(TUTORIAL, "[superlink.hospitals]"))
    assert [old for old, _ in SUBSTITUTIONS if not any(old in text for text in texts)] == []


def test_machines_are_named_and_own_programs_have_the_options_that_are_typed() -> None:
    from typer.testing import CliRunner

    from fedloom.cli.app import app

    assert {command.machine for command in all_commands()} == {"server", "node 0", "node 1", "node 2"}
    for words in {tuple(shlex.split(command.text)) for command in all_commands() if command.program == "fedloom"}:
        path = [word for word in words[1:4] if word in {"flower", "check"}]
        usage = CliRunner().invoke(app, [*words[1 : len(path) + 2], "--help"])
        text = re.sub(r"\x1b\[[0-9;]*m", "", usage.output)
        assert usage.exit_code == 0, words
        assert [word for word in words if word.startswith("--") and word not in text] == []


class Machines:
    """The machines of the pages: folders below `root`, on which commands are typed."""

    def __init__(self, root: Path) -> None:
        self.root, self.names = root, ("server", "node 0", "node 1", "node 2")
        superlink, metrics, page, *own = free_ports(3 + len(self.names))
        self.filled = {"root": str(root), "superlink_port": superlink, "metrics_port": metrics, "page_port": page}
        self._own_ports = dict(zip(self.names, own, strict=True))
        programs = root / "bin"
        programs.mkdir(parents=True)
        (programs / "fedloom").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fedloom "$@"\n')
        (programs / "fedloom").chmod(0o755)
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}
        self.processes = {}
        for name in self.names:
            self.folder(name).mkdir()
            home = {"PATH": path, "FLWR_HOME": str(self.folder(name) / "flwr"), "COLUMNS": "200"}
            self.processes[name] = ChildProcesses(root / "logs" / name, {**quiet, **home})
        self.staying: list[Typed] = []

    def folder(self, name: str) -> Path:
        return self.root / name.replace(" ", "-")

    def as_typed(self, text: str, machine: str) -> str:
        for old, new in SUBSTITUTIONS:
            text = text.replace(old, new)
        own = {"machine": self.folder(machine), "own_port": self._own_ports[machine]}
        for name, value in {**self.filled, **own}.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text

    def write(self, machine: str, name: str, text: str) -> None:
        file = self.folder(machine) / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(self.as_typed(text, machine))

    def run(self, command: Typed, expected: int = 0) -> str:
        """Type a command, and return what it prints; one that stays is started, and awaited until it is ready."""
        words = self.as_typed(command.text, command.machine)
        processes, name = self.processes[command.machine], f"{command.program}-{time.monotonic_ns()}"
        stays = command.text.startswith(STAYS)
        typed = f"cd {shlex.quote(str(self.folder(command.machine)))} && {'exec ' if stays else ''}{words}"
        began = time.monotonic()
        process = processes.start(name, ["bash", "-c", typed])
        if stays:
            self.staying.append(command)
            self._await_start(command, process, processes, name)
        else:
            code = process.wait(_COMMAND_SECONDS)
            assert code == expected, f"{words}: {processes.tail(name, 30)}"
        print(f"{time.monotonic() - began:.0f} s: {command.machine}: {words}")
        return processes.log(name).read_text()

    def _await_start(self, command: Typed, process: subprocess.Popen, processes: ChildProcesses, name: str) -> None:
        ports = {"metrics": self.filled["metrics_port"], "node": self._own_ports[command.machine]}
        ports["watch"] = self.filled["page_port"]
        port = ports.get(command.text.split()[2], self.filled["superlink_port"])
        deadline = time.monotonic() + _START_SECONDS
        while not listens(port):
            assert process.poll() is None, processes.tail(name, 30)
            assert time.monotonic() < deadline, processes.tail(name, 30)
            time.sleep(0.2)

    def stop(self) -> list[Typed]:
        """End what runs in every terminal, nodes first, and return it in the order in which it was started."""
        for name in reversed(self.names):
            self.processes[name].close()
        stopped, self.staying = self.staying, []
        return stopped

    def close(self) -> None:
        self.stop()


@pytest.fixture
def machines(tmp_path):
    there = Machines(tmp_path)
    yield there
    there.close()


def patients(first: int) -> str:
    rows = [f"{'ill' if k % 2 else 'well'},{40 + 20 * (k % 2) + k % 7},{110 + 30 * (k % 2) + k % 5},{'fm'[k % 3 > 0]}"
            for k in range(first, first + 40)]  # fmt: skip
    return "\n".join(["state,age,pressure,sex", *rows]) + "\n"


@real
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_pages_federation_as_it_is_typed(machines):
    """Start, run, watch, admit, renew the certificate, add a node, and remove it."""
    machines.write("server", "config.yaml", block_of(TUTORIAL, "source: nodes"))
    machines.write(
        "server", "flwr/config.toml", machines.as_typed(block_of(TUTORIAL, "[superlink.hospitals]"), "server")
    )
    for number in range(3):
        machines.write(f"node {number}", "data.yaml", block_of(TUTORIAL, "label: state"))
        machines.write(f"node {number}", "patients.csv", patients(40 * number))
    machines.write("server", "new.csv", "age,pressure,sex\n47,128,f\n")
    said = [machines.run(command) for command in in_section(TUTORIAL, THREE)]
    assert "new.csv:1" in said[-1]
    server = machines.folder("server")
    result = Result.read(server / "runs" / "first")
    assert result is not None
    assert result.numbers["rounds"] == 1
    assert "degenerate" not in result.numbers or not any("never took part" in t for t in result.numbers["degenerate"])
    assert (server / "model.safetensors").is_file()

    said = [machines.run(command) for command in in_section(OPERATIONS, "Watch a federation")]
    assert all("finished" in text for text in said)
    assert json.loads(said[-1])["state"] == "finished"
    for command in in_section(OPERATIONS, "Status page"):
        machines.run(command)
        address = f"http://127.0.0.1:{machines.filled['page_port']}/"
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=30) as answer:
            assert b"<h1>fed" in answer.read()
    for command in in_section(OPERATIONS, "Prometheus"):
        machines.run(command)
        address = f"http://127.0.0.1:{machines.filled['metrics_port']}/metrics"
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=30) as answer:
            assert b"fedloom_written_seconds" in answer.read()
    joining = in_section(OPERATIONS, "Who may join")
    (fingerprint,) = [command for command in joining if command.program == "ssh-keygen"]
    machines.filled["fingerprint"] = re.findall(r"SHA256:\S+", machines.run(fingerprint))[0]
    for command in joining:
        assert "client 1 of runs/first" in machines.run(command) or command is fingerprint

    stopped = [command for command in machines.stop() if command.text.split()[2] not in ("metrics", "watch")]
    for section in ("Renew the certificate", "Before the start"):
        for command in in_section(OPERATIONS, section):
            machines.run(command)
    for command in stopped:
        machines.run(command)
    for command in in_section(OPERATIONS, "Add a node"):
        machines.run(command)
    status = read_status(server / "runs" / "second")
    assert [(node.client, node.round) for node in status.nodes] == [(0, 1), (1, 1), (2, 1)]
    machines.filled["node_id"] = status.nodes[2].node
    said = [machines.run(command) for command in in_section(OPERATIONS, "Remove a node")]
    assert status.nodes[2].node in said[0]
    assert status.nodes[2].node in said[1]


@real
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_pages_commands_on_one_machine_as_they_are_typed(machines):
    machines.write("server", "config.yaml", block_of(TUTORIAL, "source: nodes"))
    block = block_of(TUTORIAL, "def patients")
    subprocess.run([sys.executable, "-c", block], cwd=machines.folder("server"), check=True)
    in_process, predict, processes = in_section(TUTORIAL, ON_ONE_MACHINE)
    assert "fedavg (sound) on nodes" in machines.run(in_process)
    assert "new.csv:3" in machines.run(predict)
    assert "fedavg (sound) on nodes" in machines.run(processes)


@real
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_pages_commands_on_flowers_simulation_runtime_as_they_are_typed(machines):
    pytest.importorskip("ray", reason="needs flwr[simulation]")
    machines.write("server", "flwr/config.toml", block_of(OPERATIONS, "[superlink.ray]"))
    export, superlink, run = in_section(OPERATIONS, ON_RAY)
    machines.run(export)
    config = machines.folder("server") / "simulated" / "fedloom_app" / "config.yaml"
    config.write_text(re.sub(r"^rounds: \d+$", "rounds: 2", config.read_text(), flags=re.MULTILINE))  # to be quick
    machines.run(superlink)
    machines.run(run)
    result = Result.read(machines.folder("server") / "runs" / "ray")
    assert result is not None
    assert result.numbers["rounds"] == 2
