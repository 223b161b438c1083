"""How a wrapper is put over a method: one class with the options and presets of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, create_model

from fedloom.methods.method import METHODS, PRESETS, Method


def wrapped(
    mixin: type[Method],
    base: type[Method],
    word: str,
    options: type[BaseModel],
    presets: Mapping[str, Mapping[str, Any]],
) -> type[Method]:
    """The method `base+word`: `mixin` before `base` in the order of resolution.

    The wrapper's options stand beside the base's with `word_` in front, and the mixin finds that in `prefix`.
    """
    prefix = f"{word}_"
    fields: dict[str, Any] = {prefix + name: (field.annotation, field) for name, field in options.model_fields.items()}
    both = create_model(f"{base.__name__}{word.upper()}Options", __base__=base.Options, **fields)
    return cast(
        "type[Method]",
        type(
            f"{base.__name__}{word.upper()}",
            (mixin, base),
            {
                "__doc__": f"{base.__name__} with {word}: see {base.__module__} and {mixin.__module__}.",
                "__reduce__": lambda self: (_restored, (self.name(), self.options.model_dump())),
                "name": classmethod(lambda cls: f"{base.name()}+{word}"),
                "prefix": prefix,
                "Options": both,
                "presets": {
                    name: {**base.presets[name], **{prefix + key: value for key, value in presets[name].items()}}
                    for name in PRESETS
                },
            },
        ),
    )


def _restored(name: str, options: dict[str, Any]) -> Method:
    """A wrapped method out of a pickle: its class has no importable name."""
    method = METHODS.get(name)
    return method(method.Options(**options))
