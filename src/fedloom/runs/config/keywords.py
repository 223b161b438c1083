"""Configs from Python values: the keywords of `fedloom.run`, `compare` and `scenario`, and descriptions of scenarios.
The keywords are typed for editors, which complete and check them. They repeat the fields of `RunConfig` and
`ScenarioConfig` that are not parameters of these functions; a test compares the two. A section is a mapping of its keys
to values; where it has a `name`, the name alone will do."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

from fedloom.core.errors import ConfigError
from fedloom.core.process_settings import reproducible_settings
from fedloom.data.scenario import Scenario
from fedloom.data.sources import SOURCES
from fedloom.data.sources.nodes import Nodes
from fedloom.data.sources.python import frame_advice, splits_from
from fedloom.runs.config.run_config import parse
from fedloom.runs.config.scenario_config import ScenarioConfig

Section: TypeAlias = Mapping[str, Any]


class RunKeywords(TypedDict, total=False):
    """Keys of a run's config, except method, scenario and model."""

    preset: str
    share: Literal["all", "trainable"]
    rounds: int
    participation: float
    local_epochs: int
    batch_size: int
    optimizer: str | Section
    augment: Section
    precision: Literal["float32", "tf32", "bfloat16"]
    evaluation: Section
    early_stopping: Section | None
    drift: bool | Section | None
    checkpoint: Section
    seed: int
    engine: str | Section
    flower: Section
    options: Mapping[str, Section]


class CompareKeywords(TypedDict, total=False):
    """The same keys for several runs: each may be a list of values, which are compared."""

    preset: str | Sequence[str]
    share: Literal["all", "trainable"] | Sequence[Literal["all", "trainable"]]
    rounds: int | Sequence[int]
    participation: float | Sequence[float]
    local_epochs: int | Sequence[int]
    batch_size: int | Sequence[int]
    optimizer: str | Section | Sequence[str | Section]
    augment: Section | Sequence[Section]
    precision: Literal["float32", "tf32", "bfloat16"] | Sequence[Literal["float32", "tf32", "bfloat16"]]
    evaluation: Section | Sequence[Section]
    early_stopping: Section | Sequence[Section | None] | None
    drift: bool | Section | Sequence[bool | Section | None] | None
    checkpoint: Section
    seed: int | Sequence[int]
    engine: str | Section
    flower: Section
    options: Mapping[str, Section]


class ScenarioKeywords(TypedDict, total=False):
    """Keys of every scenario, except the source. Each source and each partition has further ones."""

    partition: str
    clients: int
    val: float
    split: Section | None
    tests: Literal["shares", "matched"]
    public: float | Section
    skews: Sequence[Section]
    attack: str | Section | None
    held_out: Section | Sequence[int] | None
    group: str | Section | None
    shared_groups: Literal["refuse", "drop_test", "drop_train"]
    labels: Literal["single", "multi"]
    cross_owner: Literal["keep", "refuse"]
    seed: int | None


# First overloads: keywords that editors complete. The others take sections of methods, and keys of parts, as well.
@overload
def scenario(source: str, **keys: Unpack[ScenarioKeywords]) -> ScenarioConfig: ...
@overload
def scenario(source: str, **keys: Any) -> ScenarioConfig: ...
@overload
def scenario(source: Any, **keys: Any) -> Scenario: ...
def scenario(source: Any, **keys: Any) -> ScenarioConfig | Scenario:
    """Describe a scenario, e.g. `scenario("digits", partition="dirichlet", alpha=0.1, clients=10)`.

    Args:
        source: the name of a source, or your data: a pair of arrays (x, y), a torch Dataset of (sample, label), a list
            of either (one per client), or a Hugging Face `Dataset` or `DatasetDict`. For options, pass the result of
            `fedloom.data.from_arrays`, `from_torch`, `from_clients` or `from_huggingface`. Your data are dealt at once,
            by `seed` (default 0), and every run gets the same clients.
        keys: keys of the config's section `scenario`, and of the source, the partition and the like that they name.

    Without `partition` and its keys, each owner becomes a client if samples have owners; otherwise the samples are
    dealt at random (`iid`). Raises `ConfigError` for unknown names or keys and for values out of range, and `DataError`
    for data of an unknown type or of shapes that do not fit."""
    with reproducible_settings():
        splits = None if isinstance(source, str) else splits_from(source, keys.get("labels", "single"))
    named = {"source": source} if splits is None else {"source": "given", "digest": ""}
    dealt: dict[str, Any] = {}
    if splits is not None and splits.owner_count and keys.get("partition", "natural") == "natural":
        dealt = {"partition": "natural", "clients": splits.owner_count}
    # A key that only a partition knows, as alpha, selects the default partition of the config, dirichlet.
    elif keys.keys() <= {*ScenarioConfig.model_fields, *SOURCES.get(named["source"]).model_fields}:
        dealt = {} if named["source"] == Nodes.kind else {"partition": "iid"}
    described = parse({"scenario": {**named, **dealt, **keys}}).scenario
    if splits is None:
        return described
    with reproducible_settings():
        return described.build(run_seed=0, splits=splits)


describe = scenario  # other functions have a parameter of that name


def suited(model: Any, user_scenario: Scenario | None) -> Any:
    """Return `model`; if it is None and the user's data are no images, the name of a model that takes them."""
    train_set = None if user_scenario is None else user_scenario.train_set
    if model is not None or train_set is None or train_set.x.dim() != 2:
        return model
    return "mlp" if train_set.x.is_floating_point() else "bilstm"


def scenario_section(scenario: Any) -> dict[str, Any]:
    """Return the section `scenario` of a config for a name, a mapping or a description; else raise `ConfigError`."""
    if isinstance(scenario, str):
        scenario = describe(scenario)
    if isinstance(scenario, Mapping) and isinstance(scenario.get("source"), str):
        scenario = describe(**scenario)
    if isinstance(scenario, Scenario):
        partition = "natural" if scenario.by_owners else "iid"
        return {"source": "given", "digest": scenario.digest(), "partition": partition, "clients": scenario.clients}
    if not isinstance(scenario, ScenarioConfig):
        problem = "missing" if scenario is None else f"a {type(scenario).__name__}"
        need = "need the name of a source, its keys as a mapping, or what fl.scenario(...) gives"
        raise ConfigError(f"scenario is {problem}; {frame_advice(scenario) or need}")
    return scenario.resolved()
