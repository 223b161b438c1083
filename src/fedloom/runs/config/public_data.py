"""The run key `scenario.public`: what the server holds itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedloom.core.errors import ConfigError, UnknownKeyError, short_repr
from fedloom.core.streams import Streams
from fedloom.data import SOURCES
from fedloom.data.dataset import Dataset
from fedloom.data.sources.source import Source
from fedloom.runs.config.explain import explain_validation_error

_SECTION = "scenario.public"


class PublicConfig(BaseModel):
    """Data at the server from a source of its own, beside whose keys it takes these."""

    model_config = ConfigDict(extra="allow", frozen=True)

    source: str = Field(
        description="Data source of the server's data, by name; its own keys stand beside this one.",
        examples=["digits"],
    )
    samples: int | None = Field(
        None,
        ge=1,
        description="Number of training samples of the source that the server holds, drawn at random; null takes all.",
        examples=[500],
    )

    @model_validator(mode="after")
    def _route(self) -> PublicConfig:
        self.build_source()
        return self

    def build_source(self) -> Source:
        """The source with its keys. Raises `ConfigError` for keys that it does not know."""
        kind, keys = SOURCES.get(self.source), dict(self.model_extra or {})
        for key in keys:
            if key not in kind.model_fields:
                raise UnknownKeyError(_SECTION, key, {*type(self).model_fields, *kind.model_fields})
        try:
            return kind(**keys)
        except ValidationError as error:
            raise explain_validation_error(error, _SECTION, kind) from None

    def resolved(self) -> dict[str, Any]:
        """All keys with their values."""
        return {"source": self.source, "samples": self.samples} | self.build_source().model_dump(mode="json")

    def load(self, streams: Streams) -> Dataset:
        """The samples. Raises `ConfigError` if there are fewer than asked for."""
        data = self.build_source().load().train
        if self.samples is None:
            return data
        if self.samples > len(data):
            raise ConfigError(f"{_SECTION}.samples = {self.samples}: {self.source} has {len(data)} training samples")
        return data.take(torch.from_numpy(streams.numpy("public").permutation(len(data))[: self.samples]).sort().values)


def share_or_source(value: Any) -> Any:
    """A value of the key as a share or a `PublicConfig`. Raises `ConfigError` for what is neither."""
    if isinstance(value, Mapping):
        try:
            return PublicConfig(**value)
        except ValidationError as error:
            raise explain_validation_error(error, _SECTION, PublicConfig) from None
    if isinstance(value, PublicConfig):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigError(f"{_SECTION} = {short_repr(value)}: need a share in [0, 1), or {{source: name, its keys}}")
    return float(value)
