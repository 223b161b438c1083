"""The section `scenario` of a run: source, partition, skews, attack and public data, with their keys."""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import BaseModel, Field, field_validator, model_validator

from fedloom.core.errors import ConfigError, UnknownKeyError, short_repr
from fedloom.core.key_models import Keys
from fedloom.core.registry import Registry
from fedloom.core.streams import Streams
from fedloom.core.synonyms import meant_by
from fedloom.data import ATTACKS, PARTITIONS, SKEWS, SOURCES, OwnSplit, Scenario, make_scenario
from fedloom.data.attacks import Attack
from fedloom.data.dataset import Dataset
from fedloom.data.leak import refuse_groups_across_clients
from fedloom.data.newcomers import MIN_TRAINING_CLIENTS, HeldOut
from fedloom.data.partitions.partition import Partition
from fedloom.data.skews.skew import Skew
from fedloom.data.sources.nodes import Nodes
from fedloom.data.sources.source import Group, GroupPattern, Labels, SharedGroups, Source, Splits, grouped, load_splits
from fedloom.runs.config.keys import build_named, built

_SECTION = "scenario.public"


class PublicConfig(Keys, extra="allow", frozen=True):
    """Data at the server from a second source. The section has these keys and those of the source."""

    source: str = Field(examples=["digits"])
    samples: int | None = Field(None, ge=1, examples=[500])

    @model_validator(mode="after")
    def _route(self) -> Self:
        self.build_source()
        return self

    def build_source(self) -> Source:
        """The source with its keys. Raises `ConfigError` for keys that it does not know."""
        kind, keys = SOURCES.get(self.source), dict(self.model_extra or {})
        for key in keys:
            if key not in kind.model_fields or key in ("group", "shared_groups"):  # no client has samples of them
                raise UnknownKeyError(_SECTION, key, {*type(self).model_fields, *kind.model_fields})
        return built(kind, keys, _SECTION)

    def resolved(self) -> dict[str, Any]:
        return {"source": self.source, "samples": self.samples} | self.build_source().model_dump(mode="json")

    def load(self, streams: Streams) -> Dataset:
        """The samples. Raises `ConfigError` if there are fewer than asked for."""
        data = replace(self.build_source().load().train, group=None)  # ids of another source mean other groups
        if self.samples is None:
            return data
        if self.samples > len(data):
            raise ConfigError(f"{_SECTION}.samples = {self.samples}: {self.source} has {len(data)} training samples")
        return data.take(torch.from_numpy(streams.numpy("public").permutation(len(data))[: self.samples]).sort().values)


_counted: dict[Hashable, int | None] = {}


def count_clients(source: Source, partition: Partition) -> int | None:
    """Return the number of clients that the data decide; None if the config does.
    A source is read once, and again if one of the files that it names has changed. Raises as `Source.load`."""
    # a study parses a config for each cell, and reading the data takes longer than all else in it
    key = tuple((type(part), part.model_dump_json(), *_stamps(part)) for part in (source, partition))
    if key not in _counted:
        _counted[key] = partition.count_clients(lambda: load_splits(source).train)
    return _counted[key]


def _stamps(part: Any) -> list[tuple[int, int] | None]:
    """Time of change and size of each file that a source or a partition names; None for one that is not there."""
    paths = [value for _, value in part if isinstance(value, Path)]
    stats = [path.stat() if path.exists() else None for path in paths]
    return [None if stat is None else (stat.st_mtime_ns, stat.st_size) for stat in stats]


_MAX_NODES = 1_000_000


class ScenarioConfig(Keys, extra="allow", frozen=True):
    """The data of the clients and how they are dealt. It also takes the keys of its source and partition."""

    source: str = "digits"
    partition: str = "dirichlet"
    clients: int = Field(10, ge=1)
    val: float = Field(0.1, ge=0, lt=1)
    split: OwnSplit | None = Field(None, examples=[{"train": 0.6, "val": 0.2, "test": 0.2}])
    tests: Literal["shares", "matched"] = "shares"
    public: float | PublicConfig = Field(0.0, examples=[0.05, {"source": "digits", "samples": 500}])
    skews: tuple[dict[str, Any], ...] = Field((), examples=[[{"name": "label-noise", "share": 0.2}]])
    attack: dict[str, Any] | None = Field(None, examples=[{"name": "label-flip", "share": 0.2}])
    held_out: HeldOut | None = Field(None, examples=[{"share": 0.2}, {"clients": [3, 7]}, {"domain": "dslr"}])
    group: Group = None
    shared_groups: SharedGroups = "refuse"
    labels: Labels = "single"
    cross_owner: Literal["keep", "refuse"] = "keep"
    seed: int | None = Field(None, ge=0, lt=2**63)

    @property
    def val_key(self) -> str:
        """The key that says how many samples are held out for validation."""
        return "scenario.val" if self.split is None else "scenario.split.val"

    @field_validator("attack", mode="before")
    @classmethod
    def _attack_by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("group", mode="before")
    @classmethod
    def _group_by_pattern(cls, value: Any) -> Any:
        return built(GroupPattern, value, "scenario.group") if isinstance(value, Mapping) else value

    @field_validator("held_out", mode="before")
    @classmethod
    def _held_out_by_id(cls, value: Any) -> Any:
        if value is None or isinstance(value, Mapping | HeldOut):
            return value
        if isinstance(value, list | tuple):
            return {"clients": value}
        share = value if type(value) is float and 0 < value < 1 else 0.2
        raise ConfigError(
            f"scenario.held_out = {short_repr(value)}: need a share of the clients, as {{share: {share:g}}}, a list of "
            "their ids, as [3, 7], or a domain, as {domain: its name}"
        )

    @field_validator("public", mode="before")
    @classmethod
    def _public(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return built(PublicConfig, value, _SECTION)
        if isinstance(value, PublicConfig):
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            problem = "need a share in [0, 1), or {source: name, its keys}"
            raise ConfigError(f"{_SECTION} = {short_repr(value)}: {problem}")
        return float(value)

    @model_validator(mode="before")
    @classmethod
    def _owners_deal(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        by_default = {"partition": "iid"} if values.get("labels") == "multi" else {}  # no class to deal by
        return ({"partition": "natural"} if values.get("source") == Nodes.kind else by_default) | {**values}

    @model_validator(mode="after")
    def _route(self) -> Self:
        source, partition = self.parts()
        counts = "clients" not in self.model_fields_set and source.kind not in (Nodes.kind, "given")
        if counts and (clients := count_clients(source, partition)) is not None:
            object.__setattr__(self, "clients", clients)  # frozen, and only the data know their owners
            self.model_fields_set.add("clients")
        if self.source == Nodes.kind:
            self._leave_nodes_data_alone()
        self.build_skews()
        self.build_attack()
        if self.split is not None and "val" in self.model_fields_set:
            raise ConfigError("scenario.val: split states the validation share too; leave val out")
        if self.split is not None and self.tests == "matched":
            raise ConfigError("scenario.tests = 'matched': with split, each client is tested on its own samples")
        return self

    def _leave_nodes_data_alone(self) -> None:
        if self.clients > _MAX_NODES:
            raise ConfigError(f"scenario.clients = {self.clients}: need up to {_MAX_NODES:,} nodes")
        changed = {
            "partition": self.partition != "natural",
            "skews": bool(self.skews),
            "attack": self.attack is not None,
            "tests": self.tests != "shares",
            "public": isinstance(self.public, float) and self.public > 0,
            "group": self.group not in (None, "none"),  # each node's file names that of its own data
        }
        if key := next((name for name, is_so in changed.items() if is_so), None):
            remedy = f"leave {key} out"
            raise ConfigError(f"scenario.{key}: with source nodes, data stay with the nodes as they are; {remedy}")
        if self.held_out is not None:
            self._require_last_nodes(self.held_out)

    def _require_last_nodes(self, held_out: HeldOut) -> None:
        """Raise `ConfigError` unless the nodes that never train are the last ones: the others keep their numbers."""
        count = len(held_out.clients or ())
        count = count or max(1, round((held_out.share or 0.0) * self.clients))
        last = list(range(self.clients - count, self.clients))
        if self.clients - count < MIN_TRAINING_CLIENTS:
            raise ConfigError(
                f"scenario.held_out: {count} of {self.clients} nodes leave {max(0, self.clients - count)} to train; "
                f"{MIN_TRAINING_CLIENTS} or more must train"
            )
        if sorted(held_out.clients or ()) != last:
            raise ConfigError(
                f"scenario.held_out: with source nodes, the clients that never train are the last ones, because the "
                f"others keep their numbers; number the nodes so, and write {last}"
            )

    def _refuse_key_of_others(self, key: str) -> None:
        """Raise `ConfigError` for a key that other sources or partitions have, and name those."""
        registries: dict[str, Registry[Any]] = {"source": SOURCES, "partition": PARTITIONS}
        kinds = ((f"{noun} {name}", kind) for noun, registry in registries.items() for name, kind in registry)
        owners = [owner for owner, kind in kinds if key in kind.model_fields]
        if owners:
            more = f" and {len(owners) - 3} more" if len(owners) > 3 else ""
            raise ConfigError(
                f"unknown key 'scenario.{key}': source {self.source} and partition {self.partition} have none; it is a "
                f"key of {', '.join(owners[:3])}{more}"
            )

    def last_newcomers(self) -> int:
        """The number of nodes that never train, which are the last ones; 0 for sources other than `nodes`."""
        return len(self.held_out.clients or ()) if self.source == Nodes.kind and self.held_out is not None else 0

    def parts(self) -> tuple[Source, Partition]:
        """The source and the partition with their own keys. Raises `ConfigError` for keys that neither knows."""
        source, partition = SOURCES.get(self.source), PARTITIONS.get(self.partition)
        extra = dict(self.model_extra or {})
        for key in extra:
            if key not in {*source.model_fields, *partition.model_fields}:
                if not meant_by("key", key, "scenario"):
                    self._refuse_key_of_others(key)
                keys_of_all = {*type(self).model_fields, *source.model_fields, *partition.model_fields}
                raise UnknownKeyError("scenario", key, keys_of_all)

        def keys_of(kind: type[BaseModel]) -> dict[str, Any]:
            return {key: value for key, value in extra.items() if key in kind.model_fields}

        extra |= {"group": self.group, "shared_groups": self.shared_groups, "labels": self.labels}
        return built(source, keys_of(source), "scenario"), built(partition, keys_of(partition), "scenario")

    def build_skews(self) -> list[Skew]:
        """The skews with their keys. Raises `ConfigError` for unknown names and keys."""
        return [build_named(SKEWS, values, f"scenario.skews[{index}]") for index, values in enumerate(self.skews)]

    def build_attack(self) -> Attack | None:
        """The attack with its keys. Raises `ConfigError` for an unknown name or key, and a value out of range."""
        return None if self.attack is None else build_named(ATTACKS, self.attack, "scenario.attack")

    def resolved(self) -> dict[str, Any]:
        """All keys with their values, those of source, partition and skews included."""
        source, partition = self.parts()
        values = {name: getattr(self, name) for name in type(self).model_fields}
        if not self.public:  # a key that runs of earlier versions do not know
            del values["public"]
        elif isinstance(self.public, PublicConfig):
            values["public"] = self.public.resolved()
        attack = self.build_attack()
        optional = {
            "held_out": self.held_out and self.held_out.model_dump(mode="json", exclude_none=True),
            "attack": attack and {"name": attack.kind} | attack.model_dump(mode="json"),
            "group": self.group.model_dump() if isinstance(self.group, GroupPattern) else self.group,
            "shared_groups": None if self.shared_groups == "refuse" else self.shared_groups,
            "labels": None if self.labels == "single" else self.labels,
            "cross_owner": None if self.cross_owner == "keep" else self.cross_owner,
        }
        values = {key: value for key, value in (values | optional).items() if value is not None or key not in optional}
        values["skews"] = [{"name": skew.kind} | skew.model_dump(mode="json") for skew in self.build_skews()]
        if self.split is not None:
            values["split"] = self.split.model_dump(mode="json")
            del values["val"]
        return values | source.model_dump(mode="json") | partition.model_dump(mode="json")

    def for_fingerprint(self) -> dict[str, Any]:
        """Return `resolved`, without the partition of a scenario from Python: its digest already covers the dealing."""
        values = self.resolved()
        if self.source != "given" or self.partition != "natural":
            return values
        keys_of_natural = PARTITIONS.get("natural").model_fields
        return {key: value for key, value in values.items() if key not in keys_of_natural} | {"partition": "iid"}

    def build(self, run_seed: int, splits: Splits | None = None) -> Scenario:
        """Load the source (or take `splits`) and deal it; `seed` None takes the run's."""
        source, partition = self.parts()
        streams = Streams(run_seed if self.seed is None else self.seed)
        loaded = grouped(source.load() if splits is None else splits, source)
        keys: dict[str, Any] = {key: getattr(self, key) for key in ("clients", "val", "split", "tests", "held_out")}
        keys |= {"skews": self.build_skews(), "attack": self.build_attack()}
        keys["public"] = self.public.load(streams) if isinstance(self.public, PublicConfig) else self.public
        scenario = make_scenario(self.source, loaded, partition, streams=streams, **keys)
        if self.cross_owner == "refuse":
            refuse_groups_across_clients(scenario)
        return replace(scenario, suspect="none") if self.group == "none" else scenario
