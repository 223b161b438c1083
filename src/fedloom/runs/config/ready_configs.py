"""Ready configs: the YAML files in `configs/`, named by their path there (`fedsc/cifar10-dirichlet-0.2`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedloom.core.errors import ConfigError, short_repr, suggest_name

_NAMED = 5  # names in a message


@dataclass(frozen=True, slots=True)
class ReadyConfig:
    """One file. Its first comment line says what it is."""

    name: str
    path: Path
    text: str

    @property
    def summary(self) -> str:
        """The first line, without the comment sign."""
        return self.text.partition("\n")[0].lstrip("# ")


def ready_configs() -> list[ReadyConfig]:
    """All of them, by name."""
    return [ReadyConfig(name, path, path.read_text(encoding="utf-8")) for name, path in _paths().items()]


def find_ready(name: str) -> ReadyConfig:
    """The one called `name`, or the only one that starts so. Raises `ConfigError` with the nearest name."""
    ready = {r.name: r for r in ready_configs()}
    starting = [r for key, r in ready.items() if key == name] or [r for key, r in ready.items() if key.startswith(name)]
    if len(starting) != 1:
        several = f"{', '.join(r.name for r in starting[:_NAMED])}"
        several += f" and {len(starting) - _NAMED} more" if len(starting) > _NAMED else ""
        hint = f"{several} start so; write more of it" if starting else _hint(name, ready)
        raise ConfigError(f"unknown scenario {short_repr(name)}: {hint}")
    return starting[0]


def find_config(path: Path) -> Path:
    """The config file that a person means: `path` itself, or the ready one of that name, with or without `configs/` and
    `.yaml`, where there is no such file. Raises `ConfigError` that says where configs are."""
    if path.is_file() or (path.exists() and not path.is_dir()):
        return path
    ready = _paths()
    name = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
    if name in ready:
        return ready[name]
    if (path / "config.yaml").is_file():
        raise ConfigError(f"{path} is a folder; for the config of the run there, give {path / 'config.yaml'}")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give a YAML file, or a name that `fedloom scenarios` lists")
    raise ConfigError(f"{short_repr(path.as_posix())[1:-1]}: no such config file; {_hint(name, ready)}")


def _paths() -> dict[str, Path]:
    folder = _folder()
    return {str(path.relative_to(folder).with_suffix("")): path for path in sorted(folder.rglob("*.yaml"))}


def _hint(name: str, ready: Mapping[str, object]) -> str:
    hint = suggest_name(name, ready)
    return "`fedloom scenarios` lists the ready ones" if hint.startswith("known") else hint


def _folder() -> Path:
    """`configs/` beside the package when installed, at the root of a checkout."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "configs", package.parents[1] / "configs"):
        if (folder / "demo.yaml").is_file():
            return folder
    raise ConfigError(f"neither {package / 'configs'} nor {package.parents[1] / 'configs'} is there; reinstall fedloom")
