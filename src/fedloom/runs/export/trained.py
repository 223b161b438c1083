"""Trained models of a run: after the last or best round, or before and after one round, with metadata to use them."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

from fedloom.core.errors import CheckpointError, ConfigError, RunFolderError, short_repr
from fedloom.core.files import expand_home
from fedloom.core.process_settings import reproducible_settings
from fedloom.core.records import Record, RecordError, get_tree
from fedloom.core.trees import Tree
from fedloom.data import Dataset, Scenario
from fedloom.engine import PASS_BATCH
from fedloom.evaluation import METRICS
from fedloom.evaluation.metrics.ranks import log_odds
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.phases import Predictor, Train
from fedloom.nets.loaded_net import group_of
from fedloom.nets.net import Role
from fedloom.nets.user_model import ModelSource
from fedloom.runs.client_models import kept_rounds, load_kept_round
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.export import modules as metadata_file
from fedloom.runs.export.graphs import graph_bytes
from fedloom.runs.export.modules import ExportMetadata, OwnModel, config_of, module_of, module_of_metadata
from fedloom.runs.export.run_at_checkpoint import Memory, RunAtCheckpoint
from fedloom.runs.storage import checkpoint as checkpoints
from fedloom.runs.storage.checkpoint import Checkpoint
from fedloom.runs.storage.log import At, RoundSelection, Row, best_val, curve
from fedloom.runs.storage.run_data import RunData, known_direction, shown_criterion
from fedloom.runs.storage.run_folder import RunFolder

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained model.

    Attributes:
        module: x [B, ...] normalised float32 (or token ids int64) -> class scores [B, C], in evaluation mode.
        metadata: its classes, input and architecture, and the run that its weights come from.
        user_model: the module that the user passed to the run, or the function that makes it; None for a registered
            model.
    """

    module: nn.Module
    metadata: ExportMetadata
    user_model: ModelSource | None = None

    @property
    def title(self) -> str:
        """Whose model it is, and from which round: "the model of client 3 of fedrep after round 40 of 50"."""
        training = self.metadata.training
        owner = "the global model" if training.client is None else f"the model of client {training.client}"
        return f"{owner} of {training.method} after round {training.round} of {training.rounds}"

    def probabilities(self, x: Tensor) -> Tensor:
        """Return softmax of the class scores [n, C] float32 of samples as stored [n, *metadata.input.shape], the
        sigmoid of each where samples have several labels."""
        return self.scores(x).sigmoid() if self.metadata.labels == "multi" else self.scores(x).softmax(1)

    def scores(self, x: Tensor) -> Tensor:
        """Return the class scores [n, C] of samples as stored [n, *metadata.input.shape]."""
        moments = self.metadata.input.mean, self.metadata.input.std
        mean, std = (None if values is None else torch.tensor(values) for values in moments)
        data = Dataset(x, torch.zeros(len(x), dtype=torch.int64), self.metadata.classes, mean, std)
        with torch.inference_mode():
            parts = torch.split(torch.arange(len(x)), PASS_BATCH)
            return torch.cat([self.module(data.gather(part)) for part in parts])

    def predicted(self, scores: Tensor) -> list[str] | list[list[str]]:
        """Return the class of each sample with class scores [n, C], the first of equal ones, as in the metrics; where
        samples have several labels, those that each one has."""
        classes = self.metadata.classes
        if self.metadata.labels == "multi":
            return [[name for name, score in zip(classes, row, strict=True) if score > 0] for row in scores.tolist()]
        return [classes[row.index(max(row))] for row in scores.softmax(1).tolist()]

    def decisions(self, scores: Tensor) -> list[bool]:
        """Return whether samples with class scores [n, C] are taken for the class of `metadata.decision`."""
        if (decision := self.metadata.decision) is None:
            return []
        odds = scores.double() if self.metadata.labels == "multi" else log_odds(scores.double())
        log_odds_of_class = odds[:, self.metadata.classes.index(decision.label)]
        taken: list[bool] = (log_odds_of_class >= decision.threshold).tolist()
        return taken

    def save(self, path: Path | str) -> Path:
        """Write the model to `path` and its metadata to a .json of the same name, and return the latter's path.
        The suffix of `path` is the format: .safetensors holds the weights; .onnx and .pt2 (torch.export) also hold the
        computation, which is checked against the module. Raises as `fedloom.runs.export.modules.write` and
        `fedloom.runs.export.graphs.graph_bytes`, and `ConfigError` for what .safetensors cannot hold."""
        path = expand_home(path)
        metadata_file.check_place(path)
        export_format = metadata_file.format_of(path)
        if export_format != "safetensors":
            raw, graph = graph_bytes(self.module, self.metadata, export_format)
            return metadata_file.write(self.metadata.model_copy(update={"graph": graph}), raw, path)
        tree = self.module.state_dict()
        if self.metadata.architecture.forward == "method":
            self._refuse_what_a_file_lacks(tree)
        # clone: safetensors refuses tensors that share memory, as those of tied layers do.
        plain = {name: value.detach().cpu().clone().contiguous() for name, value in tree.items()}
        return metadata_file.write(self.metadata, safetensors_bytes(plain, {"format": "pt"}), path)

    def _refuse_what_a_file_lacks(self, tree: Tree) -> None:
        """Raise `ConfigError` if the method predicts with more than nets, e.g. prototypes: a file holds only nets."""
        shape = (2, *self.metadata.input.shape)
        probe = torch.zeros(shape, dtype=torch.int64) if self.metadata.input.ids else torch.rand(shape)
        try:
            again = module_of_metadata(self.metadata, tree, self.user_model)
            with torch.inference_mode():
                same = torch.equal(again(probe), self.module(probe))
        except (LookupError, RecordError):
            same = False
        if not same:
            raise ConfigError(
                f"{self.metadata.training.method} predicts with more than its nets hold, which no file of weights "
                "can say; write .onnx or .pt2, or use fedloom.load or fedloom predict with the run folder"
            )


def load(
    path: Path | str,
    client: int | None = None,
    at: At = "last",
    *,
    model: OwnModel | None = None,
    scenario: Scenario | None = None,
) -> nn.Module:
    """Return the trained model of a run folder or an exported file, as a plain module in evaluation mode.

    The module maps x [B, ...], normalised (token ids: int64), to class scores [B, C] with the weights that were tested.
    An unfinished run gives the model of its last checkpoint, with a warning.

    Args:
        path: a run folder or an exported file. A file holds a single model, so `client` and `at` need a folder.
        client: number of the client whose personal model is loaded; None for the server's.
        at: "last", "best_val" (on validation data, with `evaluation.select: best_val`), or a round with a checkpoint.
        model: your module or its factory, if the run was given one.
        scenario: your scenario, if the run was given one and its method adapts personal models to data.

    Raises `ConfigError` for a client or a round that the run does not have, `RunFolderError` for a path without a run
    or an export, `CheckpointError` for damaged weights.
    """
    return read(path, client, at, model=model, scenario=scenario).module


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)


def read(
    path: Path | str,
    client: int | None = None,
    at: At = "last",
    *,
    model: OwnModel | None = None,
    scenario: Scenario | None = None,
    note: Note = _warn,
) -> Trained:
    """Load a model with its metadata. `path`, `client`, `at`, `model` and `scenario` are those of `load`, which raises
    the same errors; `note` is called with a sentence on unfinished runs and damaged checkpoints, and warns by default.
    """
    if not isinstance(path, Path | str):
        problem = "need a path, as a text or a Path, of a run folder or of an exported file"
        raise ConfigError(f"path = {short_repr(path)}: {problem}")
    path = expand_home(path)
    if path.suffix == metadata_file.SUFFIX and not path.is_dir():
        if client is not None or at != "last":
            raise ConfigError(f"{path}: a file holds one model; clients and rounds are for run folders")
        metadata, tree = metadata_file.read(path)
        with reproducible_settings():
            return Trained(module_of_metadata(metadata, tree, model), metadata)
    if path.suffix in metadata_file.SUFFIXES.values() and not path.is_dir():
        raise ConfigError(f"{path}: a graph for other programs; fedloom reads run folders and {metadata_file.SUFFIX}")
    folder = RunFolder(path)
    resolved = folder.read_config()
    if resolved is None:
        raise RunFolderError(f"{path}: no run there (no config.yaml); give a run folder, or a {metadata_file.SUFFIX}")
    memory = Memory(config_of(resolved, model), scenario)
    checkpoint = _in_folder(memory.config, folder, at, note)
    with reproducible_settings():
        rows = folder.log.rows() if memory.config.evaluation.decision else ()
        return Trained(*RunAtCheckpoint(memory, checkpoint, folder.read_scenario(), rows).model(client, at))


def of_result(result: RunData, client: int | None = None, at: At = "last") -> Trained:
    """Return a model as `read` does, from the result of a finished run, with a folder or weights in memory.
    `client` and `at` are those of `load`. Raises `ConfigError` for a client or a round that the run does not have."""
    with reproducible_settings():
        return Trained(*open_result(result, at).model(client, at))


def open_result(result: RunData, at: At) -> RunAtCheckpoint:
    """Open a finished run after the round that `at` names. Raises as `of_result`."""
    memory = result.memory or Memory(config_of(result.config, None))
    checkpoint: Checkpoint | None
    if result.folder is not None:
        checkpoint = _in_folder(memory.config, RunFolder(result.folder), at, _warn)
    else:
        checkpoint = memory.weights.get(_round(result.rows, at, memory.config, {}))
        if checkpoint is None:
            advice = "evaluation.select=best_val" if at == "best_val" else "a folder (out=...)"
            raise ConfigError(f"at = {at!r}: this run kept no weights of that round; give it {advice}")
    return RunAtCheckpoint(memory, checkpoint, result.scenario, result.rows)


# -- which round -------------------------------------------------------------------------------------------------------
def _round(rows: Sequence[Row], at: At, config: RunConfig, numbers: Mapping[str, Any]) -> int:
    """Return the round that `at` names. numbers: the contents of summary.json, empty if there is none."""
    if not isinstance(at, bool) and str(at).isdecimal():
        return int(at)
    if at not in get_args(RoundSelection):
        raise ConfigError(f"at = {short_repr(at)}: need last, best_val or the number of a round")
    if not rows:
        raise RunFolderError(
            "metrics.jsonl: missing or empty, and the run is finished; run again with existing='fresh'"
        )
    if at == "last":
        return rows[-1]["round"]
    criterion, name = None, config.evaluation.select_by
    if name not in METRICS and (numbers.get("select") == "best_val" or known_direction(numbers, name) is not None):
        # the metric may come from a script that this process has not run
        criterion = shown_criterion(rows, numbers, name, config.evaluation.last_k)
    criterion = criterion or config.evaluation.criterion()
    best = best_val(rows, criterion)
    if best is None and curve(rows, criterion.name, "val")[0]:
        raise ConfigError(f"at = 'best_val': {criterion.name} on validation data is NaN in every round; take last")
    if best is None:
        raise ConfigError("at = 'best_val': this run has no validation data; take last, or set scenario.val above 0")
    return best[0]


def _in_folder(config: RunConfig, folder: RunFolder, at: At, note: Note) -> Checkpoint:
    """Return the checkpoint of the round that `at` names; of an unfinished run the last one."""
    fingerprint = config.fingerprint()
    if at == "last" and folder.read_json("summary.json") is None:
        latest = checkpoints.load_latest(folder.checkpoints, fingerprint, note)
        if latest is None:
            raise RunFolderError(f"{folder.path}: unfinished, and without a checkpoint yet; continue the run")
        note(f"{folder.path} is unfinished: this is the model after round {latest.round} of {config.rounds}")
        return latest
    round_ = _round(folder.log.rows(), at, config, folder.read_json("summary.json") or {})
    round_checkpoint = checkpoints.load_round(folder.checkpoints, round_, fingerprint)
    if round_checkpoint is None:
        rounds = ", ".join(map(str, checkpoints.checkpoints_by_round(folder.checkpoints))) or "none"
        detail = f"kept are those of {rounds}; evaluation.select=best_val keeps the best round as well"
        raise CheckpointError(f"{folder.path}: no checkpoint of round {round_} ({at}); {detail}")
    return round_checkpoint


class RoundModels:
    """The models of a round that `checkpoint.keep_clients` names, as plain modules in evaluation mode: `clients`, their
    `uploads` by id, and `after`, the server's state after the `round`. Raises `ConfigError` for a round_ that the
    result did not keep, and `CheckpointError` for damaged files."""

    def __init__(self, result: RunData, round_: int) -> None:
        try:
            round_ = index(round_)
        except TypeError:
            raise ConfigError(f"round {round_!r}: need the number of a round, e.g. 1") from None
        self._memory = result.memory or Memory(config_of(result.config, None))
        folder = None if result.folder is None else RunFolder(result.folder).client_models
        kept = () if folder is None else kept_rounds(folder)
        if folder is None or round_ not in kept:
            known = f"kept are {', '.join(map(str, kept))}" if kept else "none is kept"
            remedy = f"run with a folder and checkpoint.keep_clients=[{round_}]"
            raise ConfigError(f"round {round_}: its client models are not kept ({known}); {remedy}")
        self._described = result.scenario
        self._kept = load_kept_round(folder, round_, self._memory.config.fingerprint())
        self.round, self.clients = round_, tuple(self._kept.uploads)
        self.uploads, self.after = self._kept.uploads, self._kept.after

    def server(self) -> nn.Module:
        """Return the server's model after the round."""
        return self._model_of(self._kept.after, self.round)

    def start(self) -> nn.Module:
        """Return the server's model before the round."""
        return self._model_of(self._kept.before, self.round - 1)

    def client(self, client: int) -> nn.Module:
        """Return the model that a participant had at the end of the round: its upload joined with its private state.
        Raises `ConfigError` for a client that did not take part, and for methods whose uploads hold no model."""
        if client not in self.clients:
            clients = ", ".join(map(str, self.clients))
            raise ConfigError(f"client {client}: not aggregated in round {self.round}; its clients are {clients}")
        opened = self._opened(self._kept.before, self.round)
        method, setup, group = opened.method, opened.setup, group_of(client, opened.setup.tasks)
        if method.spec.nets:
            problem = "none of them is its model alone"
            raise ConfigError(f"{opened.config.method} trains several nets at a client: {problem}")
        with reproducible_settings():
            predictor = Predictor(self._client_tree(opened, client))
            return module_of(setup.nets[group], predictor, setup.blueprints[group], method)[0]

    def _client_tree(self, opened: RunAtCheckpoint, client: int) -> Tree:
        method, task = opened.method, opened.setup.tasks[group_of(client, opened.setup.tasks)]
        facts = opened.context(client)
        net = opened.setup.nets[task.group].functional
        server_ctx = ServerContext(task, self.round, net, client=client, drawn=tuple(sorted(self._kept.uploads)))
        upload, sent = self._kept.uploads[client], method.spec.sends.get("model")
        state = self._kept.states.get(client) or method.client_init(facts)
        tree = get_tree(state, "model") if "model" in state else {}
        if "model" in upload and isinstance(upload["model"], dict):
            if sent is not None and sent.form != "whole":  # the method alone knows its sign, scale and origin
                problem = "its uploads hold changes and no weights, so client models cannot be made of them"
                raise ConfigError(f"{opened.config.method}: {problem}")
            tree = tree | get_tree(upload, "model")
        elif "model" not in state:
            raise ConfigError(
                f"{opened.config.method}: its uploads hold {', '.join(sorted(upload))} and no model, so client models "
                "cannot be made of them"
            )
        missing = task.init.keys() - tree.keys()
        if missing:  # weights neither sent nor kept equal the received ones, unless the client trained them
            start = method.begin(method.down(self._kept.before, client, server_ctx), state, facts)
            phases = [phase for phase in method.phases(start, facts) if isinstance(phase, Train)]
            trained = frozenset[Role]().union(*(phase.trains for phase in phases)) - {Role.EXTRA}  # begin knows where
            missing = {name for name in missing if name not in start.tree or task.roles[name] in trained}
            tree = start.tree | tree
        if missing:
            raise ConfigError(
                f"{opened.config.method}: {len(missing)} entries of client {client}'s net are neither in its upload "
                f"nor in its state, e.g. {min(missing)}"
            )
        return {name: torch.clone(tree[name]) for name in task.init}

    def _model_of(self, server: Record, round_: int) -> nn.Module:
        with reproducible_settings():
            return self._opened(server, round_).model(None, "last")[0]

    def _opened(self, server: Record, round_: int) -> RunAtCheckpoint:
        return RunAtCheckpoint(self._memory, Checkpoint(round_, server, {}), self._described)
