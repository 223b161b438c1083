"""Makes `tests/support.py` importable: with importlib import mode no test folder is on the path by itself.

No test reads or writes the cache of whoever runs it.
"""

import gc
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
# One thread, as in a run, set before torch is imported: more change the order of sums, and wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"

from toy_results import make_result, make_scenario, two_methods

# How long a machine that is busy takes for an example says nothing about the code.
settings.register_profile("fedloom", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedloom")
torch.set_num_threads(1)  # as in a run: more threads may sum in another order
__all__ = ["make_result", "make_scenario", "two_methods"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays until the end: the garbage collector need not look for it, now or during a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder for this test process and its children; compiled libraries are shared with other test runs."""
    folder = tmp_path_factory.mktemp("cache")
    libraries = Path(tempfile.gettempdir()) / f"fedloom-test-libraries-{os.getuid()}"
    libraries.mkdir(mode=0o700, exist_ok=True)
    (folder / "kernels").symlink_to(libraries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLOOM_CACHE", str(folder))
        patch.delenv("FEDLOOM_DATA", raising=False)
        if importlib.util.find_spec("fedloom.engine.fast"):  # before a test changes the compiler
            importlib.import_module("fedloom.engine.fast").replay_library().start()
        yield folder
