"""The trained model of a run: with it, the run's reported accuracies come out again."""

import functools
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedloom as fl
from fedloom.core.errors import CheckpointError, ConfigError, DataError, FedloomError, RunFolderError
from fedloom.data import from_arrays
from fedloom.evaluation import METRICS
from fedloom.evaluation.own_metrics import register_metric
from fedloom.methods import METHODS, Method, Predictor, Train, register
from fedloom.nets import MODELS, wrap
from fedloom.nets.blueprint import Bundle
from fedloom.results.result import Result
from fedloom.runs.config.run_config import parse
from fedloom.runs.export import trained
from fedloom.runs.run import run as run_config

run = functools.partial(run_config, result_type=Result)

SCENARIO = {"source": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": 4}
LOCAL = {"protocol": "personal/local"}


def config(method: str = "fedavg", **changes: Any) -> Any:
    values = {"method": method, "scenario": SCENARIO, "rounds": 2, "local_epochs": 1, "engine": "serial"}
    return parse(values | changes)


def accuracy(module: nn.Module, data: Any, rows: torch.Tensor) -> float:
    """As a person would compute it: pixels 0 .. 16 of the digits, scaled by what the source states."""
    with torch.no_grad():
        return float((module((data.x[rows].float() - 4.9) / 6.0).argmax(1) == data.y[rows]).double().mean())


def globally(module: nn.Module, scenario: Any) -> float:
    return accuracy(module, scenario.test_set, torch.arange(len(scenario.test_set)))


def personally(modules: list[nn.Module], scenario: Any) -> float:
    found = [accuracy(m, scenario.test_set, scenario.test.tensor(k)) for k, m in enumerate(modules)]
    return sum(found) / len(found)


@pytest.fixture(scope="module")
def digits() -> Any:
    return config().scenario.build(0)


@pytest.fixture(autouse=True)
def _registries(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (METHODS, MODELS):
        registry.names()
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """FedAvg, one checkpoint kept beside the best one: the rates are such that the last round is not the best."""
    optimizer = {"lr": 0.7, "momentum": 0.9}
    select = {"select": "best_val"}
    noisy = config(rounds=6, optimizer=optimizer, evaluation=select, checkpoint={"seconds": 1000, "keep": 1})
    result = run(noisy, out=tmp_path_factory.mktemp("runs") / "run")
    assert result.numbers["best_val_accuracy"] != result.numbers["last_accuracy"]
    return result


# -- the server's model ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("at", ["last", "best_val"])
def test_the_reported_accuracies_come_out_again(finished: Result, digits: Any, at: Any) -> None:
    reported = finished.numbers[f"{at}_accuracy"]
    assert globally(finished.model(at=at), digits) == reported
    assert finished.folder is not None
    assert globally(fl.load(finished.folder, at=at), digits) == reported


def test_the_best_round_is_what_the_summary_selects_and_outlives_pruning(finished: Result) -> None:
    rounds, val = finished.curve("accuracy", "val")
    best = rounds[val.index(max(val))]
    assert finished.folder is not None
    kept = sorted(path.name for path in (finished.folder / "checkpoint").iterdir())
    assert kept == [f"round-{best:06d}", "round-000006"]
    assert finished.numbers["accuracy"] == finished.numbers["best_val_accuracy"]


def test_without_select_the_best_round_is_not_kept(tmp_path: Path) -> None:
    result = run(config(rounds=6, optimizer={"lr": 0.7, "momentum": 0.9}, checkpoint={"seconds": 1000}), out=tmp_path)
    with pytest.raises(CheckpointError, match=r"no checkpoint of round .* evaluation.select=best_val keeps"):
        result.model(at="best_val")


@pytest.mark.parametrize("lowest", [False, True], ids=["highest", "lowest"])
def test_the_best_round_by_a_metric_that_this_process_does_not_know(
    lowest: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: Any
) -> None:
    def value(p: Any) -> torch.Tensor:
        return (p.predicted != p.labels if lowest else p.predicted == p.labels).double()

    METRICS.names()
    with monkeypatch.context() as only_here:
        only_here.setattr(METRICS, "_entries", dict(METRICS._entries))
        name = register_metric(value)
        METRICS.get(name).higher_is_better = not lowest  # type: ignore[misc]
        evaluation = {"select": "best_val", "select_by": name, "metrics": [name]}
        rates = {"lr": 0.7, "momentum": 0.9}
        result = run(config(rounds=6, optimizer=rates, evaluation=evaluation), out=tmp_path)
    assert result.numbers["accuracy"] != result.numbers["last_accuracy"]
    assert globally(fl.load(tmp_path, at="best_val"), digits) == result.numbers["accuracy"]
    _forget_directions(tmp_path)
    assert globally(fl.load(tmp_path, at="best_val"), digits) == result.numbers["accuracy"]
    last = tmp_path.parent / f"{tmp_path.name}-last"
    with monkeypatch.context() as only_here:
        only_here.setattr(METRICS, "_entries", dict(METRICS._entries))
        run(config(evaluation={"select_by": register_metric(value), "metrics": [name]}), out=last)
    _forget_directions(last)
    with pytest.raises(ConfigError, match="unknown metric 'value'"):  # nothing shows what is best
        fl.load(last, at="best_val")


def _forget_directions(folder: Path) -> None:
    """Leave out of the summary what earlier versions did not write: in which direction metrics are better."""
    numbers = json.loads((folder / "summary.json").read_text())
    del numbers["higher_is_better"]
    (folder / "summary.json").write_text(json.dumps(numbers))


def test_no_validation_data_and_no_number_on_them_are_told_apart(finished: Result) -> None:
    of_nan = [row | {"value": math.nan} if row["split"] == "val" else row for row in finished.rows]
    without = [row for row in finished.rows if row["split"] != "val"]
    for rows, why in (
        (of_nan, "accuracy on validation data is NaN in every round; take last"),
        (without, "this run has no validation data; take last"),
    ):
        with pytest.raises(ConfigError, match=why):
            replace(finished, rows=rows, folder=None).model(at="best_val")


def test_the_best_round_is_found_again_after_a_crash(tmp_path: Path, finished: Result, digits: Any) -> None:
    class Crash(fl.Callback):
        def on_round(self, config: Any, round_: int, rows: Any) -> None:
            if round_ == 4:
                raise ConnectionError("power cut")

    same = parse(finished.config)
    with pytest.raises(ConnectionError):
        run(same, out=tmp_path, callbacks=[Crash()])
    with pytest.warns(UserWarning, match=r"unfinished: this is the model after round \d of 6"):
        fl.load(tmp_path)
    result = run(same, out=tmp_path, existing="resume")
    assert result.numbers["checkpoint_sha256"] == finished.numbers["checkpoint_sha256"]
    assert globally(result.model(at="best_val"), digits) == finished.numbers["best_val_accuracy"]


def test_a_run_without_a_folder_keeps_its_weights(finished: Result, digits: Any) -> None:
    result = run(parse(finished.config))
    for at in ("last", "best_val"):
        assert globally(result.model(at=at), digits) == finished.numbers[f"{at}_accuracy"]
    assert result.memory is not None
    assert len(result.memory.weights) == 2
    bounded = run(config(engine={"name": "serial", "state_budget_mb": 1}))
    with pytest.raises(ConfigError, match="kept no weights"):
        bounded.model()


def test_a_head_without_bias_gets_one_of_zeros(tmp_path: Path, digits: Any) -> None:
    result = run(config("feddw"), out=tmp_path)
    module = result.model()
    assert globally(module, digits) == result.numbers["accuracy"]
    assert not module.get_parameter("head.bias").any()
    own = MODELS.get("digits-cnn")(input_shape=(1, 8, 8), num_classes=10)
    own.load_state_dict(module.state_dict())  # strict


# -- personal models ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "model"),
    [("local", "mlp"), ("fedco2", "mlp"), ("fedssa", ["mlp", {"name": "mlp", "hidden": [50, 200]}])],
)
def test_personal_models_give_the_mean_over_clients(tmp_path: Path, digits: Any, method: str, model: Any) -> None:
    result = run(config(method, model=model, evaluation=LOCAL, participation=0.5), out=tmp_path)
    assert personally([result.model(k) for k in range(4)], digits) == result.numbers["accuracy"]
    assert personally([fl.load(tmp_path, client=k) for k in range(4)], digits) == result.numbers["accuracy"]


def test_weights_of_workers_outlive_them(digits: Any) -> None:
    result = run(config("local", model="mlp", evaluation=LOCAL, engine={"name": "processes", "workers": 2}))
    assert personally([result.model(k) for k in range(4)], digits) == result.numbers["accuracy"]


def test_clients_beyond_those_described_are_looked_up_in_the_data(tmp_path: Path) -> None:
    result = run(config("local", model="mlp", evaluation=LOCAL, rounds=1, participation=0.25), out=tmp_path)
    told = json.loads((tmp_path / "scenario.json").read_text())
    del told["checksums"]  # as in folders of earlier versions
    (tmp_path / "scenario.json").write_text(json.dumps(told | {"class_counts": told["class_counts"][:1]}))
    for client in range(4):
        found, expected = fl.load(tmp_path, client=client).state_dict(), result.model(client).state_dict()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_two_nets_predict_as_one_module(digits: Any) -> None:
    module = run(config("fedco2", model="mlp", rounds=1, evaluation=LOCAL)).model(client=1)
    online, offline = module.get_submodule("online"), module.get_submodule("offline")
    x = digits.test_set.gather(torch.arange(5))
    assert torch.equal(module(x), online(x) + offline(x))
    assert {name.partition(".")[0] for name in module.state_dict()} == {"online", "offline"}
    module.train()
    assert online.training
    assert all(child.training for child in module.modules())


class Tuned(Method):
    """FedAvg, every client's model tuned on its own data before it is tested."""

    def adapt(self, start: Any, ctx: Any) -> Any:
        return [Train(self.loss)]


def test_personal_models_are_those_after_adapting(tmp_path: Path, digits: Any) -> None:
    register(Tuned)
    result = run(config("tuned", evaluation=LOCAL, precision="bfloat16"), out=tmp_path)
    modules = [fl.load(tmp_path, client=k) for k in range(4)]
    assert personally(modules, digits) == result.numbers["accuracy"]
    assert personally([fl.load(tmp_path)] * 4, digits) != result.numbers["accuracy"]
    assert not any(getattr(part, "in_bfloat16", False) for module in modules for part in module.modules())


def test_adapting_to_data_from_python_needs_them_again(tmp_path: Path) -> None:
    register(Tuned)
    splits = from_arrays(torch.rand(60, 5), torch.arange(60) % 3)
    scenario = fl.scenario(splits, partition="iid", clients=2)
    how: Any = {"scenario": scenario, "model": "mlp", "rounds": 1, "evaluation": LOCAL, "engine": "serial"}
    expected = fl.run("tuned", out=tmp_path, **how).model(client=1).state_dict()
    with pytest.raises(DataError, match="scenario made in Python"):
        fl.load(tmp_path, client=1)
    found = fl.load(tmp_path, client=1, scenario=scenario).state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert fl.load(tmp_path)(torch.zeros(1, 5)).shape == (1, 3)  # the server's needs no data


# -- exported files ----------------------------------------------------------------------------------------------------
def borrowed(*, input_shape: Any, num_classes: int) -> Any:
    return wrap(nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, num_classes)), head="3")


@pytest.mark.parametrize("method", ["fedavg", "feddw"])
def test_keys_are_those_of_the_module_that_was_wrapped(tmp_path: Path, digits: Any, method: str) -> None:
    MODELS.register("borrowed")(borrowed)
    result = run(config(method, model="borrowed"), out=tmp_path / "run")
    trained.of_result(result).save(tmp_path / "m.safetensors")
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    own.load_state_dict(load_file(tmp_path / "m.safetensors"))  # strict, by keys "1.weight" ... "3.bias"
    assert globally(own, digits) == result.numbers["accuracy"]
    assert type(result.model()) is nn.Sequential


def test_an_export_is_read_by_plain_torch_and_by_fedloom(tmp_path: Path, finished: Result, digits: Any) -> None:
    card = trained.of_result(finished, at="best_val").save(tmp_path / "m.safetensors")
    told = json.loads(card.read_text())
    assert told["architecture"] == {"model": "digits-cnn", "options": {}, "given": False, "forward": "model"}
    assert told["classes"] == [*"0123456789"]
    assert told["fedloom"] == fl.__version__
    assert told["input"]["shape"] == [1, 8, 8]
    assert told["input"]["mean"] == pytest.approx([4.9])
    assert told["input"]["std"] == [6.0]
    assert told["input"]["white"] == 16
    own = MODELS.get("digits-cnn")(input_shape=(1, 8, 8), num_classes=10)
    own.load_state_dict(load_file(tmp_path / "m.safetensors"))
    reported = finished.numbers["best_val_accuracy"]
    assert globally(own, digits) == globally(fl.load(tmp_path / "m.safetensors"), digits) == reported
    with pytest.raises(ConfigError, match="fits the digits-cnn"):
        fl.load(tmp_path / "m.safetensors", model=own)
    trained.of_result(finished).save(tmp_path / "m.safetensors")  # its own files may be written again


@pytest.mark.parametrize("method", ["fedco2", "apfl"])
def test_methods_that_combine_nets_are_exported_whole(tmp_path: Path, digits: Any, method: str) -> None:
    result = run(config(method, model="mlp", rounds=1, evaluation=LOCAL))
    whole = trained.of_result(result, client=2)
    whole.save(tmp_path / "m.safetensors")
    again = fl.load(tmp_path / "m.safetensors")
    x = digits.test_set.gather(torch.arange(20))
    assert torch.equal(again(x), whole.module(x))
    assert not isinstance(again, Bundle)
    assert load_file(tmp_path / "m.safetensors").keys() == again.state_dict().keys()


class Nearest(Method):
    """FedAvg that predicts by the nearest of the class means that the server holds."""

    def server_init(self, ctx: Any) -> Any:
        return super().server_init(ctx) | {"means": torch.eye(10, 64)}

    def aggregate(self, server: Any, uploads: Any, ctx: Any) -> Any:
        return super().aggregate(server, uploads, ctx) | {"means": server["means"] + 1}

    def predictors(self, server: Any, state: Any, ctx: Any) -> Any:
        def nearest(net: Any, x: torch.Tensor) -> torch.Tensor:
            return -(net.features(x)[:, None] - server["means"]).norm(dim=2)

        return {} if state is not None else {"global": Predictor(server["model"], nearest)}


def test_prototypes_predict_through_the_same_door(tmp_path: Path, digits: Any) -> None:
    register(Nearest)
    result = run(config("nearest"), out=tmp_path / "run")
    assert globally(fl.load(tmp_path / "run"), digits) == result.numbers["accuracy"]
    with pytest.raises(ConfigError, match="nearest predicts with more than its nets hold"):
        trained.of_result(result).save(tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists()
    trained.of_result(result).save(tmp_path / "m.pt2")  # a graph holds them
    x = digits.test_set.gather(torch.arange(20))
    assert torch.allclose(torch.export.load(tmp_path / "m.pt2").module()(x), result.model()(x), rtol=0, atol=1e-5)


# -- modules of the user's own ----------------------------------------------------------------------------------------
class Own(nn.Module):
    """Frozen first layer, then ReLU and a layer that is not the last one in the order of definition."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Linear(20, 10)
        self.base = nn.Linear(64, 20).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self.base(x.flatten(1)).relu())


def of_own(tmp_path: Path, model: Any, method: str = "fedavg", **keys: Any) -> Result:
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.3, clients=4)
    how: Any = {"rounds": 2, "local_epochs": 1, "engine": "serial", "out": tmp_path / "run"}
    return fl.run(method, scenario=scenario, model=model, **how, **keys)


@pytest.mark.parametrize("share", ["all", "trainable"])
@pytest.mark.parametrize("made", ["module", "factory"])
def test_a_module_from_python_comes_back_trained(tmp_path: Path, digits: Any, share: str, made: str) -> None:
    own: Any = Own() if made == "module" else Own
    result = of_own(tmp_path, own, share=share)
    assert globally(result.model(), digits) == result.numbers["accuracy"]
    with pytest.raises(ConfigError, match=r"models from Python: Own; .*fedloom.load\(..., model=...\)"):
        fl.load(tmp_path / "run")
    again = fl.load(tmp_path / "run", model=own)
    assert type(again) is Own
    assert globally(again, digits) == result.numbers["accuracy"]
    trained.of_result(result).save(tmp_path / "m.safetensors")
    plain = Own()
    plain.load_state_dict(load_file(tmp_path / "m.safetensors"))  # frozen weights as well
    assert globally(plain, digits) == result.numbers["accuracy"]
    assert globally(fl.load(tmp_path / "m.safetensors", model=Own), digits) == result.numbers["accuracy"]
    with pytest.raises(ConfigError, match="needs your Own"):
        fl.load(tmp_path / "m.safetensors")
    assert [again.base.weight.requires_grad, again.top.weight.requires_grad] == [False, True]


def test_frozen_weights_that_were_not_stored_must_be_the_same(tmp_path: Path) -> None:
    of_own(tmp_path, Own(), share="trainable")
    with pytest.raises(ConfigError, match="not the one of this run"):
        fl.load(tmp_path / "run", model=Own())


def test_two_modules_from_python_are_exported_whole(tmp_path: Path, digits: Any) -> None:
    result = of_own(tmp_path, Own, "fedco2", evaluation=LOCAL)
    modules = [fl.load(tmp_path / "run", client=k, model=Own) for k in range(4)]
    assert personally(modules, digits) == result.numbers["accuracy"]
    assert list(modules[0].state_dict())[:2] == ["online.top.weight", "online.top.bias"]
    trained.of_result(result, client=3).save(tmp_path / "m.safetensors")
    x = digits.test_set.gather(torch.arange(5))
    assert torch.equal(fl.load(tmp_path / "m.safetensors", model=Own)(x), modules[3](x))


def test_models_for_a_run_of_registered_ones_are_refused(tmp_path: Path, finished: Result) -> None:
    assert finished.folder is not None
    with pytest.raises(ConfigError, match="none, but a registered one"):
        fl.load(finished.folder, model=Own)


# -- what cannot be had ------------------------------------------------------------------------------------------------
def one_line(error: FedloomError) -> bool:
    return "\n" not in str(error) and len(str(error)) < 300


@pytest.mark.parametrize(
    ("method", "asked", "says"),
    [
        ("fedavg", {"client": 1}, "fedavg has no personal models"),
        ("fedavg", {"client": 4}, "client = 4: the run has 4 clients, 0 to 3"),
        ("fedavg", {"client": -1}, "client = -1"),
        ("fedavg", {"at": "best"}, "at = 'best': need last, best_val or the number"),
        ("local", {}, "local has no global model: name a client, 0 to 3"),
    ],
)
def test_models_that_a_run_does_not_have(method: str, asked: Any, says: str) -> None:
    result = run(config(method, rounds=1, evaluation=LOCAL if method == "local" else {}))
    with pytest.raises(ConfigError, match=says) as caught:
        result.model(**asked)
    assert one_line(caught.value)


def test_best_val_needs_validation_data() -> None:
    with pytest.raises(ConfigError, match="no validation data"):
        run(config(scenario=SCENARIO | {"val": 0}, rounds=1)).model(at="best_val")


def test_places_that_are_no_runs(tmp_path: Path, finished: Result) -> None:
    with pytest.raises(RunFolderError, match="no run there"):
        fl.load(tmp_path)
    with pytest.raises(RunFolderError, match="no such file"):
        fl.load(tmp_path / "m.safetensors")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "config.yaml").write_bytes((finished.folder / "config.yaml").read_bytes())  # type: ignore[operator]
    with pytest.raises(RunFolderError, match="unfinished, and without a checkpoint"):
        fl.load(run_dir)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("scenario.json", "{}", "scenario.json: damaged, or of an earlier version"),
        ("scenario.json", "{", "damaged"),
        ("metrics.jsonl", "", "missing or empty"),
        ("config.yaml", "[", "damaged"),
    ],
)
def test_damaged_folders_are_refused(tmp_path: Path, finished: Result, name: str, content: str, says: str) -> None:
    assert finished.folder is not None
    shutil.copytree(finished.folder, tmp_path / "run")
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(FedloomError, match=says) as caught:
        fl.load(tmp_path / "run")
    assert one_line(caught.value)


def test_a_package_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MODELS.register("borrowed")(borrowed)
    result = run(config(model="borrowed", rounds=1), out=tmp_path / "run")
    trained.of_result(result).save(tmp_path / "m.safetensors")

    def lacking(*, input_shape: Any, num_classes: int) -> Any:
        raise ModuleNotFoundError("No module named 'torchvision'")

    monkeypatch.setitem(MODELS._entries, "borrowed", lacking)
    for place in (tmp_path / "run", tmp_path / "m.safetensors"):
        with pytest.raises(ConfigError, match=r"model borrowed needs a package that is not installed: .*torchvision"):
            fl.load(place)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    result = run(config(rounds=1), out=tmp_path)
    for file in (tmp_path / "checkpoint").rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="damaged") as caught:
        result.model()
    assert one_line(caught.value)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda w, c: w.write_bytes(w.read_bytes()[:-4]), "cannot be read"),
        (lambda w, c: w.write_bytes(w.read_bytes()[:-1] + bytes([w.read_bytes()[-1] ^ 1])), "sha256"),
        (lambda w, c: c.write_text("{"), "no metadata"),
        (lambda w, c: c.write_text("{}"), "no metadata"),
        (lambda w, c: c.unlink(), "no such file"),
        (lambda w, c: c.write_text(c.read_text().replace("digits-cnn", "digits-rnn")), "not registered here"),
        (lambda w, c: c.write_text(c.read_text().replace("digits-cnn", "mlp")), "do not fit MLP"),
    ],
)
def test_damaged_exports_are_refused(tmp_path: Path, finished: Result, damage: Any, says: str) -> None:
    weights = tmp_path / "m.safetensors"
    damage(weights, trained.of_result(finished).save(weights))
    with pytest.raises(FedloomError, match=says) as caught:
        fl.load(weights)
    assert one_line(caught.value)


def test_files_of_others_are_not_overwritten(tmp_path: Path, finished: Result) -> None:
    whole = trained.of_result(finished)
    (tmp_path / "m.json").write_text('{"mine": 1}')
    with pytest.raises(ConfigError, match="no export of fedloom's"):
        whole.save(tmp_path / "m.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json"]
    with pytest.raises(ConfigError, match=r"no format has the suffix .\.pt"):
        whole.save(tmp_path / "m.pt")
