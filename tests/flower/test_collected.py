"""What is left of a run on other processes: its result, or what ended it."""

import json
import traceback

import pytest

from fedloom.flower.apps import FAILED
from fedloom.flower.node_registry import FederationError
from fedloom.flower.processes import ChildProcesses
from fedloom.flower.up import collect_result


@pytest.mark.parametrize("told", ["", "Traceback: in the hospital"])
def test_what_ended_a_run_comes_back_with_its_code_and_traceback(told, tmp_path):
    (tmp_path / FAILED).write_text(json.dumps({"error": "client 1 failed", "traceback": told, "exit_code": 1}))
    with pytest.raises(FederationError, match="client 1 failed") as caught:
        collect_result(tmp_path, ChildProcesses(tmp_path / "logs", {}))
    assert caught.value.exit_code == 1
    assert told in "".join(traceback.format_exception(caught.value))
    assert (caught.value.__cause__ is None) == (told == "")  # the command line prints the cause, where there is one


def test_a_run_that_left_nothing_says_so_with_its_last_words(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "run.log").write_text("lost the connection\n")
    with pytest.raises(FederationError, match=r"repeat the command to continue; its last output: lost the connection"):
        collect_result(tmp_path, ChildProcesses(tmp_path / "logs", {}))
