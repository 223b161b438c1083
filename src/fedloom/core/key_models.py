"""Models whose fields are keys of a config, with meanings from `meanings.toml` where they are long."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from pydantic import BaseModel, Field


class Keys(BaseModel):
    """Base of such models. A short meaning is the `description` of its field. A longer one is in `meanings.toml` of the
    room, by class and field; only fedloom's own classes look there."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # before pydantic collects the fields, so that schemas have these descriptions too
        package, _, module = cls.__module__.partition(".")
        texts = _meanings(module.partition(".")[0]) if package == "fedloom" else {}
        for name, text in texts.get(cls.__qualname__, {}).items():
            annotation: Any = cls.__annotations__[name]
            cls.__annotations__[name] = Annotated[annotation, Field(description=" ".join(text.split()))]


@cache
def _meanings(room: str) -> dict[str, dict[str, str]]:
    file = files("fedloom") / room / "meanings.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
