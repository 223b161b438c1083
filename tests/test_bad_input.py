"""What people do wrong: exit code 2, at most three lines that name it, nothing lost, nothing left behind, soon."""

import io
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from fedloom.cli.app import main

# What a file holds, or makes it; for a folder, what is damaged in a copy of a finished run.
Maker: TypeAlias = "str | bytes | Callable[[Path], object] | dict[str, str | bytes]"

CONFIG = """
method: fedavg
scenario: {source: digits, partition: dirichlet, alpha: 0.5, clients: 4}
rounds: 1
local_epochs: 1
engine: serial
"""
PART = "scenario: {source: digits, partition: iid}\n"  # of a config
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(10 * [f'*{old}'])}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
NPZ = ("run", "c.yaml", "scenario.source=npz", "scenario.path=d.npz", "model=mlp")
CSV = ("run", "c.yaml", "scenario.source=csv", "scenario.path=d.csv", "scenario.label=y")
HUNDREDS, LISTED = str(list(range(1, 301))), ("rounds", "batch_size", "local_epochs")
SOON = 20.0  # seconds; on an idle processor each takes a tenth of one


def npz(**changed: Any) -> bytes:
    """A small set of images, with a change."""
    x, y = np.zeros((60, 8, 8), np.uint8), np.arange(60) % 2
    stream = io.BytesIO()
    np.savez(stream, **{"x_train": x, "y_train": y, "x_test": x, "y_test": y, **changed})
    return stream.getvalue()


def own(folder: Path) -> None:
    """Something that fedloom did not write."""
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint" / "thesis.tex").write_text("years of work")


def report_is_a_folder(folder: Path) -> None:
    """A folder in the place of a comparison's report."""
    (folder / "report.html").mkdir(parents=True)


def summary_is_a_pipe(folder: Path) -> None:
    """A run folder in which reading would wait for ever."""
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG)
    os.mkfifo(folder / "summary.json")


def case(name: str, words: str | tuple[str, ...], says: str, **files: Maker) -> Any:
    """A command line, what its message must hold, and files to be there (`bad` is bad.yaml, `d` is d.npz)."""
    return pytest.param(words.split() if isinstance(words, str) else list(words), says, files, id=name)


CASES = [
    # words
    case("command", "rnu c.yaml", "did you mean 'run'"),
    case("option", "run c.yaml --resum", "--resume"),
    case("missing-argument", "run", "Missing argument 'CONFIG'"),
    case("missing-value", "run c.yaml --out", "--out"),
    case("extra-argument", "methods fedavg fedsc", "fedsc"),
    case("option-type", "compare c.yaml --seeds x", "'x' is not a valid integer"),
    case("option-range", "compare c.yaml --jobs 0", "x>=1"),
    case("option-absurd", "compare c.yaml --seeds 1000000000000", "1000000000000 is not in the range"),
    case("conflict", "run c.yaml --resume --fresh", "give one of them"),
    case("said-twice", "run c.yaml seed=2 --seed 1", "--seed 1 and seed=2: give one of them"),
    case("option-as-key", "compare c.yaml seeds=2", "seeds is an option of `fedloom compare`; write --seeds 2"),
    case("flag-as-key", "run c.yaml resume=true", "write --resume"),
    case("option-as-key-of-a-table", "reproduce feddw/table1 only=x", "write --only x"),
    case("methods-none", ("compare", "c.yaml", "--methods", ""), "method = []: need at least one"),
    case("methods-near-miss", "compare c.yaml --methods fedavg,scafold", "did you mean 'scaffold'?"),
    case("methods-twice", "compare c.yaml --methods fedavg,fedavg", "stands twice"),
    case("methods-name", "methods fedprx", "did you mean 'fedprox'?"),
    case("methods-wrapper", "methods --takes krumm", "unknown wrapper 'krumm': did you mean 'krum'?"),
    case("methods-paper", "methods --compared-in feddv", "--compared-in = 'feddv': did you mean 'feddw'?"),
    case("methods-filter", "methods fedavg --personal", "filters apply to the list of all methods"),
    case("methods-two-means", "methods fedavg+krum+median", "has a robust mean already"),
    case("config-key", "config roundz", "did you mean 'rounds'?"),
    case("config-key-and-schema", "config rounds --schema", "leave out the key"),
    case("list-twice", "compare c.yaml scenario.alpha=[0.1,0.1]", "scenario.alpha = 0.1 stands twice"),
    case("list-and-option", "compare c.yaml method=[fedavg,fedsc] --methods fedavg", "method is a list"),
    case("list-empty", "compare c.yaml scenario.alpha=[]", "need at least one value"),
    case("table-format", "table k --format word", "markdown, latex, csv", k={}),
    case("models-name", ("models", "🦊"), "unknown model '🦊': known: "),
    case("datasets-name", "datasets digit", "did you mean 'digits'?"),
    case("scenarios-name", "scenarios fedsc/", "more start so; write more of it"),
    case("wrapper", "methods fedprox+wd", "unknown wrapper 'wd': did you mean 'dw'?"),
    case("demo", "demo --rounds 0", "x>=1"),
    case("attack-name", "run c.yaml scenario.attack=sing-flip",
        "unknown attack 'sing-flip': did you mean 'sign-flip'?"),
    case("attack-share", ("run", "c.yaml", "scenario.attack={name: scaled, share: 0.7}"), "need a number in [0, 0.5)"),
    case("attack-of-nobody", ("run", "c.yaml", "scenario.attack={name: scaled, share: 0.1}"), "that is 0 of "),
    case("attack-class", ("run", "c.yaml", "scenario.attack={name: label-flip, share: 0.3, source: 1, target: 12}"),
        "0 .. 9"),
    case("attack-key", ("run", "c.yaml", "scenario.attack={name: alie, factor: 3}"),
        "unknown key 'scenario.attack.factor'"),
    # overrides
    case("no-override", "run c.yaml rounds", "'rounds' is no override; write key=value"),
    case("unknown-key", "run c.yaml metod=fedsc", "unknown key 'metod': did you mean 'method'?"),
    case("key-of-a-section", "run c.yaml lr=0.1", "unknown key 'lr': did you mean 'optimizer.lr'?"),
    case("key-of-another-section", "run c.yaml optimizer.rounds=3", "did you mean 'rounds'?"),
    case("near-miss-elsewhere", "run c.yaml momentun=0.5", "did you mean 'optimizer.momentum'?"),
    case("long-key", ("run", "c.yaml", "x" * 100_000 + "=3"), "unknown key 'xxx"),
    case("long-value", ("run", "c.yaml", "rounds=" + "x" * 60_000), "unable to parse string as an integer"),
    case("method-near-miss", "run c.yaml method=fedcs", "unknown method 'fedcs': did you mean 'fed"),
    case("protocol", "run c.yaml evaluation.protocol=personal/local", "evaluation.protocol = 'personal/local'"),
    case("zero", "run c.yaml scenario.alpha=0", "scenario.alpha = 0: "),
    case("type", "run c.yaml rounds=many", "rounds = 'many': "),
    case("fraction", "run c.yaml rounds=1.5", "rounds = 1.5: "),
    case("range", "run c.yaml participation=1.01", "participation = 1.01: input should be less than or equal to 1"),
    case("not-a-number", "run c.yaml optimizer.lr=.nan", "optimizer.lr = nan: input should be a finite number"),
    case("infinite", "run c.yaml scenario.alpha=.inf", "scenario.alpha = inf: "),
    case("absurd-rounds", f"run c.yaml rounds={10**18}", "rounds = 1000000000000000000: input should be less than"),
    case("absurd-clients", f"run c.yaml scenario.clients={10**12}", "digits has 1442 training samples"),
    case("absurd-model", ("run", "c.yaml", "model={name: mlp, hidden: [10**9]}"), "model.hidden.0 = '10**9': "),
    case("absurd-epochs", f"run c.yaml local_epochs={10**9}", "local_epochs = 1000000000: need a number up to 100,000"),
    case("absurd-batch", f"run c.yaml batch_size={10**12}", "batch_size = 1000000000000: "),
    case("absurd-tests", f"run c.yaml evaluation.every={10**12}", "evaluation.every = 1000000000000: "),
    case("huge-grid", ("compare", "c.yaml", *(f"{key}={HUNDREDS}" for key in LISTED)),
        "combinations, more than 100,000"),
    case("huge-model", ("run", "c.yaml", f"model={{name: mlp, hidden: [{10**12}]}}"), "hidden widths must be 1 to"),
    case("too-large", ("run", "c.yaml", "model={name: mlp, hidden: [1000000, 1000000]}"), "does not fit into memory"),
    case("negative-seed", "run c.yaml scenario.seed=-1", "scenario.seed = -1: "),
    case("value-as-section", "run c.yaml rounds.x=3", "1 is a value, not a section with 'x'"),
    case("section-as-value", "run c.yaml scenario=digits", "scenario = 'digits': a section holds keys with values"),
    case("word-for-engine", "run c.yaml engine=fast", "engine.name = 'fast': "),
    case("no-gpu", "run c.yaml engine.device=cuda:99", "engine.device = 'cuda:99': "),
    case("model-option", ("run", "c.yaml", "model={name: mlp, hidden: abc}"), "model.hidden = 'abc': "),
    case("model-nothing", ("run", "c.yaml", "model={hidden: [9]}"), "need a name"),
    case("model-does-not-fit", "run c.yaml model=lenet5", "images [c, h, w] of at least 16x16 pixels"),
    case("value-is-no-yaml", "run c.yaml rounds=[", "the value is not YAML"),
    case("value-nested", ("run", "c.yaml", "rounds=" + 3000 * "[" + 3000 * "]"), "nested more than 30 deep"),
    case("nothing-to-select-by", "run c.yaml evaluation.select=best_val scenario.val=0", "there is no validation data"),
    case("no-model-to-test", "run c.yaml method=local", "local has no global model"),
    # files
    case("no-config", "run nowhere.yaml", "no such config file"),
    case("no-ready-config", "run configs/dmo.yaml", "did you mean 'demo'?"),
    case("folder-as-config", "run .", "is a folder"),
    case("endless-config", "run /dev/zero", "no config is that long"),
    case("link-loop", "run l", "l: ", l=lambda path: path.symlink_to("l")),
    case("binary", "run bad.yaml", "not readable as YAML", bad=bytes(range(128, 256))),
    case("no-mapping", "run bad.yaml", "this is a list", bad="- a list"),
    case("empty", "run bad.yaml", "scenario is missing", bad=""),
    case("hidden-type", "inspect bad.yaml", "model.hidden = 'abc'", bad=PART + "model: {name: mlp, hidden: abc}\n"),
    case("key-twice", "run bad.yaml", "'rounds' comes twice, again in line 3", bad=PART + "rounds: 3\nrounds: 4\n"),
    case("nested", "run bad.yaml", "nested more than 30 deep", bad="x: " + 3000 * "{a: " + "1" + 3000 * "}"),
    case("alias-bomb", "run bad.yaml", "aliases unfold to more than", bad=BOMB),
    case("alias-in-itself", "run bad.yaml", "*a refers to itself", bad="x: &a [*a]"),
    case("object", "run bad.yaml", "python/object", bad="!!python/object/apply:os.system ['true']"),
    case("digits", "run bad.yaml", "4300 digits", bad="rounds: " + 6000 * "9"),
    case("lines-in-value", "run bad.yaml", r"unknown method 'a\nb\nc'", bad=PART + 'method: "a\\nb\\nc"\n'),
    # folders
    case("out-at-a-file", "run c.yaml --out d.npz", "d.npz: cannot be written (a file is in the way)", d=b""),
    case("out-below-a-file", "compare c.yaml --out c.yaml/x", "c.yaml/x: cannot be written"),
    case("out-in-a-loop", "demo --out l/x", "l/x: cannot be written", l=lambda path: path.symlink_to("l")),
    case("picture-below-a-file", "inspect c.yaml --out c.yaml/x.png", "the picture cannot be written there"),
    case("picture-format", "inspect c.yaml --out who.txt", "pictures end in one of .png"),
    case("no-such-home", "run c.yaml --out=~nobody-of-this-name/x",
        "no home directory is known for ~nobody-of-this-name"),
    case("out-at-a-device", "run c.yaml --out /dev/full", "/dev/full: cannot be written"),
    case("report-at-a-folder", "report k --out r.html", "r.html: cannot be written", k={}, **{"r.html": Path.mkdir}),
    case("report-of-compare", "compare c.yaml --out o", "o/report.html: cannot be written", o=report_is_a_folder),
    case("picture-at-a-pipe", "inspect c.yaml --out p.png", "p.png: the picture cannot", **{"p.png": os.mkfifo}),
    case("export-at-a-folder", "export k --out m.safetensors", "m.safetensors is there", k={},
        **{"m.safetensors": Path.mkdir}),
    case("control-characters", ("report", "a\x1b[2Jb"), r"a\x1b[2Jb: no such folder"),
    case("summary-is-a-pipe", "table p", "it is no regular file", p=summary_is_a_pipe),
    case("flipped-bit", "report k", "no finished run there: k: damaged",
        k={"scenario.json": '{"checksums": {"content": "0"}}'}),
    case("report-of-nothing", "report .", "no finished run there"),
    case("report-as-csv", "report k --out t.csv", "a report is an .html page", k={}),
    case("table-of-nothing", "table . --format latex", "no finished run there"),
    case("report-of-a-file", "report c.yaml", "no such folder"),
    case("summary-of-nothing", "report k", "k/summary.json: damaged (it lacks method", k={"summary.json": "{}"}),
    case("summary-cut", "run c.yaml --out k", "k/summary.json: damaged", k={"summary.json": '{"method'}),
    case("json-nested", "report k", "damaged (it nests too deep)", k={"scenario.json": 100_000 * "["}),
    case("metrics-gone", "report k", "k/metrics.jsonl: damaged", k={"metrics.jsonl": ""}),
    case("config-nested", "run c.yaml --out k", "k/config.yaml: damaged", k={"config.yaml": "x: " + 3000 * "["}),
    case("config-bomb", "report k", "k/config.yaml: damaged", k={"config.yaml": BOMB}),
    case("out-of-another-config", "run c.yaml seed=1 --out k", "holds a run of another config", k={}),
    case("fresh-in-a-folder-of-mine", "run c.yaml --out m --fresh", "m", m=own),
    case("export-of-nothing", "export .", "no run there"),
    case("export-client", "export k --client 99", "client = 99: the run has 4 clients", k={}),
    case("export-below-a-file", "export k --out c.yaml/x.safetensors", "c.yaml/x.safetensors: cannot be", k={}),
    case("export-name", "export k --out .", "take a name such as model.safetensors", k={}),
    case("predict-nothing", "predict k none.png", "none.png: no such file", k={}),
    case("predict-shape", "predict k d.npz", "the model takes (1, 8, 8)", k={}, d=npz(x=np.zeros((3, 4, 4), np.uint8))),
    case("predict-damaged", "predict k s.png", "s.png: cannot be decoded", k={}, **{"s.png": b"\x89PNG cut"}),
    # data
    case("no-data", "run c.yaml scenario.source=npz scenario.path=none.npz", "none.npz: no such file"),
    case("no-idx", "run c.yaml scenario.source=idx scenario.path=none", "none"),
    case("no-path", "run c.yaml scenario.source=npz", "scenario.path is missing"),
    case("damaged", NPZ, "damaged or truncated", d=b"PK\x03\x04 cut"),
    case("csv-label", CSV, "d.csv: ", **{"d.csv": "a,b\n1,2\n"}),
    case("csv-ragged", CSV, "d.csv: ", **{"d.csv": "a,y\n1,2\n1\n"}),
    case("csv-binary", CSV, "d.csv: ", **{"d.csv": bytes(range(128, 256))}),
    case("label-absurd", NPZ, "4611686018427387904", d=npz(y_train=np.arange(60) % 2 * 2**62)),
    case("label-missing", NPZ, "lacks y_test", d=lambda path: np.savez(path, x_train=0, y_train=0, x_test=0)),
    case("label-count", NPZ, "need one label per sample", d=npz(y_train=np.zeros(5, int))),
    case("label-negative", NPZ, "label -1 is outside", d=npz(y_train=np.arange(60) % 2 - 1)),
    case("no-samples", NPZ, "holds no samples", d=npz(x_test=np.zeros((0, 8, 8), np.uint8), y_test=np.zeros(0, int))),
    case("values-nan", NPZ, "NaN or infinite", d=npz(x_train=np.full((60, 8, 8), np.nan))),
    case("values-complex", NPZ, "dtype complex128", d=npz(x_train=np.zeros((60, 8, 8), complex))),
    case("pickled", NPZ, "allow_pickle=False", d=npz(x_train=np.array([{}] * 60, object))),
    case("shapes-differ", NPZ, "differ in sample shape", d=npz(x_test=np.zeros((60, 4, 8), np.uint8))),
]  # fmt: skip


def everything(folder: Path) -> dict[str, str | bytes | None]:
    """All that is in a folder: links by their aims, files by their bytes."""
    return {
        str(path): str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of `CONFIG`."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "c.yaml").write_text(CONFIG)
    with pytest.raises(SystemExit):
        main(["run", str(folder / "c.yaml"), "--out", str(folder / "k"), "--quiet"])
    assert (folder / "k" / "summary.json").is_file()
    return folder / "k"


@pytest.mark.parametrize(("words", "says", "files"), CASES)
def test_one_clear_line(
    words: list[str],
    says: str,
    files: dict[str, Maker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    finished: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CONFIG)
    for name, made in files.items():
        path = Path({"bad": "bad.yaml", "d": "d.npz"}.get(name, name))
        if isinstance(made, dict):
            shutil.copytree(finished, path)
            for inside, content in made.items():
                (path / inside).write_bytes(content.encode() if isinstance(content, str) else content)
        elif callable(made):
            made(path)
        else:
            path.write_bytes(made.encode() if isinstance(made, str) else made)
    before, began = everything(tmp_path), time.monotonic()
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) <= 3
    assert lines[-1].startswith("error: ")
    assert says in lines[-1]
    assert len(lines[-1]) < 500
    assert everything(tmp_path) == before
    assert time.monotonic() - began < SOON


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CONFIG)
    Path("mine").mkdir(mode=0o500)
    for words in ("run c.yaml --out mine/x", "compare c.yaml --out mine/x", "inspect c.yaml --out mine/x.png"):
        with pytest.raises(SystemExit) as ended:
            main(words.split())
        assert ended.value.code == 2
        assert "Permission denied" in capsys.readouterr().err
    assert not list(Path("mine").iterdir())


def test_with_json_a_mistake_leaves_stdout_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CONFIG)
    for words in (["run", "c.yaml", "rounds=0"], ["methods", "fedcs"], ["scenarios", "dem0"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--json"])
        out, err = capsys.readouterr()
        assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
