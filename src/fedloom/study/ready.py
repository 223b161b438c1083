"""Ready configs: the YAML files in `configs/`, named by their path there (`fedsc/cifar10-dirichlet-0.2`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedloom.core.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class Ready:
    """One file. Its first comment line says what it is."""

    name: str
    path: Path
    text: str

    @property
    def summary(self) -> str:
        """The first line, without the comment sign."""
        return self.text.partition("\n")[0].lstrip("# ")


def ready_configs() -> list[Ready]:
    """All of them, by name."""
    folder = _folder()
    return [
        Ready(str(path.relative_to(folder).with_suffix("")), path, path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.yaml"))
    ]


def find_ready(name: str) -> Ready:
    """The one called `name`, or the only one that starts so. Raises `ConfigError` with the nearest name."""
    ready = {r.name: r for r in ready_configs()}
    starting = [r for key, r in ready.items() if key == name] or [r for key, r in ready.items() if key.startswith(name)]
    if len(starting) != 1:
        several = f"{', '.join(r.name for r in starting)} start so; write more of it"
        raise ConfigError(f"unknown scenario '{name}': {several if starting else nearest(name, ready)}")
    return starting[0]


def _folder() -> Path:
    """`configs/` beside the package when installed, at the root of a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "configs", package.parents[1] / "configs"):
        if (folder / "demo.yaml").is_file():
            return folder
    raise ConfigError(f"neither {package / 'configs'} nor {package.parents[1] / 'configs'} is there; reinstall fedloom")
