"""Configs: what is accepted, what is refused, and with which line."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from pydantic import Field

from fedloom.core.errors import ConfigError
from fedloom.methods.contract.method import METHODS, Method, Options
from fedloom.methods.contract.spec import Spec
from fedloom.methods.fedavg import FedAvg
from fedloom.nets.blueprint import Blueprint
from fedloom.nets.net import MODELS
from fedloom.runs.config.keys import ModelConfig
from fedloom.runs.config.run_config import load, parse

DEMO = Path(__file__).parents[3] / "configs" / "demo.yaml"
SMALL: dict[str, Any] = {"scenario": {"source": "digits", "partition": "dirichlet", "alpha": 0.5, "clients": 4}}


def changed(*words: str) -> dict[str, Any]:
    return load(DEMO, words)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("metod=fedsc", "unknown key 'metod': did you mean 'method'?"),
        ("method=scafold", "unknown method 'scafold': did you mean 'scaffold'?"),
        ("model=lenet", "unknown model 'lenet': did you mean 'lenet5'?"),
        ("model=fedsa-cnn", "unknown model 'fedsa-cnn': did you mean 'fedssa-cnn"),
        ("model=[mlp, lenet]", "unknown model 'lenet': did you mean 'lenet5'?"),
        ("model={name: mlp, hiden: [9]}", "unknown key 'model.hiden' of mlp: did you mean 'hidden'?"),
        ("model=[mlp, {name: mlp, hiden: [9]}]", "unknown key 'model.hiden' of mlp: did you mean 'hidden'?"),
        ("scenario.source=digit", "unknown source 'digit': did you mean 'digits'?"),
        ("scenario.partition=dirichlett", "unknown partition 'dirichlett': did you mean 'dirichlet'?"),
        ("scenario.aplha=1", "unknown key 'scenario.aplha': did you mean 'alpha'?"),
        ("optimizer.learning_rate=1", "unknown key 'optimizer.learning_rate'"),
        ("optimizer.lrr=1", "unknown key 'optimizer.lrr': did you mean 'lr'?"),
        ("fedsc.tua=1", "unknown key 'fedsc.tua': did you mean 'tau'?"),
        ("fedsc.tau=0", "fedsc.tau = 0: "),
        ("fedprox.mu=-1", "fedprox.mu = -1: "),
        ("fedsc.neighbour=angel", "fedsc.neighbour = 'angel': "),
        ("preset=sounds", "unknown preset 'sounds' of fedsc: did you mean 'sound'?"),
        ("preset=3", "preset = 3: "),
        ("scenario.alpha=0", "scenario.alpha = 0: input should be greater than 0"),
        ("scenario.alpha=.nan", "scenario.alpha = nan: "),
        ("participation=0", "participation = 0: input should be greater than 0"),
        ("participation=1.5", "participation = 1.5: input should be less than or equal to 1"),
        ("rounds=0", "rounds = 0: "),
        ("rounds=many", "rounds = 'many': "),
        ("rounds=1:30", "rounds = '1:30': "),  # 90 in YAML 1.1
        ("seed=0o10", "seed = '0o10': "),
        ("evaluation.protocol=global", "evaluation.protocol = 'global': "),
        ("seed=-1", "seed = -1: "),
        ("lr=1", "unknown key 'lr': did you mean 'optimizer.lr'?"),
        ("alpha=1", "unknown key 'alpha': did you mean 'scenario.alpha'?"),
        ("optimizer.rounds=1", "unknown key 'optimizer.rounds': did you mean 'rounds'?"),
        ("tau=1", "unknown key 'tau': did you mean 'fedsc.tau'?"),  # the run's method
        ("lambda_lcl=1", "unknown key 'lambda_lcl': an option of fedskc, written as fedskc.lambda_lcl"),
        ("momentun=1", "unknown key 'momentun': did you mean 'optimizer.momentum'?"),
        ("hidden=[9]", "unknown key 'hidden': did you mean 'model.hidden'?"),
        ("model.hidden=[9]", "unknown key 'model.hidden' of digits-cnn: known: none"),
        ("model={name: mlp, hidden: abc}", "model.hidden = 'abc': input should be a valid array"),
        ("model={name: mlp, hidden: [1.5]}", "model.hidden.0 = 1.5: input should be a valid integer"),
        ("model={name: mlp, head_bias: perhaps}", "model.head_bias = 'perhaps': input should be a valid boolean"),
        ("model={hidden: [9]}", "model = {'hidden': [9]}: need a name"),
        ("model=[mlp, 3]", "model = 3: need a name"),
        ("optimizer.betas=[0.9, 1]", "optimizer.betas.1 = 1: input should be less than 1"),
        ("optimizer=rmsprop", "optimizer.name = 'rmsprop': "),
        ("scenario.seed=-1", "scenario.seed = -1: input should be greater than or equal to 0"),
        (f"rounds={10**18}", "rounds = 1000000000000000000: input should be less than 2147483648"),
        ("rounds=" + "9" * 4000, "rounds = 9999"),
        ("checkpoint=3", "checkpoint = 3: a section holds keys with values"),
        ("scenario.skews={name: noise}", "scenario.skews = {'name': 'noise'}: need a list"),
        ("options=3", "options = 3: need {method: {key: value}}"),
        ("fedsc=3", "fedsc = 3: the section of a method holds its options"),
    ],
)
def test_one_clear_line_for_each_mistake(word: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(changed(word))
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_a_missing_alpha_is_named() -> None:
    with pytest.raises(ConfigError, match=r"scenario\.alpha is missing"):
        parse({"scenario": {"source": "digits", "partition": "dirichlet"}})


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("rounds", "no override"),
        ("rounds=", "'rounds=': the value is empty; write rounds=null to take the key out"),
        ("scenario.alpha=  ", "the value is empty; write scenario.alpha=null"),
        ("rounds.x=3", "is a value"),
        ("a=[", "not YAML"),
        ("a={b: 1, b: 2}", "comes twice"),
    ],
)
def test_broken_overrides(word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(DEMO, [word])


def test_numbers_with_leading_zeros_are_decimal(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "seed: 010\nbatch_size: 08\nscenario: {source: digits, partition: iid, clients: 2}\n"
    )
    read = parse(load(tmp_path / "c.yaml", ["rounds=012"]))
    assert (read.seed, read.batch_size, read.rounds) == (10, 8, 12)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such config file"):
        load(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    with pytest.raises(ConfigError, match="not readable as YAML"):
        load(broken)
    broken.write_text("- a list")
    with pytest.raises(ConfigError, match="mapping"):
        load(broken)


def test_overrides_win_and_reach_sections() -> None:
    config = parse(changed("rounds=7", "scenario.alpha=0.3", "optimizer.lr=1e-2", "fedsc.tau=0.2"))
    assert (config.rounds, config.optimizer.lr) == (7, 0.01)
    assert config.resolved()["scenario"]["alpha"] == 0.3
    assert config.build_method().options.tau == 0.2


def test_sections_given_as_words_take_keys() -> None:
    words = (
        "engine=processes",
        "engine.workers=2",
        "model=mlp",
        "model.hidden=[9]",
        "optimizer=adam",
        "optimizer.lr=1",
    )
    config = parse(load(None, ["scenario.source=digits", "scenario.alpha=1", *words]))
    assert (config.engine.name, config.engine.workers) == ("processes", 2)
    assert [(m.name, m.options()) for m in config.models()] == [("mlp", {"hidden": [9]})]
    assert (config.optimizer.name, config.optimizer.lr) == ("adam", 1.0)
    assert parse(changed("engine.workers=2")).engine.name == "auto"  # the file says it as a word


def test_places_in_lists_take_keys() -> None:
    words = ("scenario.skews=[{name: long-tail, rho: 3}]", "model=[mlp, digits-cnn]")
    with pytest.raises(ConfigError, match="'1' is no place in a list of 1; the first is 0"):
        changed(*words, "scenario.skews.1.rho=7")
    config = parse(changed(*words, "scenario.skews.0.rho=7", "model.0.hidden=[9]"))
    assert config.scenario.resolved()["skews"][0]["rho"] == 7
    assert [(m.name, m.options()) for m in config.models()] == [("mlp", {"hidden": [9]}), ("digits-cnn", {})]


def test_a_model_may_take_options_of_types_that_pydantic_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(
        *, input_shape: Any, num_classes: int, sizes: tuple[int, ...] = (), plain=3, block: Method | None = None
    ): ...

    MODELS.names()
    monkeypatch.setitem(MODELS._entries, "odd", odd)
    parse(SMALL | {"model": {"name": "odd", "sizes": [1, 2], "plain": "x", "block": 3}})
    with pytest.raises(ConfigError, match=r"model\.sizes = 3: "):
        parse(SMALL | {"model": {"name": "odd", "sizes": 3}})


def test_the_resolved_config_gives_the_same_run_again() -> None:
    config = parse(changed("preset=authors", "fedsc.tau=0.2"))
    again = parse(yaml.safe_load(yaml.safe_dump(config.resolved())))
    assert again.resolved() == config.resolved()
    assert again.fingerprint() == config.fingerprint()


def test_the_fingerprint_follows_what_changes_results_and_nothing_else() -> None:
    base = parse(SMALL).fingerprint()
    assert parse(SMALL | {"engine": "serial", "checkpoint": {"seconds": 1}}).fingerprint() == base
    for change in ({"seed": 1}, {"rounds": 3}, {"preset": "paper", "method": "fedsc"}, {"optimizer": {"lr": 0.1}}):
        assert parse(SMALL | change).fingerprint() != base


def test_options_of_other_methods_are_checked_but_do_not_change_the_run() -> None:
    assert parse(SMALL | {"fedsc": {"tau": 0.3}}).fingerprint() == parse(SMALL).fingerprint()
    with pytest.raises(ConfigError, match="fedsc"):
        parse(SMALL | {"fedsc": {"tau": -1}})


def test_presets_set_the_options() -> None:
    options = {p: parse(SMALL | {"method": "fedsc", "preset": p}).build_method().options for p in ("paper", "sound")}
    assert options["paper"].cpdr == "l1"
    assert options["sound"].cpdr == "mse"


@pytest.mark.parametrize(
    ("method", "name", "lr", "momentum", "decay", "epochs", "batch"),
    [
        ("fedskc", "sgd", 0.1, 0.0, 0.0, 10, 64),
        ("fedsc", "sgd", 0.1, 0.0, 0.0, 10, 64),
        ("feddw", "adam", 0.001, 0.9, 0.0, 5, 128),
        ("fedco2", "sgd", 0.01, 0.9, 1e-5, 5, 64),
        ("fedssa", "sgd", 0.005, 0.9, 5e-5, 25, 512),
    ],
)
def test_authors_brings_the_released_optimiser_where_the_config_says_nothing(
    method: str, name: str, lr: float, momentum: float, decay: float, epochs: int, batch: int
) -> None:
    """Values of the released scripts, by the papers' specifications."""
    config = parse(SMALL | {"method": method, "preset": "authors"})
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.momentum, optimizer.weight_decay) == (name, lr, momentum, decay)
    assert (config.local_epochs, config.batch_size) == (epochs, batch)
    assert parse(config.resolved()).fingerprint() == config.fingerprint()
    own = parse(SMALL | {"method": method, "preset": "authors", "optimizer": {"lr": 0.3}, "batch_size": 7})
    assert (own.optimizer.name, own.optimizer.lr, own.optimizer.weight_decay) == (name, 0.3, decay)
    assert (own.local_epochs, own.batch_size) == (epochs, 7)
    for preset in ("paper", "sound"):
        other, plain = parse(SMALL | {"method": method, "preset": preset}), parse(SMALL)
        assert (other.optimizer, other.local_epochs, other.batch_size) == (
            plain.optimizer,
            plain.local_epochs,
            plain.batch_size,
        )


class Brisk(Method):
    """A method with presets of its own names alone."""

    class Options(Options):
        pace: float = Field(1.0, gt=0)

    presets: ClassVar[dict[str, dict[str, Any]]] = {"calm": {}, "hasty": {"pace": 5.0}}


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry knows `brisk` for the time of one test."""
    METHODS.names()  # loads the built-in ones
    monkeypatch.setitem(METHODS._entries, "brisk", Brisk)


@pytest.mark.usefixtures("brisk")
def test_a_preset_is_whatever_the_method_declares() -> None:
    config = parse(SMALL | {"method": "brisk", "preset": "hasty"})
    assert config.build_method().options.pace == 5.0
    assert parse(config.resolved()).fingerprint() == config.fingerprint()
    with pytest.raises(ConfigError, match="unknown preset 'hastily' of brisk: did you mean 'hasty'"):
        parse(SMALL | {"method": "brisk", "preset": "hastily"})
    with pytest.raises(ConfigError, match="unknown preset 'hasty' of fedsc"):
        parse(SMALL | {"method": "fedsc", "preset": "hasty"})


@pytest.mark.usefixtures("brisk")
def test_sections_of_methods_without_that_preset_are_checked_all_the_same() -> None:
    assert parse(SMALL | {"preset": "paper", "brisk": {"pace": 2}}).fingerprint() == (
        parse(SMALL | {"preset": "paper"}).fingerprint()
    )
    parse(SMALL | {"method": "brisk", "preset": "hasty", "fedsc": {"tau": 0.3}})
    with pytest.raises(ConfigError, match=r"brisk\.pace = -1"):
        parse(SMALL | {"brisk": {"pace": -1}})
    with pytest.raises(ConfigError, match=r"unknown key 'brisk\.pase': did you mean 'pace'"):
        parse(SMALL | {"brisk": {"pase": 1}})
    with pytest.raises(ConfigError, match=r"fedsc\.tau = -1"):
        parse(SMALL | {"method": "brisk", "preset": "hasty", "fedsc": {"tau": -1}})


def test_a_model_takes_options_of_its_own() -> None:
    config = parse(SMALL | {"model": {"name": "mlp", "hidden": [16]}})
    assert (config.model_name(), config.models()) == ("mlp", [ModelConfig(name="mlp", hidden=[16])])
    assert parse(config.resolved()).fingerprint() == config.fingerprint()
    plain = parse(SMALL | {"model": "mlp"})
    assert plain.fingerprint() == parse(SMALL | {"model": ["mlp"]}).fingerprint() != config.fingerprint()


def test_a_group_of_models_is_its_list() -> None:
    names = [f"fedssa-cnn{n}" for n in range(1, 6)]
    group, spelled = parse(SMALL | {"model": "fedssa-cnn"}), parse(SMALL | {"model": names})
    assert group.models() == spelled.models() == [ModelConfig(name=name) for name in names]
    assert group.resolved()["model"] == names
    assert group.fingerprint() == spelled.fingerprint() == parse(group.resolved()).fingerprint()
    assert group.fingerprint() != parse(SMALL | {"model": names[::-1]}).fingerprint()
    assert (group.model_name(), spelled.model_name()) == ("fedssa-cnn", ", ".join(names))


def test_a_list_of_models_may_mix_names_and_options() -> None:
    config = parse(SMALL | {"model": ["digits-cnn", {"name": "mlp", "hidden": [16]}]})
    assert config.models() == [ModelConfig(name="digits-cnn"), ModelConfig(name="mlp", hidden=[16])]
    assert config.resolved()["model"] == ["digits-cnn", {"name": "mlp", "hidden": [16]}]
    again = parse(yaml.safe_load(yaml.safe_dump(config.resolved())))
    assert again.fingerprint() == config.fingerprint()
    assert config.model_name() == "digits-cnn, mlp"


def test_blueprints_are_the_models_as_the_method_wants_them() -> None:
    config = parse(SMALL | {"model": ["digits-cnn", {"name": "mlp", "hidden": [16]}]})
    method, nets = FedAvg(), {"a": None, "b": "mlp-128"}
    method.spec = Spec(head_bias=False, nets=nets)
    first, second = config.blueprints((1, 8, 8), 10, method)
    assert replace(first, extra=None) == Blueprint("digits-cnn", (1, 8, 8), 10, {}, False, nets)
    assert replace(second, extra=None) == Blueprint("mlp", (1, 8, 8), 10, {"hidden": [16]}, False, nets)
    plain = FedAvg()
    (alone,) = parse(SMALL).blueprints((1, 8, 8), 10, plain)
    assert replace(alone, extra=None) == Blueprint("digits-cnn", (1, 8, 8), 10)


def test_other_predictors_to_test_are_part_of_the_fingerprint() -> None:
    config = parse(SMALL | {"evaluation": {"also": ["online"]}})
    assert config.evaluation.also == ("online",)
    assert parse(config.resolved()).fingerprint() == config.fingerprint() != parse(SMALL).fingerprint()
