"""Flower's server app, built from a config, and the export of a config as a Flower app."""

import logging
import traceback
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from fedloom._version import __version__
from fedloom.core.errors import ClientError, ConfigError, FedloomError, RunFolderError, printable
from fedloom.core.files import private_umask, write_atomic
from fedloom.core.plugins import sources_of
from fedloom.flower.logs import to_stdout
from fedloom.flower.message import require_flower
from fedloom.flower.server import serve
from fedloom.flower.status import Failure, log
from fedloom.flower.transport import GridTransport
from fedloom.results.report import write_report
from fedloom.runs.config.run_config import RunConfig, load, parse
from fedloom.runs.storage.folders import explain_shortage


def server_app(config: Path) -> Any:
    """Return a `ServerApp` that runs the config file `config`, and writes a report at the end.
    Keys of the app's Flower config: `out`, the run's folder; `test`, the file that names the server's test data;
    `keys`, a folder with the public keys of clients, or "none" if the SuperLink checks no keys. An error is also stored
    in the run's folder, because Flower's commands do not print it."""
    require_flower()
    to_stdout()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    def main(grid: Any, context: Any) -> None:
        out = Path(str(context.run_config.get("out") or "runs/flower"))
        test, keys = context.run_config.get("test"), str(context.run_config.get("keys", ""))
        (out / Failure.FILE).unlink(missing_ok=True)
        try:
            tests = Path(str(test)) if test else None
            transport, folder = GridTransport(grid, keys=keys != "none"), None if keys in ("", "none") else Path(keys)
            with private_umask(), explain_shortage(out, resumes=True):
                result = serve(parse(load(config)), transport, tests=tests, out=out, keys=folder)
                write_report([result], out / "report.html")
        except Exception as error:
            cause = error.__cause__ if isinstance(error, ClientError) else error
            is_user_error = isinstance(error, FedloomError) and not isinstance(error, ClientError)
            trace = "" if is_user_error else "".join(traceback.format_exception(cause))
            code = error.exit_code if isinstance(error, FedloomError) else 1
            text, trace = printable(str(error)), printable(trace, keep_lines=True)
            try:
                Failure(error=text, traceback=trace, exit_code=code).write(out)
            except RunFolderError:  # a full disk: the log is the only place left
                log("ended", {}, str(error), logging.ERROR)
            raise

    app.main()(main)
    return app


PACKAGE = "fedloom_app"
CONFIG = f"{PACKAGE}/config.yaml"  # within the app's folder


def export(config: RunConfig, folder: Path) -> list[Path]:
    """Write the app to `folder` and return its files. Raises `ConfigError` for a folder with other files."""
    if folder.exists() and any(folder.iterdir()) and not (folder / PACKAGE).is_dir():
        raise ConfigError(f"{folder}: it has other files; name an empty folder, or that of an earlier export")
    resolved = config.resolved()
    if resolved["scenario"]["source"] == "given":
        raise ConfigError("data given in Python cannot be exported; describe them in the config, e.g. source: npz")
    plugins = sources_of(config.plugins)
    if plugins:
        resolved["plugins"] = [*plugins]
    name = f"fedloom-{config.method}".replace("+", "-")
    templates = files(__package__) / "app_template"
    project, module = ((templates / file).read_text(encoding="utf-8") for file in ("pyproject.toml.in", "side.py.in"))
    texts = {
        "pyproject.toml": project.format(name=name, title=config.method, version=__version__, package=PACKAGE),
        f"{PACKAGE}/__init__.py": "",
        f"{PACKAGE}/server.py": module.format(side="server", home="apps"),
        f"{PACKAGE}/client.py": module.format(side="client", home="resident"),
        CONFIG: yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True),
        **{f"{PACKAGE}/{file}": text for file, text in plugins.items()},
    }
    for path, text in texts.items():
        write_atomic(folder / path, text)
    return [folder / path for path in texts]
