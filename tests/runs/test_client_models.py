"""Client models of named rounds: what is kept, that keeping changes nothing, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom as fl
from fedloom.core.errors import CheckpointError, ConfigError
from fedloom.engine import Worker
from fedloom.runs.client_models import kept_rounds
from fedloom.runs.storage.checkpoint import rewind
from support import Notes, Stop

MODEL = {"name": "mlp", "hidden": [4]}


def train(out: Path | None, method: str = "fedavg", keep: tuple[int, ...] = (1, 3), **keys: Any) -> fl.Result:
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.5, clients=4)
    checkpoint = {"keep_clients": keep, **keys.pop("checkpoint", {})}
    settings = {"rounds": 3, "participation": 0.5, "model": MODEL, "batch_size": 100, "checkpoint": checkpoint}
    return fl.run(method, scenario=scenario, out=None if out is None else str(out), **(settings | keys))


def files(folder: Path) -> dict[str, bytes]:
    kept = folder / "client_models"
    return {str(path.relative_to(kept)): path.read_bytes() for path in kept.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fl.Result:
    return train(tmp_path_factory.mktemp("runs") / "run")


def test_the_mean_of_the_client_models_is_the_servers(finished: fl.Result) -> None:
    models = finished.round_models(3)
    counts = torch.tensor(finished.scenario["class_counts"]).sum(1).double()
    shares = counts[list(models.clients)] / counts[list(models.clients)].sum()
    trained = [models.client(client).state_dict() for client in models.clients]
    assert len(trained) == 2
    for name, value in models.server().state_dict().items():
        mean = sum(share * tree[name].double() for share, tree in zip(shares, trained, strict=True))
        assert torch.allclose(value.double(), mean, atol=1e-6)
        assert not torch.equal(value, models.start().state_dict()[name])
    last = finished.model().state_dict()
    assert all(torch.equal(value, last[name]) for name, value in models.server().state_dict().items())


def test_keeping_changes_neither_numbers_nor_the_fingerprint(finished: fl.Result, tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", keep=())
    assert plain.config["checkpoint"] == {"seconds": 5.0, "keep": 2}
    assert plain.numbers["fingerprint"] == finished.numbers["fingerprint"]
    assert plain.numbers["checkpoint_sha256"] == finished.numbers["checkpoint_sha256"]
    assert not (tmp_path / "plain" / "client_models").exists()


@pytest.mark.parametrize("engine", ["threads", "batched", pytest.param("processes", marks=pytest.mark.matrix)])
def test_engines_keep_the_same_models(engine: str, finished: fl.Result, tmp_path: Path) -> None:
    assert finished.folder is not None
    models = train(tmp_path / engine, engine=engine).round_models(3)
    if engine != "batched":
        assert files(tmp_path / engine) == files(finished.folder)
        return
    expected = finished.round_models(3)
    for client in expected.clients:
        pairs = zip(models.client(client).parameters(), expected.client(client).parameters(), strict=True)
        assert all(torch.allclose(value, other, atol=1e-4) for value, other in pairs)


def test_a_resumed_run_keeps_what_an_uninterrupted_one_keeps(finished: fl.Result, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        train(tmp_path / "run", checkpoint={"seconds": 0}, callbacks=[Stop(2)])
    shutil.copytree(tmp_path / "run", tmp_path / "late")
    assert finished.folder is not None
    train(tmp_path / "run", existing="resume")
    assert files(tmp_path / "run") == files(finished.folder)


def test_rounds_that_are_over_are_named_and_sizes_told(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        train(tmp_path / "run", keep=(), checkpoint={"seconds": 0}, callbacks=[Stop(2)])
    notes = Notes()
    train(tmp_path / "run", keep=(1, 3), existing="resume", callbacks=[notes])
    assert any("round 1, which is over" in text for text in notes.texts)
    assert any(
        "client models of round 3 are kept: 2 clients, 8" in text and "kB by now" in text for text in notes.texts
    )
    assert kept_rounds(tmp_path / "run" / "client_models") == (3,)


def test_a_private_head_comes_from_the_clients_state(tmp_path: Path) -> None:
    protocol = {"protocol": "personal/local"}
    result = train(tmp_path / "run", "fedper", rounds=1, keep=(1,), evaluation=protocol)
    models = result.round_models(1)
    for client in models.clients:
        trained, personal = models.client(client).state_dict(), result.model(client).state_dict()
        head = [name for name in trained if name.startswith("head")]
        assert len(head) == 2
        assert all(torch.equal(trained[name], personal[name]) for name in head)
        assert not any(torch.equal(trained[name], personal[name]) for name in trained.keys() - set(head))


def test_what_cannot_be_kept_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keep_clients = \[9\]: the run has 3 rounds"):
        train(tmp_path / "run", keep=(1, 9))
    with pytest.raises(ConfigError, match="kept in a run folder"):
        train(None)
    with pytest.raises(ConfigError, match=r"about .* MB, above checkpoint\.keep_clients_mib = 1"):
        train(tmp_path / "run", model={"name": "mlp", "hidden": [4096]}, checkpoint={"keep_clients_mib": 1})
    with pytest.raises(ConfigError, match="keep_clients"):
        train(tmp_path / "run", keep=(0,))
    assert not list(tmp_path.glob("run/*"))


def test_states_that_grow_beyond_the_limit_are_told_and_not_kept(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("fedloom.runs.client_models._MIB", 9000)  # bytes; a round has about 7,000
    monkeypatch.setattr("fedloom.runs.client_models.ClientModelKeeper._refuse_too_many", lambda self, federation: None)
    notes = Notes()
    train(tmp_path / "run", keep=(1, 3), checkpoint={"keep_clients_mib": 1}, callbacks=[notes])
    assert kept_rounds(tmp_path / "run" / "client_models") == (1,)
    assert any("round 3 are not kept" in text for text in notes.texts)
    with pytest.raises(ConnectionError):
        train(tmp_path / "stopped", checkpoint={"keep_clients_mib": 1, "seconds": 0}, callbacks=[Stop(2)])
    train(tmp_path / "stopped", checkpoint={"keep_clients_mib": 1}, existing="resume")
    assert kept_rounds(tmp_path / "stopped" / "client_models") == (1,)  # what was kept before the stop counts


@pytest.mark.parametrize("wrong", [1.0, "1", None])
def test_what_is_no_number_of_a_round_is_refused(wrong: Any, finished: fl.Result) -> None:
    with pytest.raises(ConfigError, match=f"round {wrong!r}: need the number of a round"):
        finished.round_models(wrong)


def test_other_rounds_and_clients_are_named(finished: fl.Result) -> None:
    with pytest.raises(ConfigError, match=r"round 2: its client models are not kept \(kept are 1, 3\)"):
        finished.round_models(2)
    models = finished.round_models(3)
    (absent, *_) = {0, 1, 2, 3}.difference(models.clients)
    with pytest.raises(ConfigError, match="not aggregated in round 3"):
        models.client(absent)


@pytest.mark.parametrize(
    ("method", "protocol", "says"),
    [
        ("ditto", "personal/local", "ditto trains several nets"),
        # its trained head is thrown away, and not replaced by a received one
        ("fedgh", "personal/local", r"fedgh: 2 entries of client \d's net are neither in its upload nor"),
        # q-FedAvg's changes are scaled and of the other sign, IFCA's belong to one of several models
        ("qfedavg", "global/global", "qfedavg: its uploads hold changes and no weights"),
        ("ifca", "personal/local", "ifca: its uploads hold changes and no weights"),
    ],
)
def test_methods_without_a_client_model_say_why(method: str, protocol: str, says: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"evaluation": {"protocol": protocol}, "optimizer": {"momentum": 0.0}}
    models = train(tmp_path / "run", method, rounds=1, keep=(1,), **keys).round_models(1)
    with pytest.raises(ConfigError, match=says):
        models.client(models.clients[0])


def test_a_method_with_a_second_head_has_client_models(tmp_path: Path) -> None:
    models = train(tmp_path / "run", "fedrod", rounds=1, keep=(1,)).round_models(1)
    assert models.client(models.clients[0])


@pytest.mark.parametrize("method", ["fedpac", "fedbabu"])
def test_a_client_model_is_the_trained_one_whatever_a_round_begins_with(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedPAC's clients begin a round with another head than they ended one with, FedBABU's train no head."""
    trained: dict[int, Any] = {}
    end = Worker.end

    def noted(self: Worker, client: Any, tree: Any, seconds: Any) -> Any:
        if client.job.ctx.round == 2:
            trained.setdefault(client.job.ctx.client, {name: value.clone() for name, value in tree.items()})
        return end(self, client, tree, seconds)

    monkeypatch.setattr(Worker, "end", noted)
    protocol = {"protocol": "personal/local"}
    run = train(tmp_path / "run", method, rounds=2, keep=(2,), participation=1.0, engine="serial", evaluation=protocol)
    models = run.round_models(2)
    for client in models.clients:
        got = models.client(client).state_dict()
        assert all(torch.equal(value, trained[client][name]) for name, value in got.items())


@pytest.mark.parametrize("name", ["meta.json", "before.safetensors", "uploads/clients-000003.pack"])
def test_damaged_files_are_named(name: str, finished: fl.Result, tmp_path: Path) -> None:
    assert finished.folder is not None
    shutil.copytree(finished.folder, tmp_path / "run")
    path = tmp_path / "run" / "client_models" / "round-000003" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        fl.read(tmp_path / "run").round_models(3)


def test_a_run_that_is_taken_back_or_begun_afresh_loses_its_kept_rounds(finished: fl.Result, tmp_path: Path) -> None:
    assert finished.folder is not None
    shutil.copytree(finished.folder, tmp_path / "run")
    (first, *_) = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    assert first == "round-000003"
    train(tmp_path / "run", keep=(), existing="fresh", checkpoint={"seconds": 0, "keep": 3})
    assert not (tmp_path / "run" / "client_models").exists()
    shutil.copytree(finished.folder / "client_models", tmp_path / "run" / "client_models")
    rewind(tmp_path / "run", 1)
    assert kept_rounds(tmp_path / "run" / "client_models") == (1,)


def test_drift_is_measured_beside_it(finished: fl.Result, tmp_path: Path) -> None:
    result = train(tmp_path / "run", drift=True)
    assert finished.folder is not None
    kept, expected = files(tmp_path / "run"), files(finished.folder)
    weights = [name for name in expected if not name.endswith("meta.json")]  # the fingerprint has the key drift
    assert {name: kept[name] for name in weights} == {name: expected[name] for name in weights}
    assert len(result.measured_drift()) == 3
