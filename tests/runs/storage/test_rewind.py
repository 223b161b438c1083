"""A run that is taken back to an earlier checkpoint: the same bits again, the rounds at hand, nothing else deleted."""

import pytest

from command_line import call
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.results.result import Result
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from fedloom.runs.storage.checkpoint import checkpoints_by_round, is_kept_for_rewind, rewind

CONFIG = {
    "method": "scaffold",
    "model": "mlp",
    "rounds": 5,
    "local_epochs": 1,
    "engine": "serial",
    "checkpoint": {"seconds": 0, "keep": 4},
    "scenario": {"source": "digits", "clients": 4, "alpha": 0.5},
}


@pytest.fixture
def finished(tmp_path):
    """The folder of a finished run with the checkpoints of rounds 2 to 5."""
    run(parse(CONFIG), out=tmp_path / "run")
    return tmp_path / "run"


def test_a_run_that_was_taken_back_trains_the_same_rounds_again(finished):
    before = Result.read(finished)
    assert rewind(finished, 3) == [4, 5]
    assert list(checkpoints_by_round(finished / "checkpoint")) == [2, 3]
    again = run(parse(CONFIG), out=finished, existing="resume")
    assert again.numbers["checkpoint_sha256"] == before.numbers["checkpoint_sha256"]
    assert [row["value"] for row in again.rows if row["name"] == "accuracy"] == [
        row["value"] for row in before.rows if row["name"] == "accuracy"
    ]


def test_the_rounds_at_hand_are_named(finished):
    with pytest.raises(ConfigError, match="no checkpoint of that round; it has rounds 2, 3, 4, 5"):
        rewind(finished, 1)
    assert Result.read(finished) is not None


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="holds no run"):
        rewind(tmp_path, 1)
    assert not list(tmp_path.iterdir())


def test_on_the_command_line(finished, capsys):
    config = finished / "config.yaml"
    code, _, errors = call(capsys, "run", str(config), "--out", str(finished), "--from-round", "4", "--quiet")
    assert code == 0
    assert "goes on from round 4: checkpoints of rounds 5 are deleted" in errors
    code, _, errors = call(capsys, "run", str(config), "--out", str(finished), "--from-round", "9")
    assert code == 2
    assert "it has rounds" in errors


def test_history_keeps_ever_fewer_checkpoints_the_older_they_are(tmp_path):
    """Whatever is kept at a round was kept at all rounds before it, so it is still there."""
    kept = set()
    for newest in range(1, 200):
        kept = {round_ for round_ in {*kept, newest} if is_kept_for_rewind(round_, newest) or newest - round_ < 3}
        assert {round_ for round_ in range(1, newest) if is_kept_for_rewind(round_, newest)} <= kept
        assert len(kept) <= 4 + 2 * newest.bit_length()
    assert min(kept) <= 128


def test_a_served_run_keeps_history(tmp_path):
    from fedloom.flower.in_process import run_in_process

    config = parse({**CONFIG, "rounds": 12, "method": "fedavg", "checkpoint": {"seconds": 0, "keep": 2}})
    first = run_in_process(config, out=tmp_path / "run", states=tmp_path / "states")
    assert list(checkpoints_by_round(tmp_path / "run" / "checkpoint")) == [4, 8, 10, 11, 12]
    rewind(tmp_path / "run", 8)
    again = run_in_process(config, out=tmp_path / "run", states=tmp_path / "states")
    assert again.numbers["checkpoint_sha256"] == first.numbers["checkpoint_sha256"]


def test_checkpoints_behind_a_link_stay(finished):
    elsewhere = finished.with_name("elsewhere")
    (finished / "checkpoint").rename(elsewhere)
    (finished / "checkpoint").symlink_to(elsewhere)
    with pytest.raises(RunFolderError, match="a link"):
        rewind(finished, 3)
    assert len(list(elsewhere.iterdir())) == 4
