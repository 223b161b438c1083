"""The contract of a method: one declaration and a few hooks, each a pure function of its arguments.

    examine -> server_init, client_init -> (down -> begin -> phases -> end -> aggregate)* -> predictors

Every hook's default is FedAvg over the roles that `Spec.private` leaves shared, so a method states its changes only.
State goes in and comes out as records (`core/records.py`); nothing is kept on `self` between rounds, and no hook
touches files, devices, processes or clocks. The round loop calls the hooks and never asks which method it runs.
`contexts.py` has the arguments of hooks, `spec.py` the declaration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, cast

import numpy as np
import torch
from pydantic import BaseModel, Field, JsonValue, ValidationError
from torch import Tensor, nn

from fedloom.core.errors import ConfigError, UnknownKeyError, short_repr, suggest_name
from fedloom.core.records import Record, Value, get_number, get_table, get_tensor, get_tree
from fedloom.core.registry import Registry
from fedloom.core.synonyms import plain_word
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree, select
from fedloom.methods.contract.citation import Citation, ListedCitation, compared_in, entry_of, papers
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Start, Task, Tasks, Work
from fedloom.methods.contract.means import ByNumber, Slices, mean_by_label, mean_of, require
from fedloom.methods.contract.phases import Batch, Consts, Objective, Phase, Predictor, Train, cross_entropy
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import BN_ROLES, Net


class MethodRegistry(Registry["type[Method]"]):
    """Methods by name. `base+wrapper` is the method `base` in that wrapper: `fedprox+dw`."""

    def get(self, name: str) -> type[Method]:
        """The method called `name`. Raises `ConfigError` that suggests the nearest known name."""
        base, plus, wrapper = name.rpartition("+")
        return _wrapped(wrapper, base) if plus else super().get(name)

    def why_unknown(self, name: str) -> str:
        """As `Registry.why_unknown`; says of a wrapper how it is written."""
        wrapper = next((word for word in WRAPPERS.names() if plain_word(word) == plain_word(name)), "")
        return f"{wrapper} is a wrapper; write fedavg+{wrapper}" if wrapper else super().why_unknown(name)

    def __contains__(self, name: object) -> bool:
        base, plus, wrapper = str(name).rpartition("+")
        return wrapper in WRAPPERS and base in self if plus else super().__contains__(name)


METHODS = MethodRegistry("method", home="fedloom.methods")
WRAPPERS: Registry[Callable[[type[Method]], type[Method]]] = Registry("wrapper", home="fedloom.methods")


@functools.cache
def _wrapped(wrapper: str, base: str) -> type[Method]:
    return WRAPPERS.get(wrapper)(METHODS.get(base))


PRESETS = ("paper", "authors", "sound")
LATER: dict[str, JsonValue] = {"later": True}
"""Marks an option (`json_schema_extra`) that runs of earlier versions do not know."""
Uploads: TypeAlias = Mapping[int, Record]
Weights: TypeAlias = Literal["samples", "uniform"] | Sequence[float] | Sequence[Tree] | Tensor
M = TypeVar("M", bound="type[Method]")


def register(method: M) -> M:
    """Class decorator: enter a method in the registry under its lower-case class name, with a preset for each paper
    that compares with it (`citation.compared_in`): the settings that the paper states for all methods, then the
    method's own. `citation` is not inherited. The library's methods have presets and settings in `sources.yaml`."""
    own, entry = vars(method).get("citation"), entry_of(method.name())
    own = None if isinstance(own, ListedCitation) else own  # of a class that is registered again
    if "presets" in entry:
        method.presets = {**{name: {} for name in PRESETS}, **entry["presets"]}
    method.settings = entry.get("settings", method.settings)
    method.citation = own or vars(Method)["citation"]
    comparing, known = own.compared_in if own else compared_in(method.name()), papers()
    declared = vars(method).get("presets", {})  # a base's papers compared with the base
    presets = {name: values for name, values in method.presets.items() if name in declared or name not in known}
    method.presets = {**presets, **{paper: method.presets.get(paper, {}) for paper in comparing}}
    stated = {paper: method.settings.get(paper, known[paper]["settings"]) for paper in comparing}
    method.settings = {**method.settings, **stated}
    METHODS.register(method.name())(method)
    return method


def tables_of(uploads: Uploads, name: str) -> ClassTable:
    """Stack the class tables that clients sent as `name`: [m, C, d], in the order of client ids."""
    return ClassTable.stack([get_table(upload, name) for upload in uploads.values()])


def tensors_of(uploads: Uploads, name: str) -> Tensor:
    """Stack the tensors that clients sent as `name`: [m, ...], in the order of client ids."""
    return torch.stack([get_tensor(upload, name) for upload in uploads.values()])


def numbers_of(uploads: Uploads, name: str) -> list[float]:
    """Return the numbers that clients sent as `name`, in the order of client ids."""
    return [get_number(upload, name) for upload in uploads.values()]


class Options(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """Base of every method's options: unknown keys are errors, numbers are finite, values do not change."""

    def resolved(self) -> dict[str, Any]:
        """Return all options as plain values; without those marked `LATER` that have their default."""
        fields = type(self).model_fields
        return {
            name: value
            for name, value in self.model_dump(mode="json").items()
            if fields[name].json_schema_extra != LATER or getattr(self, name) != fields[name].default
        }


def option(default: Any, description: str, **constraints: Any) -> Any:
    """Declare an option with its meaning, in sentences, and bounds such as `ge=0`, as those of `pydantic.Field`."""
    return Field(default, description=description, **constraints)


_Options = Options  # `Method.Options` hides the name within the class


class Method:
    """Base of all methods. Its hooks, whose order is in the module's docstring, are those of FedAvg.

    Hooks read these arguments and change none: `server` and `state`, the records that the server and a client keep
    between rounds, as `server_init` and `client_init` or the last `aggregate` and `end` returned them; `uploads`,
    records by client id; and `ctx`, the round and the task, with the client or with the server's data and nets."""

    spec: Spec = Spec()  # a class's; an instance's own where it depends on options
    Options: ClassVar[type[Options]] = Options
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {name: {} for name in PRESETS}
    # Keys of a run, by preset, that hold where a config leaves them out: the optimiser of the released code, say.
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    # Its source and traffic, for tables and pages.
    citation: ClassVar[Citation | None] = cast(Any, ListedCitation())
    wrappers: ClassVar[tuple[str, ...]] = ()  # those around the method, from the inside out

    def __init__(self, options: _Options | None = None) -> None:
        self.options: Any = options if options is not None else self.Options()

    @classmethod
    def name(cls) -> str:
        """The registered name."""
        return cls.__name__.lower()

    @classmethod
    def configured(cls, preset: str, overrides: Mapping[str, Any]) -> Method:
        """Return the method with the options of `preset`, changed by `overrides`. Raises `ConfigError` for an unknown
        preset or option, or a value out of range."""
        if preset not in cls.presets:
            raise ConfigError(
                f"unknown preset {short_repr(preset)} of {cls.name()}: {suggest_name(preset, cls.presets)}"
            )
        fields = cls.Options.model_fields
        for key in overrides:
            if key not in fields:
                raise UnknownKeyError(cls.name(), str(key), fields)
        try:
            return cls(cls.Options(**{**cls.presets[preset], **overrides}))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"{cls.name()}.{key} = {short_repr(first['input'])}: {first['msg']}") from None

    # 0. examine ---------------------------------------------------------------------------------------------
    def examine(self, tasks: Tasks, participants: int) -> list[Diagnostic]:
        """Check the run before it starts, and return diagnostics. `tasks` has one task for each group of clients with
        one net; `participants` clients take part in each round. Raises `ConfigError` for a run that cannot work."""
        if len(tasks) > 1 and self.spec.architectures == "one":
            raise ConfigError(
                f"{self.name()} averages weights of one architecture, the clients have {len(tasks)}; use one model, or "
                "a method for several: "
                + ", ".join(n for n in METHODS.names() if METHODS.get(n).spec.architectures == "any")
            )
        if self.spec.features and not all(task.classifier for task in tasks):
            raise ConfigError(
                f"{self.name()} works on the features that enter a linear head, and this model has no such head at its "
                "end; name it with fedloom.wrap(model, head=...), or take a method that needs none, as fedavg"
            )
        require(tasks, self.name(), self.spec)
        if self.spec.private and self.spec.private <= BN_ROLES and not tasks[0].names(BN_ROLES):
            message = f"{self.name()} keeps batch norm with the client, and this net has none: nothing is kept"
            return [Diagnostic(f"{self.name()}.no_batch_norm", message, 0.0)]
        return []

    # 1. init ------------------------------------------------------------------------------------------------
    def server_init(self, ctx: ServerContext) -> Record:
        """Return the first server state: the shared part of the common initial weights."""
        return {"model": self._shared(ctx.task.init, ctx.task)}

    def client_init(self, ctx: ClientContext) -> Record:
        """Return the state of a client that has none yet: the private part of the initial weights, if there is one."""
        private = self._private(ctx.task.init, ctx.task)
        return {"model": private} if private else {}

    # 2. down ------------------------------------------------------------------------------------------------
    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        """Return the payload for one `client` (0 to N - 1), from the `server`'s state: what `spec.receives` names."""
        receives = self.spec.receives
        return server if receives is None else {name: server[name] for name in receives if name in server}

    # 3. begin -----------------------------------------------------------------------------------------------
    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        """Return the weights to start from and the constants of this round, from the `payload` that `down` made and the
        client's `state`. Their trees must not be changed."""
        return Start(tree=self._joined(payload, state, ctx.task), consts={})

    # 4. phases ----------------------------------------------------------------------------------------------
    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        """Return the phases of the client's work, in order."""
        return [Train(self.loss, epochs=ctx.task.local_epochs)]

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Tensor | Objective:
        """Return the local objective: a scalar, or an `Objective`. `net` has the weights of this step, in training
        mode; average over the samples of `batch` with `batch.mean`, which leaves padded rows out; `consts` are those of
        `begin` and the statistics of phases. The function is pure, and no shape in it depends on the data."""
        return batch.mean(cross_entropy(net(batch.x), batch.y))

    # 5. end -------------------------------------------------------------------------------------------------
    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        """Return the upload and the client's next state, from its `work` and its `state` before the round. The default
        sends the statistics and the "class_counts" that `spec.sends` names, too."""
        shared, private = self._shared(work.tree, ctx.task), self._private(work.tree, ctx.task)
        facts = {**work.collected, "class_counts": ctx.class_counts}
        sent: Record = {"model": shared, "samples": ctx.samples}
        sent |= {name: facts[name] for name in self.spec.sends if name in facts}
        return sent, ({"model": private} if private else {})

    # 6. aggregate -------------------------------------------------------------------------------------------
    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        """Return the next server state from any non-empty set of `uploads`, which are in the order of client ids."""
        return {"model": self.mean(uploads)}

    def mean(
        self, uploads: Uploads, key: str = "model", weights: Weights = "samples", within: Tree | None = None
    ) -> Any:
        """Average the entry `key` of all uploads, by `reduce`: trees, class tables or tensors. Of several labels, a row
        of a head is the mean over the clients that record its label, with `weights` times the share of samples that do.

        Args:
            uploads: the uploads by client id.
            key: name of the entry, which each upload has.
            weights: "samples" (McMahan et al. 2017, Algorithm 1), "uniform", or one number for each upload; for class
                tables, where only holders of a class count, also a tensor [m, C]. With `within` also one tree for
                each upload that broadcasts to its entries; entries that it lacks weigh 1.
            within: a whole tree, when uploads hold leading slices of it, of another size for each client
                (`Sent.sliced`). Each number is the mean over its holders, and keeps its value from here without any.
        """
        client_weights: Iterable[float] | Iterable[Tree] | Tensor = (
            (get_number(upload, "samples") if weights == "samples" else 1.0 for upload in uploads.values())
            if isinstance(weights, str)
            else weights
        )
        if within is None:
            return mean_by_label(uploads, key, client_weights, functools.partial(self.reduce, key))  # type: ignore[arg-type]
        slices, values = Slices(within), (upload[key] for upload in uploads.values())
        return slices.filled(self.reduce(key, *slices.whole(values, client_weights)))

    def reduce(self, key: str, values: Iterable[Value], weights: Iterable[float] | Tensor | ByNumber) -> Value:
        """Reduce the `values` of the upload entry `key`, which come one by one in the order of client ids, to their
        mean by `weights` (0 or more, of any sum; for class tables also [m, C], for trees `ByNumber`). Wrappers override
        this."""
        return mean_of(values, weights)

    # 7. predictors ------------------------------------------------------------------------------------------
    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        """Return predictors by kind, from the `server`'s last state: "global" for `state` None, if no entry is private;
        "personal" for a client's `state`, if an entry is private or the method adapts. Methods may add others."""
        server = self.tested(server, ctx)
        if state is None:
            complete = not self.private_names(ctx.task)
            return {"global": Predictor(get_tree(server, "model"))} if complete else {}
        adapts = type(self).adapt is not Method.adapt
        if not self.spec.private and not self.spec.private_nets and not adapts:
            return {}
        return {"personal": Predictor(self._joined(server, state, ctx.task))}

    def diagnostics(self, server: Record, uploads: Uploads, ctx: ServerContext) -> list[Diagnostic]:
        """Report, from this round's `uploads` and the `server`'s state after `aggregate`, where the method does not do
        what it promises. Each code is shown once."""
        return []

    # -- hooks that few methods change ------------------------------------------------------------------------
    def extra(self, net: Net) -> nn.Module | None:
        """Create trainable tensors, `net.extra` in a loss: a mixing weight, say, or a second head. Entries "extra...."
        have the role `Role.EXTRA`, shared unless `Spec.private` has it. Draw them from torch's generator."""
        return None

    def select(self, server: Record, count: int, ctx: ServerContext) -> Sequence[int]:
        """Draw `count` of the ids 0 to N - 1 without replacement; drawn clients without data sit out. Random numbers
        come from `ctx.task.streams.numpy(purpose, ctx.round)` only, so that a run can be repeated."""
        clients = ctx.task.clients
        if count == clients:
            return range(clients)
        drawn = ctx.task.streams.numpy("participants", ctx.round).choice(clients, count, replace=False)
        return [int(client) for client in np.sort(drawn)]

    def pack(
        self, upload: Record, state: Record, received: Record, before: Record, ctx: ClientContext
    ) -> tuple[Record, Record]:
        """Encode an `upload` for travel, and return it with the client's next `state`; both are the results of `end`.
        `received` is the payload, `before` the client's state before the round."""
        return upload, state

    def unpack(self, server: Record, uploads: Uploads, of: Callable[[int], ServerContext]) -> Uploads:
        """Decode the packed `uploads`, exactly or nearly to what `end` returned. `server` is the state before the
        round; `of` returns the context in which `down` made a client's payload."""
        return uploads

    def figures(self, server: Record, ctx: ServerContext) -> Mapping[str, float]:
        """Return numbers for the results, by name, after a round: the privacy budget that is spent, say."""
        return {}

    def tested(self, server: Record, ctx: ServerContext) -> Record:
        """Return the server's state with the weights that are tested, if the next round starts from different ones: an
        average of iterates, say. `predictors` reads it, `down` does not."""
        return server

    def adapt(self, start: Start, ctx: ClientContext) -> list[Phase]:
        """Return the phases that a client runs on its training data, on a copy of a personal model, before its test.
        Their time counts as evaluation, their operations as the run's."""
        return []

    def adapted(self, work: Work, predictor: Predictor, ctx: ClientContext) -> Predictor:
        """Return the predictor that is tested, from the `work` of the phases of `adapt` and the `predictor` before."""
        return replace(predictor, tree=work.tree)

    def opening(self) -> Method | None:
        """Return the method of an opening round before the first; None for no such round. All clients with data take
        part. Its hooks see round 0 and the state of `server_init`; the result of its `aggregate` and the states of its
        `end` are the ones that the first round starts from. Later hooks must work without them: a client may miss the
        opening, and a federation over Flower tries uploads on the state of `server_init`."""
        return None

    def closing(self) -> Method | None:
        """Return the method of a closing round after the last; None for no such round. All clients with data take part.
        Its hooks see round T + 1, and the result of its `aggregate` is the final state."""
        return None

    # -- shared by the defaults ------------------------------------------------------------------------------
    def private_names(self, task: Task) -> set[str]:
        """Return the names of entries that stay with the client: by `spec.private` and `spec.private_nets`."""
        spec = self.spec
        names = task.names(spec.private) if spec.private else set()
        if spec.private_nets:
            names |= {name for name in task.init if name.partition(".")[0] in spec.private_nets}
        return names

    def _shared(self, tree: Tree, task: Task) -> Tree:
        private_names = self.private_names(task)
        return {name: value for name, value in tree.items() if name not in private_names} if private_names else tree

    def _private(self, tree: Tree, task: Task) -> Tree:
        private_names = self.private_names(task)
        return select(tree, private_names) if private_names else {}

    def _full(self, server: Record, state: Record | None, task: Task) -> Tree:
        """The full tree of the server's and a client's part, with first weights where there is no `state`."""
        return self._joined(server, {"model": self._private(task.init, task)} if state is None else state, task)

    @staticmethod
    def _joined(shared: Record, private: Record, task: Task) -> Tree:
        """Shared and private parts as one full tree, in the net's own order."""
        private_tree: Tree = get_tree(private, "model") if "model" in private else {}
        tree = (get_tree(shared, "model") if "model" in shared else {}) | private_tree
        # in the net's order, whichever part an entry came from: the order is part of the bits
        return {name: tree[name] for name in task.init} if private_tree else tree
