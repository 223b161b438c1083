"""Authors' code beside ours: with a repository that the test writes, since none of theirs is part of fedloom."""

import re

import pytest

from benchmarks.code_elsewhere import CHECKS, READ, main
from fedloom.methods import METHODS

FEDERATION = """
import sys
import numpy as np
import torchvision.transforms
from types import SimpleNamespace

print("printed by theirs")
args = SimpleNamespace(client_initial_self_weight=0.25)


def compute_fomo_weights(client, baseline, models, parameter_distance):
    lengths = [sum((a - b).abs().sum() for a, b in zip(m.parameters(), baseline.parameters())) for m in models]
    falls = [client.eval(None, baseline, None) - client.eval(None, model, None) for model in models]
    return np.array([float(fall / length) for fall, length in zip(falls, lengths)])


class Federation:
    def update_client_weights(self, client, epoch):
        client.client_weights[client.model_ids] += client.model_deltas
"""


def test_both_sides_are_run_and_compared(tmp_path, capsys) -> None:
    (tmp_path / "federation.py").write_text(FEDERATION)
    assert main(["fedfomo", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    note, weights, shared, own, first = printed.out.splitlines()
    assert note == "note: this is no clone, and the page speaks of fe04f66"
    assert float(re.search(r"difference (\S+),", weights)[1]) < 1e-7
    assert float(re.search(r"difference (\S+),", shared)[1]) > 0.1
    assert float(re.search(r"difference (\S+),", own)[1]) < 1e-7
    assert first == "a client's first affinity to itself: theirs 0.25, ours 1.0"
    assert "printed by theirs" in printed.err


def test_code_without_a_licence_is_not_run(tmp_path, capsys) -> None:
    assert main(["fedpac", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert printed == "fedpac: the repository has no licence, so its code was read at 5770f4f and is not run\n"


def test_a_folder_without_code_is_named(tmp_path, capsys) -> None:
    assert main(["gpfl", str(tmp_path)]) == 2
    assert f"{tmp_path}: no Python files" in capsys.readouterr().out


@pytest.mark.parametrize("name", [*CHECKS, *READ])
def test_the_commit_is_named(name) -> None:
    assert re.fullmatch(r"\S+/\S+ at [0-9a-f]{7}", METHODS.get(name).citation.code)
