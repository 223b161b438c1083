"""Words of other libraries get the name that means the same here, and never one that is only spelt alike."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import fedloom as fl
from fedloom.core import synonyms
from fedloom.core.errors import ConfigError
from fedloom.data import ATTACKS, PARTITIONS, SOURCES
from fedloom.evaluation import METRICS
from fedloom.methods import METHODS
from fedloom.methods.contract.method import WRAPPERS
from fedloom.nets import MODELS
from fedloom.runs.config.keys import sections_by_key
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.studies.plan import parse_study
from fedloom.runs.studies.search_space import OF_STUDIES

REGISTRIES = (METHODS, WRAPPERS, MODELS, SOURCES, PARTITIONS, METRICS, ATTACKS)
WORDS = yaml.safe_load(Path(synonyms.__file__).with_suffix(".yaml").read_text())


def config(key: str, value: Any, method: str = "fedavg") -> dict[str, Any]:
    """A config with a value at a dotted key."""
    values: dict[str, Any] = {"method": method, "scenario": {"source": "digits", "partition": "iid"}}
    section, _, name = key.rpartition(".")
    (values.setdefault(section, {}) if section else values)[name] = value
    return values


@pytest.mark.parametrize(
    ("key", "means"),
    [
        ("epochs", "'local_epochs'"),
        ("num_train_epochs", "'local_epochs'"),
        ("local_ep", "'local_epochs'"),
        ("optimizer.epochs", "'local_epochs'"),
        ("global_rounds", "'rounds'"),
        ("num_server_rounds", "'rounds'"),
        ("comm_round", "'rounds'"),
        ("n_clients", "'scenario.clients'"),
        ("num_clients", "'scenario.clients'"),
        ("num-supernodes", "'scenario.clients'"),
        ("scenario.num_clients", "'clients'"),
        ("flower.n_clients", "'scenario.clients'"),
        ("fraction_fit", "'participation'"),
        ("join_ratio", "'participation'"),
        ("frac", "'participation'"),
        ("learning_rate", "'optimizer.lr'"),
        ("learningRate", "'optimizer.lr'"),
        ("optimizer.learning_rate", "'lr'"),
        ("optimizer.beta1", "'betas'"),
        ("optimizer.type", "'name'"),
        ("lr_decay", "'optimizer.decay'"),
        ("wd", "'optimizer.weight_decay'"),
        ("batch", "'batch_size'"),
        ("per_device_train_batch_size", "'batch_size'"),
        ("random_state", "'seed'"),
        ("verbose", "--quiet"),
        ("n_jobs", "engine.workers"),
        ("device", "'engine.device'"),
        ("use_cuda", "'engine.device'"),
        ("strategy", "'method'"),
        ("algorithm", "'method'"),
        ("dataset", "'scenario.source'"),
        ("scenario.dataset", "'source'"),
        ("scenario.beta", "'alpha'"),
        ("dir_alpha", "'scenario.alpha'"),
        ("noniid", "'scenario.partition=dirichlet'"),
        ("class_per_client", "'scenario.classes_per_client'"),
        ("validation_split", "'scenario.val'"),
        ("arch", "'model'"),
        ("hidden_layer_sizes", "'model.hidden'"),
        ("eval_gap", "'evaluation.every'"),
        ("scoring", "'evaluation.metrics'"),
        ("evaluation.threshold", "'decision'"),
        ("restore_best_weights", "'evaluation.select=best_val'"),
        ("early_stopping.monitor", "'measure'"),
        ("proximal_mu", "'fedprox.mu'"),
        ("fp16", "'precision'"),
        ("output_dir", "out=..."),
        ("loss", "`fedloom methods NAME`"),
        ("shuffle", "shuffled in each pass"),
        ("noise_multiplier", "fedavg+dp"),
    ],
)
def test_keys_of_other_libraries(key: str, means: str) -> None:
    with pytest.raises(ConfigError, match="unknown key") as caught:
        parse(config(key, 1))
    assert means in str(caught.value)
    assert str(caught.value).count("'") in (2, 4)  # nothing else is named


@pytest.mark.parametrize(
    ("key", "value", "means"),
    [
        ("scenario.partition", "noniid", "'dirichlet' or 'pathological'"),
        ("scenario.partition", "iid-diff", "'quantity'"),
        ("scenario.partition", "dir", "'dirichlet'"),
        ("scenario.partition", "pat", "'pathological'"),
        ("scenario.partition", "shards", "'classes' or 'pathological'"),
        ("scenario.partition", "DirichletPartitioner", "'dirichlet'"),
        ("method", "median", "median is a wrapper; write fedavg+median"),
        ("method", "Multi-Krum", "multikrum is a wrapper; write fedavg+multikrum"),
        ("method", "trimmed_mean", "'fedavg+trimmed'"),
        ("method", "FedOpt", "'fedadam' or 'fedyogi' or 'fedadagrad'"),
        ("method", "Fed-Avg-M", "'fedavgm'"),
        ("method", "per-fedavg", "'perfedavg'"),
        ("method", "fedpaq", "does not have it"),
        ("method", "fedavg+fedavgm", "'servermomentum'"),
        ("model", "resnet18", "'resnet18-cifar'"),
        ("model", "lstm", "'bilstm'"),
        ("model", "cnn", "`fedloom models` lists them"),
        ("model", "resnet50", "pass a torch module"),
        ("scenario.source", "fmnist", "'fashion-mnist'"),
        ("scenario.source", "CIFAR-10", "'cifar10'"),
        ("evaluation.metrics", ["sensitivity"], "'recall' or 'sensitivity@specificity=0.95'"),
        ("evaluation.metrics", ["f1"], "'macro_f1' or 'weighted_f1'"),
        ("evaluation.metrics", ["roc_auc"], "'auroc'"),
        ("evaluation.metrics", ["auprc"], "'average_precision'"),
    ],
)
def test_names_of_other_libraries(key: str, value: Any, means: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(config(key, value))
    assert means in str(caught.value)


@pytest.mark.parametrize(
    "key",
    ["warmup_ratio", "drop_last", "num_gpus", "min_available_clients", "min_fit_clients", "tag", "dropout", "penalty",
     "test", "class_weight", "samples", "max_iter", "level"],
)  # fmt: skip
def test_in_doubt_no_key_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match="unknown key") as caught:
        parse(config(key, 1))
    assert "did you mean" not in str(caught.value)
    assert "apfl" not in str(caught.value)  # a list has the keys, without all methods


@pytest.mark.parametrize(("key", "value"), [("method", "flame"), ("model", "gru"), ("scenario.source", "shakespeare")])
def test_in_doubt_no_name_is_named(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match="known: "):
        parse(config(key, value))


@pytest.mark.parametrize("key", ["evaluation.tau", "optimizer.temperature", "optimizer.rho", "checkpoint.threshold"])
def test_a_key_of_a_section_is_no_option_of_a_method(key: str) -> None:
    with pytest.raises(ConfigError, match="unknown key") as caught:
        parse(config(key, 1))
    assert "an option of" not in str(caught.value)
    assert "did you mean" not in str(caught.value)


def test_an_option_of_the_method_that_runs_comes_first() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'fedadam\.beta1'"):
        parse(config("beta1", 0.9, "fedadam"))


@pytest.mark.parametrize(("key", "means"), [("seedz", "seeds"), ("methds", "methods"), ("param_grid", "tune")])
def test_keys_of_studies(key: str, means: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key '{key}': did you mean '{means}'"):
        parse_study({"scenario": {"source": "digits", "partition": "iid"}, key: 1})


def test_every_name_in_the_table_exists() -> None:
    keys = sections_by_key(RunConfig, "fedprox")
    known = {f"{section}.{key}".lstrip(".") for key, sections in keys.items() for section in sections}
    places = {"fedloom": dir(fl), "Result": dir(fl.Result), "Comparison": dir(fl.Comparison)}
    for kind, groups in WORDS.items():
        if kind in ("value", "command"):
            continue
        registry = next((registry for registry in REGISTRIES if registry.noun == kind), None)
        for names in groups:
            for name in names.split() if names.count(" ") < 3 else ():
                names_here = places.get(kind, known | {*OF_STUDIES})
                assert name.partition("=")[0] in names_here if registry is None else name in registry, name


def test_words_are_names_of_nothing_here() -> None:
    """A word that is a name, too, would never reach the table."""
    for registry in REGISTRIES:
        words = {word for text in WORDS.get(registry.noun, {}).values() for word in text.split()}
        names = {name for name in registry.names() if registry.get(name).__module__.startswith("fedloom.")}
        assert not words & names  # other tests may have registered some of their own


def test_adam_comes_with_its_rate(caplog) -> None:
    assert parse(config("optimizer", "adam")).optimizer.lr == 0.001
    assert parse(config("optimizer", {"name": "adam", "lr": 0.05})).optimizer.lr == 0.05
    assert parse(config("optimizer", "sgd")).optimizer.lr == parse(config("rounds", 1)).optimizer.lr == 0.05


def test_options_of_a_method_that_does_not_run_are_named(caplog) -> None:
    fl.run("fedavg", "digits", model="logistic", rounds=1, local_epochs=1, fedprox={"mu": 0.1}, progress=False)
    assert "without effect, since their method does not run: fedprox.mu; methods that run: fedavg" in caplog.text
