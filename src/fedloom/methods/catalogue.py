"""The catalogue of methods for lists and pages, read from their own code and text.

Abilities come from a method's `Spec` and from the code that refuses a run. A toy net replaces the
run's: one with features, a linear head and batch norm. Whether a wrapper can go around the method is also asked of a
net without batch norm, because some wrappers refuse shared batch-norm statistics alone."""

import contextlib
import functools
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fedloom.core.errors import ConfigError, MissingPackageError
from fedloom.core.streams import Streams
from fedloom.core.text import listed
from fedloom.methods.contract.citation import Citation, formula
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Task
from fedloom.methods.contract.method import METHODS, WRAPPERS, Method
from fedloom.methods.wrappers.wrapping import averaged
from fedloom.nets.blueprint import Blueprint, ExtraFactory
from fedloom.nets.net import BN_ROLES, Role

InitialPart = Literal["model", "head", "body"]


def initial_part(method: Method, task: Task) -> InitialPart | None:
    """Return the part of a newcomer's own model that has its initial weights, batch norm aside; None for no part."""
    private = method.private_names(task) - task.names(BN_ROLES)
    if method.spec.private_nets or (private and private >= set(task.init) - task.names(BN_ROLES)):
        return "model"
    roles = {task.roles[name] for name in private}
    if Role.HEAD in roles:
        return "head"
    return "body" if Role.BODY in roles else None


_WITH_HEAD = {"P", "W", "H", "Q", "X"}  # symbols of traffic that hold a classifier's weights


def reveals(kind: type[Method]) -> str:
    """Say what a client's uploads reveal of its samples in all rounds of a run, from what the method declares."""
    method, up = _plain(kind), None if kind.citation is None else kind.citation.up.keys()
    if kind.spec.pooled:
        return "everything: the data are in one place"
    rounds = {"": method, "before the first round ": method.opening(), "after the last round ": method.closing()}
    told = {}
    for when, stage in rounds.items():
        sends = {} if stage is None else stage.spec.sends
        names = {name: sent.statistic or name.rpartition(".")[2].replace("_", " ") for name, sent in sends.items()}
        told[when] = listed([names[name] for name, sent in sends.items() if sent.labels or sent.statistic])
    indirectly = ""
    if method.spec.sends and (up is None or not _WITH_HEAD.isdisjoint(up)):
        indirectly = "the label mix indirectly, by changes of the last layer"
    elif up is not None and "outputs" in up:
        indirectly = "the label mix indirectly, by outputs that favour frequent classes"
    texts = [told.pop(""), indirectly, *(when + names for when, names in told.items() if names)]
    nothing = "perhaps the label mix, by the body's weights" if method.spec.sends else "nothing"
    return "; ".join(filter(None, texts)) or nothing


_CLIENTS, _CLASSES = 20, 4
_TOY, _TOY_WITHOUT_NORM, _SHAPE = "lenet5-bn", "lenet5", (1, 16, 16)  # torch copies larger weights in several threads


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of a method at its default options."""

    predicts: frozenset[str]  # kinds of model
    any_architecture: bool
    means: frozenset[str]  # upload entries whose mean is enough
    per_client: frozenset[str]  # those that the server reads client by client, in any round
    unstackable: str | None  # why clients cannot be trained in one stack
    single_label: str | None  # why samples cannot have several labels
    untrained: InitialPart | None  # of a newcomer's model; None if the server has all

    @property
    def secure_sum(self) -> bool:
        """Whether sums over clients are all that the server needs."""
        return bool(self.means) and not self.per_client


def abilities(kind: type[Method]) -> Abilities:
    """Determine the abilities of a method."""
    method = _plain(kind)
    stages = [method, method.opening(), method.closing()]
    sends = {name: sent for stage in stages if stage is not None for name, sent in stage.spec.sends.items()}
    try:
        means = frozenset(averaged(method, "a wrapper"))
    except ConfigError:
        means = frozenset()
    predicts = offered_models(method)
    return Abilities(
        predicts,
        method.spec.architectures == "any",
        means,
        frozenset(name for name, sent in sends.items() if sent.per_client or sent.sliced),
        method.spec.unstackable,
        method.spec.single_because if method.spec.labels == "single" else None,
        None if "global" in predicts else initial_part(method, _task(method)),
    )


def refusal(name: str, wrapper: str) -> str | None:
    """Return the error with which the method `name` refuses this wrapper on every net; None if it accepts one."""
    return _refusal(name, wrapper, _TOY) and _refusal(name, wrapper, _TOY_WITHOUT_NORM)


@functools.cache
def _refusal(name: str, wrapper: str, model: str) -> str | None:
    try:
        method = _plain(METHODS.get(f"{name}+{wrapper}"))
        task = _task(method, model)
        with contextlib.suppress(MissingPackageError):  # a fact of the environment, not of the method
            method.examine([task], _CLIENTS)
        method.server_init(ServerContext(task, 0))
    except ConfigError as error:
        return str(error)
    except Exception as error:  # whatever a plug-in's hook raises; the list of methods must not end with it
        return f"{type(error).__name__}: {error}"
    return None


def wrappers_of(name: str) -> dict[str, str | None]:
    """Return, for every wrapper, why the method `name` refuses it; None if it accepts it."""
    return {wrapper: refusal(name, wrapper) for wrapper in WRAPPERS.names()}


def _plain(kind: type[Method]) -> Method:
    preset = "sound" if "sound" in kind.presets else next(iter(kind.presets))
    return kind.configured(preset, {})


def _task(method: Method, model: str = _TOY) -> Task:
    """The facts of a run on a toy net; methods that add no module share one."""
    needs = model, method.spec.head_bias, tuple(method.spec.nets.items())
    return _shared_task(*needs) if type(method).extra is Method.extra else _new_task(*needs, method.extra)


def _new_task(
    model: str, head_bias: bool, nets: tuple[tuple[str, str | None], ...], extra: ExtraFactory | None = None
) -> Task:
    streams = Streams(0)
    blueprint = Blueprint(model, _SHAPE, _CLASSES, head_bias=head_bias, nets=dict(nets), extra=extra)
    facts = {"clients": _CLIENTS, "num_classes": _CLASSES, "rounds": 1, "local_epochs": 1, "streams": streams}
    return Task.of(blueprint.build(streams), blueprint=blueprint, **facts)


_shared_task = functools.cache(_new_task)


def offered_models(method: Method) -> frozenset[str]:
    """Return the kinds of model, "global" and "personal", that the method offers before the first round."""
    task = _task(method)
    server = method.server_init(ctx := ServerContext(task, 0))
    counts = task.init[next(iter(task.init))].new_ones(_CLASSES).long()
    state = method.client_init(ClientContext(task, 0, 0, _CLASSES, counts))
    offered = {**method.predictors(server, None, ctx), **method.predictors(server, state, ctx)}
    return frozenset(offered) & {"global", "personal"}


_OUR_CHOICE = "our choice"  # in the description of an option


@dataclass(frozen=True, slots=True)
class Entry:
    """The description of one method."""

    name: str
    title: str
    idea: str
    citation: Citation | None
    abilities: Abilities

    @property
    def wrappers(self) -> dict[str, str | None]:
        """Why the method refuses a wrapper, by name; None if it accepts it. Asking takes a tenth of a second."""
        return wrappers_of(self.name)

    @property
    def yields(self) -> str:
        return ", ".join(sorted(self.abilities.predicts))

    @property
    def nets(self) -> str:
        return "any" if self.abilities.any_architecture else "one"

    @property
    def accepted_wrappers(self) -> str:
        """The accepted wrappers in words, and which of them need nets without batch norm."""
        refused = [word for word, why in self.wrappers.items() if why is not None]
        accepted = [word for word, why in self.wrappers.items() if why is None]
        without_norm = ", ".join(self.without_batch_norm)
        condition = f" ({without_norm}: only nets without batch norm)" if without_norm else ""
        if len(refused) <= len(accepted):
            return (f"all but {', '.join(refused)}" if refused else "all") + condition
        return (", ".join(accepted) or "none") + condition

    @property
    def without_batch_norm(self) -> dict[str, str]:
        """The wrappers that need a net without batch norm, with the reason."""
        reasons = {word: _refusal(self.name, word, _TOY) for word, why in self.wrappers.items() if why is None}
        return {word: reason for word, reason in reasons.items() if reason is not None}

    @property
    def compared_in(self) -> tuple[str, ...]:
        return tuple(self.citation.compared_in) if self.citation else ()

    def facts(self, full: bool = True) -> dict[str, str]:
        """Return the cells of tables, by column; `full` adds what uploads reveal, and tries every wrapper."""
        citation, traffic = self.citation, ("down", "up", "state")
        down, up, state = (formula(getattr(citation, name)) if citation else "?" for name in traffic)
        cells = {
            "idea": self.idea,
            "published": citation.published if citation else "",
            "yields": self.yields,
            "nets": self.nets,
            "down": down,
            "up": up,
            "client keeps": state,
            "compared in": ", ".join(self.compared_in),
            "secure sum": "yes" if self.abilities.secure_sum else "no",
            "stacks": "no" if self.abilities.unstackable else "yes",
            "several labels": "no" if self.abilities.single_label else "yes",
        }
        if not full:
            return cells
        return cells | {"uploads reveal": reveals(METHODS.get(self.name)), "wrappers": self.accepted_wrappers}


def entry(name: str) -> Entry:
    """Describe one method. Raises `ConfigError` for an unknown name."""
    kind = METHODS.get(name)
    title, idea = _title(kind)
    return Entry(name, title, idea, kind.citation, abilities(kind))


def entries() -> Iterator[Entry]:
    """Describe all registered methods, by name."""
    return map(entry, METHODS.names())


def set_by(kind: type[Method], option: str) -> dict[str, Any]:
    """The presets that set an option, with their values."""
    return {name: values[option] for name, values in kind.presets.items() if option in values}


def our_choices(kind: type[Method]) -> str:
    """The decisions that no source states: those of the method, and those of its options. Empty for none."""
    options = {name: field.description or "" for name, field in kind.Options.model_fields.items()}
    sentences = [f"{name}: {text}" for name, text in options.items() if _OUR_CHOICE in text]
    return " ".join(filter(None, [kind.citation.our_choice if kind.citation else "", *sentences]))


def _title(kind: type[Method]) -> tuple[str, str]:
    """Name and idea, out of the docstring's first sentence: "FedProx: a proximal pull to the weights received."."""
    first = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    title, colon, rest = first.partition(": ")
    sentence = re.split(r"\.(?: |$)", rest if colon else first)[0]
    return (title.split(",")[0], sentence) if colon else (kind.__name__, sentence)
