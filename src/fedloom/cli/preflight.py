"""Checks before a federation starts: `fedloom flower check server` and `fedloom flower check node`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloom.cli.shared import AsJson, print_json
from fedloom.core.console import console_of

if TYPE_CHECKING:
    from fedloom.flower.preflight.finding import Finding

group = typer.Typer(help="Check a server or a node before it starts; exit code 1 if something would fail.")
_SIGNS = {"ok": "ok     ", "warning": "warning", "error": "error  "}
Insecure = Annotated[bool, typer.Option("--insecure", help="The SuperLink has no TLS and no node keys.")]


@group.command()
def server(
    app: Annotated[
        Path | None,
        typer.Argument(help="The app that `fedloom flower export` wrote, or a config file, for disk and config."),
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address at which nodes reach the server; may come several times.")
    ] = None,
    keys: Annotated[Path, typer.Option(help="The folder of `fedloom flower keys`.")] = Path("keys"),
    port: Annotated[int, typer.Option(min=1, max=65535, help="The SuperLink's port.")] = 8000,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/flower"),
    config: Annotated[Path | None, typer.Option(help="The config that the app should have.")] = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
) -> None:
    """Check versions, certificates, keys, port, disk and config of a server before its SuperLink starts."""
    from fedloom.core.errors import ConfigError
    from fedloom.flower.preflight.app import fingerprint_findings, read_app, read_app_or_explain
    from fedloom.flower.preflight.finding import Finding, has_error
    from fedloom.flower.preflight.sides import check_server, requirements
    from fedloom.flower.preflight.versions import version_findings

    if not insecure and not host:
        raise ConfigError("name the server with --host, as its nodes do, e.g. --host server.example.org")
    if config is not None and app is None:
        raise ConfigError(f"--config {config}: name the app that should have this config")
    app_config, findings = None if app is None else read_app_or_explain(app), list[Finding]()
    if isinstance(app_config, Finding):
        _finish([app_config], as_json)
        return
    if app is not None and app_config is not None:
        wanted = None if config is None else read_app(config).fingerprint()
        findings = fingerprint_findings(app, app_config, wanted, f"{config} is")
    findings += check_server(app_config, keys=None if insecure else keys, hosts=host or [], port=port, out=out)
    _finish(findings, as_json, None if has_error(version_findings()) else requirements(app_config))


@group.command()
def node(
    superlink: Annotated[str, typer.Argument(help="The SuperLink's address, e.g. server.example.org:8000.")],
    root_certificates: Annotated[Path, typer.Option(help="The server's ca.crt.")] = Path("ca.crt"),
    key: Annotated[Path | None, typer.Option(help="The node's private key.")] = None,
    app: Annotated[Path | None, typer.Option(help="The exported app, or a config file, if the node has it.")] = None,
    client: Annotated[int, typer.Option(min=0, help="The node's partition-id.")] = 0,
    data: Annotated[Path | None, typer.Option(help="The file that names the node's data; needs --app.")] = None,
    state: Annotated[Path | None, typer.Option(help="The folder of private states; needs --app.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The SuperNode's own port on the loopback.")] = 9094,
    server_report: Annotated[
        Path | None, typer.Option(help="What `fedloom flower check server --json` printed, to compare with.")
    ] = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
) -> None:
    """Check a node before its SuperNode starts: the way to the server, its certificate, clocks, key, data and disk."""
    from fedloom.core.errors import ConfigError
    from fedloom.flower.preflight.sides import NodeFiles, check_node

    for option, path in (("--data", data), ("--state", state)):
        if path is not None and app is None:
            raise ConfigError(f"{option} {path}: the config says what is needed; name it with --app")
    if not insecure and key is None:
        raise ConfigError("name the node's private key with --key, e.g. --key node-000000; --insecure has none")
    authority = None if insecure else root_certificates
    _finish(
        check_node(superlink, NodeFiles(authority, key, app, client, data, state, server_report), port=port), as_json
    )


def _finish(findings: Sequence[Finding], as_json: bool, required: dict[str, str] | None = None) -> None:
    """Print findings, and exit with 1 if one is an error."""
    from fedloom.flower.preflight.finding import has_error

    failed = has_error(findings)
    if as_json:
        requires = {} if required is None else {"requires": required}
        print_json({"ok": not failed, **requires, "findings": [finding.facts() for finding in findings]})
    else:
        console = console_of(as_json)
        for finding in findings:
            console.print(f"{_SIGNS[finding.level]} {finding.subject}: {finding.text}", markup=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)
