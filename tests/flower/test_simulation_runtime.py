"""Flower's own simulation runtime, on Ray. Needs `flwr[simulation]`, and FEDLOOM_REAL=1."""

import os
import time
from pathlib import Path

import pytest

from fedloom.core.files import write_atomic
from fedloom.flower.apps import export
from fedloom.flower.processes import ChildProcesses, executable, free_ports
from fedloom.runs.run import run
from flower_world import DEALT, config_of, listens

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("ray", reason="needs flwr[simulation]")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(os.environ.get("FEDLOOM_REAL") != "1", reason="starts Ray: FEDLOOM_REAL=1 runs it"),
]


def test_ten_clients_on_ray_have_the_bits_of_the_serial_engine(tmp_path):
    config = config_of("fedsc", scenario={**DEALT, "clients": 10}, rounds=2)
    (port,) = free_ports(1)
    address = f'[superlink.sim]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    write_atomic(tmp_path / "home" / "config.toml", address)
    export(config, tmp_path / "app")
    told = {"FLWR_HOME": str(tmp_path / "home"), "FEDLOOM_STATE": str(tmp_path / "states")}
    path = os.pathsep.join([str(Path(executable("flwr")).parent), os.environ["PATH"]])
    processes = ChildProcesses(tmp_path / "logs", {**told, "PATH": path})
    try:
        link = [executable("flower-superlink"), "--simulation", "--insecure"]
        link += ["--host", "127.0.0.1", "--port", str(port)]
        superlink = processes.start("superlink", [*link, "--disable-runtime-dependency-installation"])
        while not listens(port):
            assert superlink.poll() is None
            time.sleep(0.2)
        words = [executable("flwr"), "run", str(tmp_path / "app"), "sim", "--stream"]
        words += ["-c", f'out="{tmp_path / "there"}"']
        options = "num-supernodes=10 client-resources-num-cpus=1 init-args-num-cpus=2"
        processes.start("run", [*words, "--federation-config", options]).wait(400)
    finally:
        processes.close()
    run(config, out=tmp_path / "here")
    files = [tmp_path / out / "checkpoint" / "round-000002" / "server.safetensors" for out in ("here", "there")]
    assert files[0].read_bytes() == files[1].read_bytes()
