"""Runs: same bits, resuming, refusing, and what is left behind when something fails."""

import errno
import gc
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from filelock import FileLock

from fedloom.core.errors import CheckpointError, ClientError, ConfigError, RunFolderError
from fedloom.methods import METHODS
from fedloom.results.result import Result
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.run import run
from support import Notes, Stop


def small(**changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "method": "fedsc",
        "scenario": {"source": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": 4},
        "rounds": 4,
        "local_epochs": 1,
        "participation": 0.5,
        "checkpoint": {"seconds": 0},
        "engine": "serial",
    }
    return parse(values | changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run that nothing has interrupted."""
    return run(small(), out=tmp_path_factory.mktemp("whole"))


class Watch(Notes):
    """Also notes the first round of the process."""

    first_round = 0

    def on_start(self, config: RunConfig, first_round: int) -> None:
        self.first_round = first_round


def interrupted(config: RunConfig, out: Path, after: int) -> None:
    with pytest.raises(ConnectionError):
        run(config, out=out, callbacks=[Stop(after)])


def metrics(result: Result) -> list[Any]:
    """All rows but wall-clock ones."""
    return [row for row in result.rows if not row["name"].startswith("seconds")]


@pytest.mark.parametrize("method", ["fedavg", "fedsc", "local"])
def test_the_same_config_gives_the_same_bits(tmp_path: Path, method: str) -> None:
    protocol = "personal/local" if method == "local" else "global/global"
    config = small(method=method, evaluation={"protocol": protocol})
    torch.rand(7)  # the global generator's state must not matter
    first, second = (run(config, out=tmp_path / name) for name in "ab")
    assert first.numbers["checkpoint_sha256"] == second.numbers["checkpoint_sha256"]
    assert metrics(first) == metrics(second)
    other = run(small(method=method, seed=1, evaluation={"protocol": protocol}), out=tmp_path / "c")
    assert other.numbers["checkpoint_sha256"] != first.numbers["checkpoint_sha256"]


@pytest.mark.parametrize("method", ["fedsc", "local"])
@pytest.mark.parametrize("after", [1, 3])
def test_resuming_gives_the_bits_of_an_uninterrupted_run(tmp_path: Path, method: str, after: int) -> None:
    protocol = "personal/local" if method == "local" else "global/global"
    config = small(method=method, engine="auto", evaluation={"protocol": protocol})
    whole = run(config, out=tmp_path / "whole")
    interrupted(config, tmp_path / "cut", after)
    watch = Watch()
    resumed = run(config, out=tmp_path / "cut", existing="resume", callbacks=[watch])
    assert watch.first_round == after + 1
    assert resumed.numbers["checkpoint_sha256"] == whole.numbers["checkpoint_sha256"]
    assert metrics(resumed) == metrics(whole)


def test_rounds_after_the_last_checkpoint_are_run_again_not_doubled(tmp_path: Path) -> None:
    config = small(checkpoint={"seconds": 1000})
    whole = run(config, out=tmp_path / "whole")
    interrupted(config, tmp_path / "cut", 3)
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as log:
        log.write('{"round": 4, "client": nu')  # torn by the crash
    resumed = run(config, out=tmp_path / "cut", existing="resume")
    assert metrics(resumed) == metrics(whole)
    assert resumed.numbers["checkpoint_sha256"] == whole.numbers["checkpoint_sha256"]


def test_memory_only_runs_leave_nothing_and_agree_with_runs_on_disk(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    in_memory = run(small())
    assert list(tmp_path.iterdir()) == []
    assert metrics(in_memory) == metrics(run(small(), out=tmp_path / "disk"))


def test_the_folder_holds_what_it_should(tmp_path: Path) -> None:
    result = run(small(), out=tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()} - {".lock", ".fedloom"}
    expected = {"config.yaml", "scenario.json", "env.json", "metrics.jsonl", "metrics.parquet", "summary.json"}
    assert names == expected | {"checkpoint"}
    table = pq.read_table(tmp_path / "run" / "metrics.parquet")
    assert table.num_rows == len(result.rows)
    assert table.column_names == ["round", "client", "split", "protocol", "name", "value"]
    assert len(list((tmp_path / "run" / "checkpoint").iterdir())) == 2  # keep: 2
    again = Result.read(tmp_path / "run")
    assert again is not None
    assert again.numbers == json.loads(json.dumps(result.numbers))


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = run(small(), out=tmp_path)
    watch = Watch()
    second = run(small(), out=tmp_path, callbacks=[watch])
    assert watch.first_round == 0
    assert second.numbers == json.loads(json.dumps(first.numbers))
    run(small(), out=tmp_path, existing="fresh", callbacks=[watch])
    assert watch.first_round == 1


def test_an_unfinished_run_needs_a_word(tmp_path: Path) -> None:
    interrupted(small(), tmp_path, 2)
    with pytest.raises(RunFolderError, match="existing='resume'"):
        run(small(), out=tmp_path)


def test_a_folder_of_another_config_is_refused_and_left_alone(tmp_path: Path) -> None:
    run(small(), out=tmp_path)
    before = (tmp_path / "summary.json").read_bytes()
    with pytest.raises(RunFolderError, match=r"another config \(seed: 0 there, 5 here\)"):
        run(small(seed=5), out=tmp_path, existing="resume")
    assert (tmp_path / "summary.json").read_bytes() == before


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(RunFolderError, match="in use"):
        run(small(), out=tmp_path)
    run(small(), out=tmp_path)  # and free again afterwards


def newest(folder: Path) -> Path:
    return sorted((folder / "checkpoint").iterdir())[-1]


@pytest.mark.parametrize("name", ["server.safetensors", "meta.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, whole: Result, name: str, damage: str
) -> None:
    interrupted(small(), tmp_path / "cut", 3)
    file = newest(tmp_path / "cut") / name
    content = file.read_bytes()
    if damage == "truncate":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :])
    else:
        file.unlink()
    watch = Watch()
    resumed = run(small(), out=tmp_path / "cut", existing="resume", callbacks=[watch])
    assert watch.first_round == 3
    assert "round-000003 is damaged" in watch.texts[0]
    assert resumed.numbers["checkpoint_sha256"] == whole.numbers["checkpoint_sha256"]


def test_all_checkpoints_damaged_is_an_error(tmp_path: Path) -> None:
    interrupted(small(), tmp_path, 3)
    for folder in (tmp_path / "checkpoint").iterdir():
        (folder / "server.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"none of 2 checkpoints can be used .*round-000003 is damaged"):
        run(small(), out=tmp_path, existing="resume")


@pytest.mark.parametrize(("key", "value", "says"), [("version", "0.0.1", "0.0.1"), ("fingerprint", "0" * 16, "config")])
def test_a_checkpoint_of_another_version_or_config_is_refused(tmp_path: Path, key: str, value: str, says: str) -> None:
    interrupted(small(), tmp_path, 2)
    for folder in (tmp_path / "checkpoint").iterdir():
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps(meta | {key: value}))
    with pytest.raises(CheckpointError, match=says):
        run(small(), out=tmp_path, existing="resume")


def test_a_full_disk_is_explained_and_costs_nothing(tmp_path: Path, whole: Result, monkeypatch: Any) -> None:
    real, calls = os.fsync, 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunFolderError, match="no space left"):
            run(small(), out=tmp_path / "cut")
    assert calls > 12
    assert not [p for p in (tmp_path / "cut").rglob("*") if "partial" in p.name or p.name.startswith(".metrics")]
    resumed = run(small(), out=tmp_path / "cut", existing="resume")
    assert resumed.numbers["checkpoint_sha256"] == whole.numbers["checkpoint_sha256"]


def test_an_exception_in_a_client_names_client_round_and_stage(tmp_path: Path, monkeypatch: Any) -> None:
    fedavg = METHODS.get("fedavg")
    real = fedavg.phases

    def phases(self: Any, start: Any, ctx: Any) -> Any:
        if ctx.round == 2:
            raise ZeroDivisionError("inside")
        return real(self, start, ctx)

    monkeypatch.setattr(fedavg, "phases", phases)
    with pytest.raises(ClientError, match=r"client \d+ failed in round 2 .*ZeroDivisionError: inside") as caught:
        run(small(method="fedavg"), out=tmp_path)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.exit_code == 1


def test_a_protocol_that_the_method_cannot_serve_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match="no personal model"):
        run(small(method="fedavg", evaluation={"protocol": "personal/local"}))
    with pytest.raises(ConfigError, match="no global model"):
        run(small(method="local"))


def test_best_val_needs_validation_data_before_training(tmp_path: Path) -> None:
    scenario = {"source": "digits", "partition": "iid", "clients": 4, "val": 0}
    config = small(scenario=scenario, evaluation={"select": "best_val"})
    for existing in ("refuse", "resume"):
        watch = Watch()
        with pytest.raises(ConfigError, match=r"best_val.*set scenario\.val above 0"):
            run(config, out=tmp_path / "run", existing=existing, callbacks=[watch])
        assert watch.first_round == 0  # nothing was trained
        assert not (tmp_path / "run").exists()


def test_bytes_are_those_of_the_serialised_payloads() -> None:
    result = run(small(method="fedavg", participation=1.0, rounds=2))
    weights = 38_282 * 4
    for name in ("bytes_up", "bytes_down"):
        per_client_round = result.numbers[name] / (2 * 4)
        assert weights < per_client_round < weights + 1500  # headers
    silent = run(small(method="local", evaluation={"protocol": "personal/global"}, rounds=2))
    assert silent.numbers["bytes_up"] == silent.numbers["bytes_down"] == 0


def test_fresh_deletes_nothing_before_the_new_run_is_known_to_work(tmp_path: Path) -> None:
    run(small(), out=tmp_path)
    kept = (tmp_path / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match="no personal model"):
        run(small(method="fedavg", evaluation={"protocol": "personal/local"}), out=tmp_path, existing="fresh")
    assert (tmp_path / "summary.json").read_bytes() == kept


def test_fresh_leaves_what_fedloom_did_not_write(tmp_path: Path) -> None:
    run(small(), out=tmp_path)
    own = [tmp_path / "notes.txt", tmp_path / "checkpoint" / "mine", tmp_path / "states" / "mine"]
    for path in own:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    run(small(seed=1), out=tmp_path, existing="fresh")
    assert [path.read_text() for path in own] == ["mine"] * 3


def test_fresh_deletes_the_diagnosis_of_the_run_before(tmp_path: Path) -> None:
    run(small(), out=tmp_path)
    (tmp_path / "diagnosis.json").write_text("{}")
    run(small(seed=1), out=tmp_path, existing="fresh")
    assert not (tmp_path / "diagnosis.json").exists()


def test_a_checkpoint_that_could_not_be_used_pushes_no_new_one_out(tmp_path: Path, whole: Result) -> None:
    """Two newer ones were damaged: the run goes on from an older one, whose successors are the newest."""
    interrupted(small(), tmp_path, 2)
    for round_ in (8, 9):
        shutil.copytree(newest(tmp_path), tmp_path / "checkpoint" / f"round-00000{round_}")
        (tmp_path / "checkpoint" / f"round-00000{round_}" / "server.safetensors").write_bytes(b"")
    resumed = run(small(), out=tmp_path, existing="resume")
    assert resumed.numbers["checkpoint_sha256"] == whole.numbers["checkpoint_sha256"]
    assert [path.name for path in sorted((tmp_path / "checkpoint").iterdir())] == ["round-000003", "round-000004"]


def test_the_mark_comes_first_and_seconds_of_checkpoints_count(tmp_path: Path, monkeypatch: Any) -> None:
    order: list[str] = []
    real = Path.replace
    monkeypatch.setattr(Path, "replace", lambda path, to: (order.append(Path(to).name), real(path, to)))
    result = run(small(), out=tmp_path)
    assert order[0] == ".fedloom"
    spent = [row["value"] for row in result.rows if row["name"] == "seconds_checkpoint"]
    assert len(spent) == 4
    seconds = result.numbers["seconds"]
    assert seconds["checkpoint"] == pytest.approx(sum(spent), abs=1e-3)
    rounds = sum(row["value"] for row in result.rows if row["name"] == "seconds_total")
    assert seconds["total"] == pytest.approx(rounds + sum(spent), abs=2e-3)


def test_numbers_that_are_not_finite_are_null_in_every_json(tmp_path: Path) -> None:
    config = small(method="fedavg", optimizer={"lr": 1e30}, rounds=2)
    result = run(config, out=tmp_path)

    def strict(text: str) -> Any:
        return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))

    rows = [strict(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert any(row["value"] is None for row in rows)
    for path in tmp_path.rglob("*.json"):
        strict(path.read_text())
    again = Result.read(tmp_path)
    assert again is not None
    assert [math.isnan(row["value"]) for row in again.rows] == [not math.isfinite(row["value"]) for row in result.rows]


def test_rows_are_on_the_disk_before_the_checkpoint_that_counts_them(tmp_path: Path, monkeypatch: Any) -> None:
    synced: list[Path] = []
    real = os.fsync

    def noted(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        real(handle)

    monkeypatch.setattr(os, "fsync", noted)
    run(small(rounds=1), out=tmp_path)
    names = [path.name for path in synced]
    assert names.index("metrics.jsonl") < next(n for n, name in enumerate(names) if "server.safetensors" in name)


def test_states_lie_in_few_files(tmp_path: Path) -> None:
    many = {"source": "digits", "partition": "iid", "clients": 40}
    config = small(method="local", evaluation={"protocol": "personal/local"}, participation=0.25, scenario=many)
    run(config, out=tmp_path)
    assert len([path for path in newest(tmp_path).iterdir() if path.is_file()]) <= 3 + 3  # two packs or three


def test_the_sha256_depends_neither_on_the_engine_nor_on_when_checkpoints_were_written(tmp_path: Path) -> None:
    found = {}
    for seconds in (0, 1000):
        for engine in ("serial", "processes"):
            more = {"engine": {"name": engine, "workers": 2}, "checkpoint": {"seconds": seconds}}
            config = small(method="local", evaluation={"protocol": "personal/local"}, **more)
            result = run(config, out=tmp_path / f"{engine}-{seconds}")
            found[engine, seconds] = result.numbers["checkpoint_sha256"]
    assert len(set(found.values())) == 1


def edited(path: Path, change: Any) -> None:
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


ROWS = {
    "dropped": lambda lines: lines[3:],
    "edited": lambda lines: [lines[0].replace('"round": 1', '"round": 2'), *lines[1:]],
    "damaged": lambda lines: ["?\n", *lines[1:]],
    "missing": lambda lines: [],
}


@pytest.mark.parametrize("how", ROWS)
def test_rows_that_were_changed_are_noticed_on_resume(tmp_path: Path, how: str) -> None:
    interrupted(small(), tmp_path, 3)
    edited(tmp_path / "metrics.jsonl", ROWS[how])
    if how == "missing":
        (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(
        CheckpointError, match=r"does not fit metrics\.jsonl, where rows were lost or changed"
    ) as caught:
        run(small(), out=tmp_path, existing="resume")
    assert "\n" not in str(caught.value)


def test_last_rows_that_were_lost_cost_rounds_and_no_number(tmp_path: Path, whole: Result) -> None:
    interrupted(small(), tmp_path / "cut", 3)
    edited(tmp_path / "cut" / "metrics.jsonl", lambda lines: lines[:-4])
    watch = Watch()
    resumed = run(small(), out=tmp_path / "cut", existing="resume", callbacks=[watch])
    assert "checkpoint round-000003 does not fit metrics.jsonl" in watch.texts[0]
    assert watch.first_round == 3
    assert metrics(resumed) == metrics(whole)
    assert resumed.numbers["bytes_up"] == whole.numbers["bytes_up"]


def test_an_edited_meta_json_is_damaged(tmp_path: Path) -> None:
    interrupted(small(), tmp_path, 3)
    file = newest(tmp_path) / "meta.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"round": 4}))
    watch = Watch()
    run(small(), out=tmp_path, existing="resume", callbacks=[watch])
    assert "round-000003 is damaged (meta.json does not match its checksum)" in watch.texts[0]
    assert watch.first_round == 3


@pytest.mark.parametrize("engine", ["serial", "auto", "batched", {"name": "processes", "workers": 2}])
@pytest.mark.parametrize("folder", [True, False])
def test_weights_go_with_the_run(tmp_path: Path, engine: Any, folder: bool) -> None:
    """Of a large net one run is gigabytes, and the collector counts objects: what waits for it adds up to a kill."""
    config = small(method="feddyn", rounds=2, engine=engine)
    gc.collect()
    gc.disable()
    try:
        run(config, out=tmp_path / "run" if folder else None)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        waiting = [value for value in gc.garbage if isinstance(value, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert waiting == []
