"""The command line. Exit codes: 0 for success; 2 for a mistake of the user, which one line on stderr explains; 1 for a
failure inside the work, with its traceback; 130, 143 and 129 after Ctrl-C, SIGTERM and SIGHUP; 75 after SIGUSR1, once
the run is saved. With --json, stdout holds one JSON object alone."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import click
import typer

from fedloom._version import __version__
from fedloom.cli import catalogue, comparisons, flower, model, pages, publication, shared
from fedloom.cli.diagnose import advise, diagnose
from fedloom.core.console import console_of, listen_for_stop, raise_first_interrupt
from fedloom.core.errors import ConfigError, FedloomError, StoppedError, printable
from fedloom.core.plugins import load_plugin

if TYPE_CHECKING:
    from fedloom.runs.callbacks import Callback
    from fedloom.runs.run import Existing

app = typer.Typer(
    name="fedloom",
    epilog="New here? Type `fedloom demo`, then `fedloom help tutorial`.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedloom {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def fedloom(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    plugin: Annotated[
        list[Path] | None, typer.Option(help="A Python file with parts of your own, for any command; may be repeated.")
    ] = None,
) -> None:
    """Federated learning on heterogeneous data: compare methods honestly, deploy what you compared."""
    for file in plugin or ():
        load_plugin(file)
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(2)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="Number of seeds, starting with --seed (0).")] = 3,
    seed: int | None = None,
    rounds: int | None = None,
    jobs: int | None = None,
    quiet: shared.Quiet = False,
    as_json: shared.AsJson = False,
) -> None:
    """Compare FedAvg with FedSC on handwritten digits, spread unevenly over ten clients, in under a minute."""
    from fedloom.runs.config.grid import variants
    from fedloom.runs.config.reference import find_ready
    from fedloom.runs.config.run_config import load

    overrides = shared.overrides_with_options(None, rounds=rounds, seed=seed)
    configs = variants(load(find_ready("demo").path, overrides), ["fedavg", "fedsc"], seeds)
    with shared.output_folder(out):
        if not as_json and not quiet:
            from fedloom.data import describe_scenario
            from fedloom.results.report.holdings_table import print_holdings

            first_seed = configs[0].seed
            shared.print_lines(
                f"Ten clients share 1,442 handwritten digits, very unevenly (Dirichlet 0.1). Seed {first_seed}:"
            )
            print_holdings(console_of(False), describe_scenario(configs[0].scenario.build(first_seed)))
        comparisons.run_comparison(configs, out, True, jobs, as_json, quiet)


def run(
    config: shared.Config,
    overrides: shared.Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default in runs/, named after the run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an unfinished run of the same config.")] = False,
    fresh: bool = False,
    from_round: shared.FromRound = None,
    seed: int | None = None,
    rounds: int | None = None,
    watch: Annotated[bool, typer.Option("--watch", help="Serve a page about the run on a local port.")] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port of --watch.")] = 8400,
    quiet: shared.Quiet = False,
    as_json: shared.AsJson = False,
) -> None:
    """Train and test one method, as described by a config."""
    from fedloom.cli.terminal import print_result
    from fedloom.runs.run import run as run_config
    from fedloom.runs.storage.run_data import RunData
    from fedloom.runs.storage.run_folder import folder_name
    from fedloom.runs.studies.live_progress import Forward, ProgressDisplay

    parsed = shared.parse_config(config, overrides, seed=seed, rounds=rounds)
    shared.note_unused_options(overrides, {parsed.method})
    folder = out or Path("runs") / folder_name(parsed)
    if fresh and (resume or from_round is not None):
        raise ConfigError("--fresh starts again, and --resume and --from-round continue: give one of them")
    existing: Existing = "fresh" if fresh else "refuse" if from_round is None and not resume else "resume"
    if from_round is not None:
        shared.say(shared.rewind_run(folder, from_round))
    with contextlib.ExitStack() as stack:
        stack.enter_context(shared.output_folder(folder))
        watchers: list[Callback] = []
        if watch:
            from fedloom.flower.watch import watched

            watchers = [stack.enter_context(watched(parsed, folder.name, port))]
            shared.say(f"http://127.0.0.1:{port}/ shows this run")
        live = stack.enter_context(ProgressDisplay([parsed], quiet=quiet or as_json))
        finished_before = existing != "fresh" and RunData.read(folder) is not None
        watchers.append(Forward(0, live))
        result: RunData = run_config(parsed, out=folder, existing=existing, callbacks=watchers)
    if finished_before:
        shared.say(f"{folder} already holds this finished run, so nothing was trained (--fresh trains again)")
    if as_json:
        shared.print_json(result.numbers)
    else:
        print_result(console_of(as_json), result, brief=quiet)


def init(
    data: str | None = None,
    out: Annotated[Path | None, typer.Option(help="The config to write; by default named after the data.")] = None,
    label: Annotated[str | None, typer.Option(help="The column of a table that holds the class, or A,B,C.")] = None,
    owner: Annotated[str | None, typer.Option(help="The column that says which client owns a row, or none.")] = None,
    as_json: shared.AsJson = False,
) -> None:
    """Write a commented config for your data, with settings to start from."""
    asks = data is None and sys.stdin.isatty() and not as_json
    if data is None and not asks:
        raise ConfigError(
            "name your data: fedloom init --from FILE.csv, a folder of images, or a name of `fedloom datasets`"
        )
    # Before questions are asked and data are read.
    if out is not None:
        _refuse_existing(out)
    data = data or typer.prompt("Your data (a file, a folder, a built-in set, or owner/name on the hub)", err=True)

    from fedloom.data.findings import print_findings
    from fedloom.runs.config.first_config import first_config

    first = first_config(data, label, owner, _ask if asks else None)
    path = out or Path(f"{first.name}.yaml")
    _refuse_existing(path)
    text = first.text(str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8", errors="backslashreplace") as stream:  # never overwrites a file
            stream.write(text)
    except FileExistsError:  # another process made it after the check
        _refuse_existing(path)
    for note in first.scenario.notes:
        if not any(finding.rule in note for finding in first.findings):
            shared.say(note)
    # nothing leaves without a line
    for key in ("labels", "missing", "bounds", "categorical", "drop", "drop_columns", "incomplete", "group"):
        if (written := first.sections["scenario"].get(key)) is not None:
            shared.say(f"scenario.{key} = {written[0]}: {written[1]}")
    if as_json:
        about = {"config": str(path), "clients": first.scenario.clients, "classes": list(first.scenario.class_names)}
        shared.print_json(about | {"findings": [dataclasses.asdict(finding) for finding in first.findings]})
        return
    if first.findings:
        print_findings(console_of(False), first.findings)
    scenario, classes, clients = first.config.scenario, first.scenario.num_classes, first.scenario.clients
    kind = "labels" if first.scenario.train_set.multi else "classes"
    shared.print_lines(f"{path}: {scenario.source}, {classes} {kind}, {clients} clients ({scenario.partition})")
    typed = shlex.quote(str(path))
    shared.print_lines(f"next: fedloom inspect {typed}, then fedloom run {typed}")


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path}: it exists, and `init` overwrites nothing; name another file with --out")


def _ask(question: str, choices: Sequence[str], default: str) -> str:
    answer: str = typer.prompt(f"{question} ({', '.join(choices)})", default=default, err=True)
    return answer


def inspect(
    config: shared.Config,
    overrides: shared.Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Write the picture to this .png or .svg file.")] = None,
    audit: Annotated[bool, typer.Option("--audit", help="Look for misleading cells; also takes a table file.")] = False,
    label: Annotated[str | None, typer.Option(help="With --audit FILE, the column of the class.")] = None,
    owner: Annotated[str | None, typer.Option(help="With --audit FILE, the column of the owners.")] = None,
    seed: int | None = None,
    as_json: shared.AsJson = False,
) -> None:
    """Show how the data are spread: each client's samples by class, and measures of skew. Trains nothing."""
    if audit:
        if out is not None:
            raise ConfigError(f"--out {out}: an audit has no picture; leave it out, or take --json")
        from fedloom.data.findings import print_findings
        from fedloom.runs.config import table_keys as table_audit

        findings = table_audit.audit(config, label, owner, shared.overrides_with_options(overrides, seed=seed))
        if as_json:
            shared.print_json({"findings": [dataclasses.asdict(finding) for finding in findings]})
        else:
            print_findings(console_of(False), findings)
        return
    if label is not None or owner is not None:
        raise ConfigError("--label and --owner belong to --audit FILE; a config has scenario.label and scenario.owner")
    from fedloom.data import describe_scenario
    from fedloom.data.leak import leak
    from fedloom.results.report import check_picture, save_holdings
    from fedloom.results.report.holdings_table import print_holdings
    from fedloom.runs.protocol_tests import rank_metric_notes

    if out is not None:
        check_picture(out)
    parsed = shared.parse_config(config, overrides, seed=seed)
    scenario = parsed.scenario.build(parsed.seed)
    picture = describe_scenario(scenario) | {"leak": leak(scenario)}
    picture["notes"] += rank_metric_notes(parsed, scenario)
    if out is not None:
        save_holdings(picture, out)
    if as_json:
        shared.print_json(picture | {"picture": None if out is None else str(out)})
        return
    print_holdings(console_of(False), picture)
    if out is not None:
        shared.print_lines(f"  picture: {out}")


_COMMANDS = (
    *(demo, pages.help_, init, inspect, advise, run, comparisons.compare, comparisons.study, publication.reproduce),
    *(diagnose, catalogue.methods, catalogue.models, catalogue.datasets, catalogue.scenarios, catalogue.config),
    *(comparisons.report, publication.table, publication.figure, model.export, model.predict, model.evaluate),
)
_BY_NAME = {command.__name__.rstrip("_"): command for command in _COMMANDS}
for group, names in shared.TEXTS["groups"].items():
    for name in names:
        app.command(name, rich_help_panel=group)(shared.described(_BY_NAME[name], name))
app.add_typer(flower.group, name="flower", rich_help_panel=group)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command, and turn its failures into exit codes."""
    for stream in (sys.stdout, sys.stderr):
        shared.make_printable(stream)
    listen_for_stop()
    try:
        with raise_first_interrupt() as interrupts:
            expanded = [*map(shared.expand_home_in, sys.argv[1:] if arguments is None else arguments)]
            plugins, typed_arguments = _plugins_apart(expanded)
            # In standalone mode click would print errors and end the process itself.
            code = app(args=plugins + typed_arguments, prog_name="fedloom", standalone_mode=False)
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where an error can still be reported
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "fedloom"
        _fail(f"{shared.usage_problem(error)}; see `{path} --help`", error.exit_code)
    except StoppedError as error:
        shared.say(f"{error}{_how_to_resume(typed_arguments)}")
        sys.exit(error.exit_code)
    except FedloomError as error:
        if error.exit_code == 1 and error.__cause__ is not None:  # inside the work: the user cannot correct it
            trace = "".join(traceback.format_exception(error.__cause__))
            print(printable(trace, keep_lines=True), end="", file=sys.stderr)
        _fail(error, error.exit_code)
    except BrokenPipeError:  # the reader has gone, e.g. `fedloom methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.filename is not None:
            _fail(f"{error.filename}: {error.strerror}", FedloomError.exit_code)
        if error.errno not in _WRITE_ERRORS:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"the output cannot be written ({error.strerror}); finished training is kept", FedloomError.exit_code)
    if code == _INTERRUPTED:
        number = interrupts.signal or signal.SIGINT
        cause = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
        with contextlib.suppress(OSError):  # the terminal may be gone
            shared.say(f"stopped{cause}{_how_to_resume(typed_arguments)}")
        code = 128 + number
    sys.exit(code if isinstance(code, int) else 0)


def _plugins_apart(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return `--plugin FILE`, an option of all commands whose parsers do not know it, and all other arguments."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    at = [index for index in range(end) if arguments[index] == "--plugin"]
    moved = {*at, *(index + 1 for index in at), *(i for i in range(end) if arguments[i].startswith("--plugin="))}
    apart = [argument for index, argument in enumerate(arguments) if index in moved]
    return apart, [argument for index, argument in enumerate(arguments) if index not in moved]


_INTERRUPTED = 130  # what typer returns for a KeyboardInterrupt
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)  # of an output that takes no more
_HOW_TO_RESUME = {
    "run": "; --resume continues from the last checkpoint",
    "flower up": "; the same command continues from the last checkpoint",
} | dict.fromkeys(("reproduce", "study", "compare", "advise"), "; the same command continues from the last checkpoints")


def _how_to_resume(arguments: Sequence[str]) -> str:
    commands = (" ".join(arguments[:words]) for words in (1, 2))
    return next((_HOW_TO_RESUME[command] for command in commands if command in _HOW_TO_RESUME), "")


def _fail(error: object, code: int) -> NoReturn:
    shared.say("error: " + " ".join(str(error).split()))
    sys.exit(code)
