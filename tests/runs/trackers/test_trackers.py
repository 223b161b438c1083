"""Trackers, each with its real library: what it stores is what the run measured. Each in a process of its own, with
no address to reach."""

import importlib.util
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fedloom.core.errors import ConfigError
from fedloom.runs.trackers import MLflow

SETUP = """
import json, socket, time
def refuse(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"no network in tests: {address}")
    return real(self, address)
real, socket.socket.connect = socket.socket.connect, refuse
import fedloom as fl
from fedloom.runs.trackers import MLflow, TensorBoard, WandB

class Cut(fl.Callback):
    def on_round(self, config, round_, rows):
        if round_ == 2:
            raise ConnectionError("power cut")

scenario = fl.scenario("digits", partition="dirichlet", alpha=0.5, clients=3)
how = dict(scenario=scenario, rounds=3, local_epochs=1, engine="serial", checkpoint={"seconds": 0})
def cut_and_resumed(tracker):
    try:
        fl.run("fedavg", out="run", callbacks=[Cut(), tracker()], **how)
    except ConnectionError:
        pass
    return fl.run("fedavg", out="run", existing="resume", callbacks=[tracker()], **how)
"""


def told(code: str, folder) -> dict:
    """The JSON object that the last line of a program in `folder` holds."""
    environment = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "DO_NOT_TRACK": "true"}
    environment |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = subprocess.run(
        [sys.executable, "-c", SETUP + code],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def needs(package: str) -> pytest.MarkDecorator:
    there = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not there, reason=f"{package} is not installed: fedloom[{package}]")


@pytest.mark.slow
@needs("tensorboard")
def test_tensorboard_has_every_round_once_after_a_resume(tmp_path):
    code = """
result = cut_and_resumed(lambda: TensorBoard("logs"))
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from pathlib import Path
(folder,) = Path("logs").iterdir()
events = EventAccumulator(str(folder)).Reload()
seen = [(event.step, event.value) for event in events.Scalars("test/accuracy")]
print(json.dumps({"folder": folder.name, "seen": seen, "curve": result.curve(), "tags": events.Tags()["scalars"]}))
"""
    stored = told(code, tmp_path)
    rounds, values = stored["curve"]
    assert [step for step, _ in stored["seen"]] == rounds == [1, 2, 3]
    assert [value for _, value in stored["seen"]] == pytest.approx(values, rel=1e-6)
    assert {"train/loss", "val/accuracy", "system/bytes_up"} <= set(stored["tags"])
    assert stored["folder"].startswith("fedavg-sound-seed0-")


@pytest.mark.slow
@needs("mlflow")
def test_mlflow_goes_on_in_the_same_run(tmp_path):
    code = """
from pathlib import Path
uri = (Path.cwd() / "store").as_uri()
result = cut_and_resumed(lambda: MLflow("digits", uri))
import mlflow
client = mlflow.MlflowClient(tracking_uri=uri)
(run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
history = client.get_metric_history(run.info.run_id, "test/accuracy")
seen = dict(sorted((m.step, m.value) for m in history))
print(json.dumps({"seen": list(seen.items()), "curve": result.curve(), "params": run.data.params,
                  "final": run.data.metrics["final/accuracy"], "accuracy": result.numbers["accuracy"],
                  "status": run.info.status}))
"""
    stored = told(code, tmp_path)
    assert [[step for step, _ in stored["seen"]], [value for _, value in stored["seen"]]] == stored["curve"]
    assert stored["params"]["scenario.alpha"] == "0.5"
    assert stored["final"] == stored["accuracy"]
    assert stored["status"] == "FINISHED"


@needs("mlflow")
def test_two_runs_may_make_the_experiment_at_once():
    from mlflow.exceptions import MlflowException

    class Other:
        """A client of a server where another process makes the experiment between the two questions."""

        made = None

        def get_experiment_by_name(self, name):
            return self.made

        def create_experiment(self, name):
            self.made = SimpleNamespace(experiment_id="7")
            raise MlflowException(f"Experiment '{name}' already exists")

    tracker = MLflow("digits")
    tracker._client = Other()
    assert tracker._experiment_id() == "7"


@pytest.mark.slow
@needs("wandb")
def test_wandb_offline_writes_every_round(tmp_path):
    code = """
result = fl.run("fedavg", callbacks=[WandB("digits", mode="offline", folder="logs")], **how)
from pathlib import Path
from wandb.proto import wandb_internal_pb2 as records
(file,) = Path("logs").rglob("*.wandb")
def stored():  # a header of 7 bytes, then LevelDB's log format
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the end of a block is empty
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield records.Record.FromString(whole)
            whole = b""
for _ in range(100):  # a service of wandb's writes, a moment later
    kept = list(stored())
    if kept and kept[-1].WhichOneof("record_type") == "exit":
        break
    time.sleep(0.1)
seen, summary = [], {}
for record in kept:
    values = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
    seen += [[values["_step"], values["test/accuracy"]]] if values else []
    summary |= {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.summary.update}
print(json.dumps({"seen": seen, "curve": result.curve(), "final": summary.get("accuracy"),
                  "accuracy": result.numbers["accuracy"]}))
"""
    stored = told(code, tmp_path)
    assert [[step for step, _ in stored["seen"]], [value for _, value in stored["seen"]]] == stored["curve"]
    assert stored["final"] == stored["accuracy"]


@pytest.mark.parametrize("name", ["TensorBoard", "MLflow", "WandB"])
def test_a_tracker_without_its_library_says_which_extra(name, monkeypatch):
    import fedloom.runs.trackers

    monkeypatch.setitem(sys.modules, name.lower(), None)
    with pytest.raises(ConfigError, match=rf"{name.lower()} is not installed; install fedloom\[{name.lower()}\]"):
        getattr(fedloom.runs.trackers, name)()
