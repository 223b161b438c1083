"""The command line: words a person types, calls, prints, exit codes. No mathematics.

Exit codes: 0 done; 2 something to correct (one line on stderr says what); 1 a failure inside the work, with its
traceback. With --json, stdout holds one JSON object and nothing else.
"""

from __future__ import annotations

import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.commands import several
from fedloom.commands.shared import AsJson, Config, Fresh, Jobs, Overrides, console_of, print_json, say
from fedloom.core.errors import ClientError, ConfigError, FedloomError, nearest

if TYPE_CHECKING:
    from fedloom.study.run import Existing

app = typer.Typer(
    name="fedloom",
    help="Federated learning on heterogeneous data: compare methods honestly, deploy what you compared.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Resume = Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run of the same config.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0 .. seeds - 1.")] = 3,
    rounds: Annotated[int | None, typer.Option(min=1, help="Fewer rounds, for a quicker look.")] = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """FedAvg against FedSC on real handwritten digits, spread unevenly over ten clients. Under a minute."""
    words = [] if rounds is None else [f"rounds={rounds}"]
    from fedloom.study.config import load
    from fedloom.study.grid import variants
    from fedloom.study.ready import find_ready

    configs = variants(load(find_ready("demo").path, words), ["fedavg", "fedsc"], seeds)
    console = console_of(as_json)
    if not as_json:
        from fedloom.data import describe_scenario
        from fedloom.terminal import holdings

        console.print("Ten clients share 1,442 handwritten digits, very unevenly (Dirichlet 0.1). Seed 0:")
        holdings(console, describe_scenario(configs[0].scenario.build(0)))
    several.side_by_side(configs, out, "fresh", jobs, as_json, console)


@app.command()
def run(
    config: Config,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default below runs/, named after the run.")] = None,
    resume: Resume = False,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Train and test one method as a config says."""
    from fedloom.study.compare import Forward, folder_name
    from fedloom.study.config import load, parse
    from fedloom.study.results import Result
    from fedloom.study.run import run as run_config
    from fedloom.terminal import Live, outcome

    parsed = parse(load(config, overrides or ()))
    folder = out or Path("runs") / folder_name(parsed)
    existing = _existing(resume, fresh)
    console = console_of(as_json)
    finished_before = existing != "fresh" and Result.read(folder) is not None
    with Live(console, [parsed], quiet=as_json) as live:
        result = run_config(parsed, out=folder, existing=existing, callbacks=[Forward(0, live)])
    if finished_before:
        say(f"{folder} holds this run, finished before; nothing was trained (--fresh trains again)")
    if as_json:
        print_json(result.numbers)
    else:
        outcome(console, result)


app.command()(several.compare)


@app.command()
def inspect(
    config: Config,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Write the picture to this .png or .svg file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Who holds what: clients x classes and skew figures, before any training."""
    from fedloom.data import describe_scenario
    from fedloom.study.config import load, parse
    from fedloom.terminal import holdings

    parsed = parse(load(config, overrides or ()))
    picture = describe_scenario(parsed.scenario.build(parsed.seed))
    if out is not None:
        from fedloom.report import save_holdings

        save_holdings(picture, out)
    if as_json:
        print_json(picture | {"picture": None if out is None else str(out)})
        return
    console = console_of(as_json)
    holdings(console, picture)
    if out is not None:
        console.print(f"  picture: {out}", highlight=False)


app.command()(several.report)
app.command()(several.table)


@app.command()
def methods(name: Annotated[str | None, typer.Argument()] = None, as_json: AsJson = False) -> None:
    """The federated methods, or one of them with its options and presets."""
    from fedloom.methods import METHODS

    def facts(method: Any) -> dict[str, Any]:
        defaults = {n: f.default for n, f in method.Options.model_fields.items()}
        return {"options": defaults, "presets": {n: dict(p) for n, p in method.presets.items()}}

    _catalogue("method", dict(METHODS), name, as_json, facts)


@app.command()
def models(name: Annotated[str | None, typer.Argument()] = None, as_json: AsJson = False) -> None:
    """The networks, or one of them with its shape."""
    from fedloom.nets import MODELS

    _catalogue("model", dict(MODELS), name, as_json, lambda model: {})


@app.command()
def datasets(name: Annotated[str | None, typer.Argument()] = None, as_json: AsJson = False) -> None:
    """The data sources, or one of them with its config keys."""
    from fedloom.data import SOURCES

    def facts(source: Any) -> dict[str, Any]:
        keys = {n: None if f.is_required() else f.default for n, f in source.model_fields.items()}
        return {"keys": keys, "model": source.model}

    _catalogue("dataset", dict(SOURCES), name, as_json, facts)


@app.command()
def scenarios(
    name: Annotated[str | None, typer.Argument(help="One of them; the words it starts with are enough.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ready configs: one for every setting of the papers' tables, and the demo's."""
    from fedloom.study.ready import find_ready, ready_configs
    from fedloom.terminal import listing

    if name is not None:
        found = find_ready(name)
        if as_json:
            import yaml

            print_json({"name": found.name, "path": str(found.path), "config": yaml.safe_load(found.text)})
        else:
            console_of(as_json).print(f"# {found.path}\n{found.text.rstrip()}", markup=False, soft_wrap=True)
        return
    ready = ready_configs()
    if as_json:
        print_json({r.name: {"summary": r.summary, "path": str(r.path)} for r in ready})
    else:
        listing(console_of(as_json), "scenario", [(r.name, r.summary) for r in ready])


def main(words: Sequence[str] | None = None) -> None:
    """Entry point: runs a command and turns failures into exit codes."""
    try:
        app(args=None if words is None else list(words))
    except ClientError as error:
        traceback.print_exception(error.__cause__, file=sys.stderr)
        _fail(error)
    except FedloomError as error:
        _fail(error)
    except KeyboardInterrupt:
        say("stopped; --resume goes on from the last checkpoint")
        sys.exit(130)


def _fail(error: FedloomError) -> None:
    say(f"error: {error}")
    sys.exit(error.exit_code)


def _existing(resume: bool, fresh: bool) -> Existing:
    if resume and fresh:
        raise ConfigError("--resume goes on and --fresh starts again: give one of them")
    return "resume" if resume else "fresh" if fresh else "refuse"


def _catalogue(noun: str, items: dict[str, Any], name: str | None, as_json: bool, facts: Any) -> None:
    """List all items, or show one."""
    from fedloom.terminal import listing

    def first_line(item: Any) -> str:
        return (item.__doc__ or "").strip().split("\n")[0]

    console = console_of(as_json)
    if name is None:
        if as_json:
            print_json({n: {"summary": first_line(item), **facts(item)} for n, item in items.items()})
        else:
            listing(console, noun, [(n, first_line(item)) for n, item in items.items()])
        return
    if name not in items:
        raise ConfigError(f"unknown {noun} '{name}': {nearest(name, items)}")
    import inspect as source_text

    text = source_text.cleandoc(items[name].__doc__ or "")
    if as_json:
        print_json({"name": name, "text": text, **facts(items[name])})
        return
    console.print(text, markup=False, highlight=False, width=min(120, shutil.get_terminal_size().columns))
    for title, values in facts(items[name]).items():
        console.print(f"\n[bold]{title}[/]")
        pairs = values.items() if isinstance(values, dict) else [("", values)]
        for key, value in pairs:
            console.print(f"  {key}: {value}" if key else f"  {value}", markup=False, highlight=False)
