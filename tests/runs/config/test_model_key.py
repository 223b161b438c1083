"""Runs with a model that came as a Python object."""

import copy

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import fedloom as fl
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.records import from_bytes
from fedloom.data import from_arrays
from fedloom.runs.config.run_config import parse
from support import Stop

QUICK = {"rounds": 2, "local_epochs": 1, "engine": "serial"}
CLIENTS = 3


@pytest.fixture(scope="module")
def scenario():
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = rng.normal(size=(90, 6)).astype(np.float32) + y[:, None]
    return fl.scenario(from_arrays(x, y, x[:30], y[:30]), partition="iid", clients=CLIENTS)


class Two(nn.Module):
    def __init__(self, num_classes=3, width=4):
        super().__init__()
        self.body = nn.Linear(6, width)
        self.last = nn.Linear(width, num_classes)

    def forward(self, x):
        return self.last(self.body(x).relu())


class Headless(Two):
    def forward(self, x):
        return super().forward(x).log_softmax(1)


def frozen(make=Two):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = make()
    module.body.requires_grad_(False)
    return module


def server(folder):
    (latest,) = sorted((folder / "checkpoint").glob("round-*"))[-1:]
    return from_bytes((latest / "server.safetensors").read_bytes())["model"]


def test_a_module_begins_with_its_weights_and_is_not_changed(scenario, tmp_path):
    module = frozen()
    before = copy.deepcopy(module.state_dict())
    result = fl.run(scenario=scenario, model=module, out=tmp_path, **QUICK)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    trained = server(tmp_path)
    assert torch.equal(trained["body.body.weight"], before["body.weight"])
    assert not torch.equal(trained["head.weight"], before["last.weight"])
    assert result.numbers["model"] == "Two"
    assert result.config["model"]["head"] == "last"
    assert result.config["model"]["weights"] == "own"


def test_only_what_trains_travels_is_stored_and_comes_back_after_a_resume(scenario, tmp_path):
    model, long = frozen(), QUICK | {"rounds": 4, "checkpoint": {"seconds": 0}}
    whole, lean, halted = tmp_path / "all", tmp_path / "lean", tmp_path / "halted"
    sizes = [
        fl.run(scenario=scenario, model=model, share=share, out=out, **long).numbers["bytes_up"]
        for share, out in (("all", whole), ("trainable", lean))
    ]
    assert set(server(lean)) == {"head.weight", "head.bias"}
    assert sizes[0] - sizes[1] > 4 * CLIENTS * 4 * (6 * 4 + 4)  # rounds, clients, bytes of frozen numbers: and names
    assert all(torch.equal(value, server(whole)[name]) for name, value in server(lean).items())

    with pytest.raises(ConnectionError):
        fl.run(scenario=scenario, model=model, share="trainable", out=halted, callbacks=[Stop(2)], **long)
    resumed = fl.run(scenario=scenario, model=frozen(), share="trainable", out=halted, existing="resume", **long)
    assert resumed.numbers["checkpoint_sha256"] == fl.Result.read(lean).numbers["checkpoint_sha256"]


OTHERS = {
    "other weights": lambda: Two(),
    "another architecture": lambda: frozen(Headless),
    "another part frozen": lambda: frozen().requires_grad_(True),
    "a function": lambda: frozen,
    "a registered model": lambda: "mlp",
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_folder_with_another_model_is_refused_in_one_line(case, scenario, tmp_path):
    fl.run(scenario=scenario, model=frozen(), out=tmp_path, **QUICK)
    with pytest.raises(RunFolderError, match=r"holds a run of another config \(model[.:]") as caught:
        fl.run(scenario=scenario, model=OTHERS[case](), out=tmp_path, existing="resume", **QUICK)
    assert "\n" not in str(caught.value)


def test_a_function_gives_every_seed_first_weights_of_its_own(scenario):
    def run(seed):
        return fl.run(scenario=scenario, model=Two, seed=seed, **QUICK)

    first, again, other = run(0), run(0), run(1)
    assert first.rows[0] == again.rows[0]
    assert [r["value"] for r in first.rows if r["name"] == "loss"] != [
        r["value"] for r in other.rows if r["name"] == "loss"
    ]
    assert first.config["model"] == other.config["model"]
    assert first.config["model"]["weights"] == "drawn"


def test_clients_may_have_different_modules(scenario):
    result = fl.run(
        "fedssa",
        scenario=scenario,
        model=[frozen(), Two, {"name": "mlp", "hidden": [4]}],
        evaluation={"protocol": "personal/local"},
        **QUICK,
    )
    assert result.numbers["model"] == "Two, Two, mlp"
    assert [type(model) for model in result.config["model"]] == [dict] * 3


def test_a_config_with_a_given_model_says_so_and_is_not_run_from_a_file(scenario, tmp_path):
    result = fl.run(scenario=scenario, model=Two, out=tmp_path, **QUICK)
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert written == result.config
    assert set(written["model"]) == {"name", "module", "weights", "head", "digest"}
    with pytest.raises(ConfigError, match=r"model = given: this run used a model from Python; pass it to fedloom\.run"):
        parse(written)


def test_share_is_a_key_that_configs_of_earlier_versions_do_not_have():
    small = {"scenario": {"source": "digits", "partition": "iid"}}
    assert "share" not in parse(small).resolved()
    assert parse(small | {"share": "all"}).fingerprint() == parse(small).fingerprint()
    lean = parse(small | {"share": "trainable"})
    assert parse(lean.resolved()).fingerprint() == lean.fingerprint() != parse(small).fingerprint()
    with pytest.raises(ConfigError, match="share = 'half'"):
        parse(small | {"share": "half"})


NEEDS = {
    "fedsc": "fedsc works on the features that enter a linear head, and this model has no such head",
    "fedskc": "fedskc works on the features",
    "fedco2": "fedco2 works on the features",
    "feddw": "feddw needs a head of one linear layer that trains, this net has none",
    "fedssa": "fedssa needs a head of one linear layer that trains, this net has none",
    **{name: f"{name} treats the head apart from the rest" for name in ("fedala", "fedper", "fedrep", "lgfedavg")},
}


@pytest.mark.parametrize("method", NEEDS)
def test_methods_that_need_features_refuse_a_model_without_a_head(method, scenario):
    with pytest.raises(ConfigError, match=NEEDS[method]):
        fl.run(method, scenario=scenario, model=Headless, **QUICK)


@pytest.mark.parametrize("method", ["fedas", "fedbabu", "fednh", "fedpac", "fedpcl", "fedrep", "pfedfda"])
def test_methods_that_train_the_body_apart_refuse_a_model_that_is_a_head_alone(method, scenario):
    evaluation = {"protocol": "global/global" if method == "fednh" else "personal/local"}
    with pytest.raises(ConfigError, match=f"^{method} trains the body apart from the head; this model is a head alone"):
        fl.run(method, scenario=scenario, model="logistic", evaluation=evaluation, **QUICK)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedbn", "local"])
def test_other_methods_train_it(method, scenario):
    protocol = "personal/local" if method in ("fedbn", "local") else "global/global"
    result = fl.run(method, scenario=scenario, model=Headless, evaluation={"protocol": protocol}, **QUICK)
    assert result.config["model"]["head"] is None
    assert result.numbers["accuracy"] > 0


def test_a_named_head_makes_it_one_with_features(scenario):
    result = fl.run("fedsc", scenario=scenario, model=lambda: fl.wrap(Headless(), head="last"), **QUICK)
    assert result.numbers["model"] == "Headless"


@pytest.mark.parametrize("share", ["all", "trainable"])
@pytest.mark.parametrize("method", ["feddw", "fedssa", "fedper", "fedala"])
def test_methods_that_train_the_head_refuse_a_frozen_one(method, share, scenario):
    model = Two()
    model.last.requires_grad_(False)
    with pytest.raises(ConfigError, match=f"{method} .*head.*frozen"):
        fl.run(method, scenario=scenario, model=model, share=share, **QUICK)


def test_a_method_that_trains_the_body_apart_refuses_a_frozen_one(scenario):
    with pytest.raises(ConfigError, match=r"^fedrep trains the body apart .* or all of its body is frozen"):
        fl.run("fedrep", scenario=scenario, model=frozen(), evaluation={"protocol": "personal/local"}, **QUICK)


def test_episodes_need_features(scenario):
    few = {"protocol": "few-shot", "ways": 2, "shots": 1, "queries": 1, "episodes": 2}
    with pytest.raises(ConfigError, match="few-shot': tests features, and this model has no head"):
        fl.run(scenario=scenario, model=Headless, evaluation=few, **QUICK)


def test_independent_weights_need_a_function(scenario):
    keys = {"evaluation": {"protocol": "personal/local"}, "fedco2": {"offline_init": "independent"}, **QUICK}
    fl.run("fedco2", scenario=scenario, model=Two, **keys)
    with pytest.raises(ConfigError, match="model Two: every client would draw weights of its own"):
        fl.run("fedco2", scenario=scenario, model=Two(), **keys)


WRONG = {
    "regression": (lambda: nn.Linear(6, 1), "is regression, and is not trained here"),
    "other classes": (lambda: Two(num_classes=4), "it has 4 outputs, the scenario 3 classes"),
    "other inputs": (lambda: nn.Linear(5, 3), r"does not take the scenario's samples of shape \(6,\)"),
    "no module": (lambda: print, "need a torch.nn.Module, or what makes one"),
    "a number": (lambda: 3, "model"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_classifier_of_these_data_is_refused_before_anything_is_written(case, scenario, tmp_path):
    make, why = WRONG[case]
    with pytest.raises(ConfigError, match=why) as caught:
        fl.run(scenario=scenario, model=make(), out=tmp_path / "run", **QUICK)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_registered_model_that_does_not_fit_is_refused_in_one_line(scenario):
    with pytest.raises(
        ConfigError, match=r"model bilstm does not take the scenario's samples of shape \(6,\) \(float32\)"
    ):
        fl.run(scenario=scenario, model="bilstm", **QUICK)


@pytest.mark.slow
def test_adapters_of_peft_train_and_travel_alone(scenario):
    peft = pytest.importorskip("peft")

    def adapted():
        config = peft.LoraConfig(r=2, target_modules=["body"], modules_to_save=["last"])
        return peft.get_peft_model(Two(), config)

    results = [
        fl.run("fedsc", scenario=scenario, model=adapted, share=share, **QUICK) for share in ("all", "trainable")
    ]
    assert results[0].config["model"]["head"].endswith("last.modules_to_save.default")
    assert results[0].numbers["accuracy"] == results[1].numbers["accuracy"]
    assert results[0].numbers["bytes_up"] > results[1].numbers["bytes_up"]
