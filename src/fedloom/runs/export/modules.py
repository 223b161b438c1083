"""Modules with trained weights, and the JSON file that describes an exported one: net, input and classes."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.files import parse_json, refuse_unwritable, write_atomic
from fedloom.core.records import Record
from fedloom.core.streams import Streams
from fedloom.core.text import ACCURACY
from fedloom.core.trees import Tree
from fedloom.data.imputation import ImputedColumn
from fedloom.evaluation.metric import METRICS
from fedloom.methods import METHODS, Method
from fedloom.methods.contract.contexts import ServerContext, Task
from fedloom.methods.contract.phases import Predictor, plain_logits
from fedloom.nets.blueprint import Blueprint
from fedloom.nets.loaded_net import PredictionModule, load_tree, restore_head_bias, unfreeze_buffers
from fedloom.nets.net import EXTRA, MODELS, Net
from fedloom.nets.user_model import ModelSource, UserModel
from fedloom.runs.config.keys import UserModelConfig
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.storage.log import At, Row, selected_rounds

ExportFormat = Literal["safetensors", "onnx", "torch-export"]
SUFFIX = ".safetensors"
SUFFIXES: Mapping[ExportFormat, str] = {"safetensors": SUFFIX, "onnx": ".onnx", "torch-export": ".pt2"}


class _Part(BaseModel, frozen=True, extra="ignore"):
    """A base of metadata that ignores unknown keys, because a later version may have written them."""


class Architecture(_Part):
    """A registered model with its options, or the class of one that the user passed as a Python object (`given`).
    forward: "model" if the weights are the model's own; "method" if the method predicts with several nets or more."""

    model: str
    options: dict[str, Any]
    given: bool
    forward: Literal["model", "method"]


class Input(_Part):
    """The format of samples, as `fedloom.data.describe_input` gives it. reading: the source's keys for new files."""

    shape: tuple[int, ...]
    dtype: Literal["uint8", "float32", "int64"]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    white: float | None
    ids: int | None
    words: tuple[str, ...]
    features: tuple[str, ...] = ()
    ranges: tuple[tuple[float, float], ...] = ()
    imputed: tuple[ImputedColumn, ...] = ()
    reading: dict[str, Any] = {}


class Training(_Part):
    """The origin of the weights: method, round and client (None for the server's model). source: the method's paper."""

    method: str
    source: str = ""
    preset: str
    options: dict[str, Any]
    seed: int
    clients: int
    rounds: int
    round: int
    at: At
    client: int | None


class Graph(_Part):
    """How an exported graph is called, and how it was checked against the module. The first dimension of inputs and
    outputs is the batch, of any size. opset: version of ONNX's operators; None for torch.export. difference: the
    largest one between class scores of the graph and of the module, over batches of random samples of these sizes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int | None
    torch: str
    checked_with: str
    batches: tuple[int, ...]
    difference: float


class Decision(_Part):
    """A threshold on the log odds of the class `label`, for which samples are taken from it on. positives, negatives:
    validation samples of the class and of all others, by which `rule` chose it after the `round`."""

    label: str
    threshold: float
    rule: str | dict[str, float]
    positives: int
    negatives: int
    round: int


def decision_at(rows: Sequence[Row], config: RunConfig, round_: int | None = None) -> Decision | None:
    """Return the threshold in the `rows` of a run with this `config` after `round_` (None: the selected round)."""
    evaluation, values = config.evaluation, dict[str, float]()
    if evaluation.decision is None:
        return None
    rule = evaluation.select if evaluation.select == "best_val" else "last"
    round_ = selected_rounds(rows, rule, 1, evaluation.criterion())[0] if round_ is None else round_
    for row in rows:  # the first protocol that has one counts
        if row["round"] == round_ and row["split"] == "val" and row["name"].startswith("decision_"):
            values.setdefault(row["name"].removeprefix("decision_"), row["value"])
    chosen = {"label": evaluation.decision.label, "rule": evaluation.decision.rule, "round": round_, **values}
    return Decision.model_validate(chosen) if values else None


class ExportMetadata(_Part):
    """All that is needed to use an exported model.
    weights, sha256: name and hash of the file with the weights. graph: of formats that hold the computation too.
    decision: of a global model, the threshold at which samples are taken for a class."""

    fedloom: str = __version__
    architecture: Architecture
    classes: tuple[str, ...]
    labels: Literal["single", "multi"] = "single"  # multi: each class has a probability of its own, the sigmoid
    input: Input
    training: Training
    format: ExportFormat = "safetensors"
    graph: Graph | None = None
    decision: Decision | None = None
    weights: str = ""
    sha256: str = ""


def format_of(path: Path) -> ExportFormat:
    """Return the format that a file's suffix stands for. Raises `ConfigError` for other suffixes."""
    formats = {suffix: name for name, suffix in SUFFIXES.items()}
    if path.suffix not in formats:
        listed = ", ".join(f"{path.stem or 'model'}{suffix} ({name})" for suffix, name in formats.items())
        raise ConfigError(f"{path}: no format has the suffix {path.suffix!r}; take a name such as {listed}")
    return formats[path.suffix]


def metadata_path(path: Path) -> Path:
    """Return the path of the metadata of an exported file: model.json, or model.onnx.json and model.pt2.json."""
    return path.with_suffix(".json") if path.suffix == SUFFIX else path.with_name(f"{path.name}.json")


def write(metadata: ExportMetadata, raw: bytes, path: Path) -> Path:
    """Write `raw` bytes to `path`, and metadata to a .json beside it; return that. Raises as `check_place`."""
    check_place(path)
    file, digest = metadata_path(path), hashlib.sha256(raw).hexdigest()
    described = metadata.model_copy(update={"format": format_of(path), "weights": path.name, "sha256": digest})
    try:
        # An export that is cut off between the two has no metadata, or another sha256, and `read` says so.
        write_atomic(path, raw)
        write_atomic(file, described.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written ({error.strerror})") from None
    return file


def check_place(path: Path) -> None:
    """Raise `ConfigError` for a wrong suffix or foreign files at `path`, `RunFolderError` if it is not writable."""
    format_of(path)
    for file in (path, metadata_path(path)):
        if file.exists() and not is_exported(path):
            raise ConfigError(f"{file} is there, and no export of fedloom's; choose another name with out=...")
        try:
            refuse_unwritable(file)
        except OSError as error:
            raise RunFolderError(f"{file}: cannot be written ({error.strerror})") from None


def read(path: Path) -> tuple[ExportMetadata, Tree]:
    """Read the metadata and the weights that `write` wrote to `path`.
    Raises `RunFolderError` for files that are missing, damaged, or do not belong together."""
    metadata_file = metadata_path(path)
    try:
        metadata = ExportMetadata.model_validate_json(metadata_file.read_bytes())
        raw = path.read_bytes()
        tree = load(raw)
    except FileNotFoundError as error:
        problem = f"no such file; an export is {path.name} and {metadata_file.name}"
        raise RunFolderError(f"{error.filename}: {problem}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "it"
        problem = f"no metadata of an export ({key}: {first['msg']}); export the run again"
        raise RunFolderError(f"{metadata_file}: {problem}") from None
    except (SafetensorError, OSError) as error:
        raise RunFolderError(f"{path}: cannot be read ({error}); export the run again") from None
    if hashlib.sha256(raw).hexdigest() != metadata.sha256:
        raise RunFolderError(f"{path}: does not match the sha256 in {metadata_file.name}; export the run again")
    return metadata, tree


def is_exported(path: Path) -> bool:
    """Return whether fedloom exported the file at `path`, according to the metadata next to it."""
    try:
        content = parse_json(metadata_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "fedloom" in content and content.get("weights") == path.name


OwnModel: TypeAlias = ModelSource | Sequence[ModelSource]
"""A module of the user's, or what makes one; several where a run was given a list."""


def config_of(resolved: Mapping[str, Any], user_model: OwnModel | None) -> RunConfig:
    """Return the config that `resolved` describes, with `user_model` as each model that was passed as a Python object.
    Raises `ConfigError` if a model is missing."""
    named = resolved.get("model")
    words: list[Any] = list(named) if isinstance(named, list) else [named]
    places = [number for number, word in enumerate(words) if isinstance(word, Mapping) and word.get("name") == "given"]
    sources = [] if user_model is None else list(user_model) if isinstance(user_model, Sequence) else [user_model]
    if len(sources) != len(places):
        had = ", ".join(str(words[number].get("module")) for number in places) or "none, but a registered one"
        raise ConfigError(
            f"this run's models from Python: {had}; pass these or their factories to fedloom.load(..., model=...), or "
            "their name to a command, --model FILE.py:NAME"
        )
    for number, source in zip(places, sources, strict=True):
        words[number] = UserModelConfig.model_validate({**words[number], "user_model": UserModel(source)})
    return _parsed_without_metrics({**resolved, "model": words if isinstance(named, list) else words[0]})


def _parsed_without_metrics(resolved: Mapping[str, Any]) -> RunConfig:
    """Return a finished run's config, whose metrics may be functions of a script that this process has not run."""
    evaluation = dict(resolved.get("evaluation", {}))
    metrics, select_by = tuple(evaluation.get("metrics", ())), evaluation.get("select_by", ACCURACY.name)
    if all(name in METRICS for name in (*metrics, select_by)):
        return parse(resolved)
    evaluation["metrics"] = [name for name in metrics if name in METRICS]
    evaluation["select_by"] = select_by if select_by in METRICS else ACCURACY.name
    config = parse({**resolved, "evaluation": evaluation})
    recorded = {"metrics": metrics, "select_by": select_by}  # which the fingerprint needs
    return config.model_copy(update={"evaluation": config.evaluation.model_copy(update=recorded)})


@contextlib.contextmanager
def packages_named(model: str) -> Iterator[None]:
    """Raise `ConfigError` if the model needs a package that is not installed."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"model {model} needs a package that is not installed: {error}") from None


def module_of(
    net: Net, predictor: Predictor, blueprint: Blueprint, method: Method
) -> tuple[nn.Module, Literal["model", "method"]]:
    """Return the predictor as a module in evaluation mode, made of `net`: the plain model, or a method's prediction."""
    load_tree(net, predictor.tree)
    unfreeze_buffers(net)
    # `module_of_metadata` builds the plain net, whose head has a bias: zeros stand for the one that was not trained.
    if not blueprint.head_bias:
        restore_head_bias(net, dataclasses.replace(blueprint, head_bias=True).build(Streams(0)))
    net.eval()
    if predictor.logits is not plain_logits or method.spec.nets:
        return PredictionModule(net, predictor.logits).eval(), "method"
    if EXTRA in net._modules:
        del net.extra
    return net.original_module.eval(), "model"


def module_of_metadata(metadata: ExportMetadata, tree: Tree, user_model: OwnModel | None) -> nn.Module:
    """Return the module that `metadata` describes, with the weights `tree`, in evaluation mode. Raises `ConfigError` if
    it is missing and for models that are not registered, `RunFolderError` for weights that do not fit."""
    if user_model is not None and (isinstance(user_model, Sequence) or not metadata.architecture.given):
        problem = f"{metadata.weights} fits the {metadata.architecture.model} of its .json; one module at most"
        raise ConfigError(f"model: {problem}")
    with packages_named(metadata.architecture.model):
        if metadata.architecture.forward == "method":
            module = _of_method(metadata, user_model)
        else:
            net = _blueprint(metadata, user_model).build(Streams(0))
            unfreeze_buffers(net)
            module = net.original_module
    try:
        module.load_state_dict(tree)
    except RuntimeError as error:
        why = " ".join(str(error).split())[:200]
        raise RunFolderError(f"{metadata.weights or 'weights'}: do not fit {type(module).__name__}: {why}") from None
    return module.eval()


def _blueprint(metadata: ExportMetadata, user_model: ModelSource | None, **options: Any) -> Blueprint:
    name, is_user_model = metadata.architecture.model, metadata.architecture.given
    if is_user_model and user_model is None:
        problem = "pass it or its factory, fedloom.load(..., model=...), or --model FILE.py:NAME"
        raise ConfigError(f"{metadata.weights} needs your {name}: {problem}")
    if not is_user_model and name not in MODELS:
        raise ConfigError(f"model '{name}' is not registered here: import the module that registers it")
    make = None if user_model is None else UserModel(user_model)
    return Blueprint(
        name, metadata.input.shape, len(metadata.classes), metadata.architecture.options, factory=make, **options
    )


def _of_method(metadata: ExportMetadata, user_model: ModelSource | None) -> nn.Module:
    """Return a module that predicts as the method does, with a state made of the weights alone."""
    training = metadata.training
    method = METHODS.get(training.method).configured(training.preset, training.options)
    spec = method.spec
    blueprint = _blueprint(metadata, user_model, head_bias=spec.head_bias, nets=spec.nets, extra=method.extra)
    net = blueprint.build(Streams(0))
    facts = {"clients": training.clients, "num_classes": len(metadata.classes), "rounds": training.rounds}
    task = Task.of(net, **facts, local_epochs=1, streams=Streams(training.seed), blueprint=blueprint)
    private = method.private_names(task)
    server: Record = {"model": {name: value for name, value in task.init.items() if name not in private}}
    state: Record = {"model": {name: value for name, value in task.init.items() if name in private}}
    held, kind = (None, "global") if training.client is None else (state, "personal")
    client = -1 if training.client is None else training.client
    offered = method.predictors(server, held, ServerContext(task, training.round, net.functional, client=client))
    return module_of(net, offered[kind], blueprint, method)[0]
