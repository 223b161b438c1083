"""A Ray cluster of two workers on this machine, for the tests of one process."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parent
SURROUNDINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # its servers listen on the loopback address alone
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # as `connected` has it: Ray is imported before it is called
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no warning
    "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src")]),
}
HEAD = """
import sys, ray
how = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 1 << 27, "log_to_driver": False}
ray.init(address="local", logging_level="ERROR", _temp_dir=sys.argv[1], **how)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture(scope="session")
def ray() -> Iterator[ModuleType]:
    """Ray, imported in its surroundings."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SURROUNDINGS.items():
            patch.setenv(name, value)
        yield pytest.importorskip("ray")


@pytest.fixture(scope="session")
def cluster(ray: ModuleType) -> Iterator[str]:
    """The address of its head; this process is connected to it."""
    if ray.is_initialized():  # each folder that imports this has a fixture of its own
        yield ray.get_runtime_context().gcs_address
        return
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # a short name, for those of sockets
        words = [sys.executable, "-c", HEAD, folder]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as head:
            assert head.stdin is not None
            assert head.stdout is not None
            address = head.stdout.readline().strip()
            ray.init(address, log_to_driver=False, logging_level="ERROR")
            try:
                yield address
            finally:
                ray.shutdown()
                head.stdin.close()
                head.wait(60)
