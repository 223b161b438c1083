"""Run folders whose values are damaged while their checksums fit: each reader says so in one line, or reads on."""

import contextlib
import copy
import hashlib
import io
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import fedloom as fl
from fedloom.core.errors import FedloomError
from fedloom.core.files import json_text
from fedloom.core.records import from_bytes, to_bytes
from fedloom.core.tables import ClassTable
from fedloom.results.comparison import Comparison
from fedloom.results.report.page import page
from fedloom.results.result import Result
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from fedloom.runs.storage import state_archive as packs
from fedloom.runs.storage.finished_runs import version_of

VALUES: dict[str, Any] = {
    "method": "fedproto",
    "scenario": {"source": "digits", "partition": "dirichlet", "alpha": 0.5, "clients": 3},
    "rounds": 2,
    "local_epochs": 1,
    "engine": "serial",
    "evaluation": {"protocol": "personal/local"},
    "checkpoint": {"seconds": 0, "keep": 5},
}
BAD = (None, -1, "x", [], {}, True, 1e308, 10**30, [1], {"a": 1}, float("inf"))
ABSENT = object()
pytestmark = [pytest.mark.filterwarnings(f"ignore:.*{word}") for word in ("unfinished", "checkpoint")]


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "good"
    run(parse(VALUES), out=folder)
    return folder


@pytest.fixture
def folder(good, tmp_path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "run"))


@pytest.mark.parametrize("confusion", [[0, 0], [0, 10, 1], [0, -1, 1], "0 0 1", None, [0.5, 0, 1]])
def test_matrices_of_clients_are_checked_when_they_are_read(folder, confusion):
    content = {"personal/local": {"1": {"confusion": confusion}}}
    checksums = {"content": sha256(content)}
    (folder / "clients.json").write_text(json_text(content | {"checksums": checksums}))
    result = Result.read(folder)
    with pytest.raises(FedloomError, match=r"clients\.json.*damaged") as refused:
        result.confusion(1)
    assert "\n" not in str(refused.value)


def sha256(content: Any) -> str:
    return hashlib.sha256(json_text(content, sort_keys=True).encode()).hexdigest()


def forge(folder: Path, config: Any = None) -> None:
    """Make the checksums of summary.json fit. config: what config.yaml says; None reads it."""
    content = json.loads((folder / "summary.json").read_text())
    del content["checksums"]
    rows = hashlib.sha256((folder / "metrics.jsonl").read_bytes()).hexdigest()
    config = yaml.safe_load((folder / "config.yaml").read_text()) if config is None else config
    content["checksums"] = {"numbers": sha256(content), "metrics": rows, "config": sha256(config)}
    (folder / "summary.json").write_text(json.dumps(content))


# `make test` damages each value in four ways of twelve, in turns; the matrix in the others too.
PARTS = [0, pytest.param(1, marks=pytest.mark.matrix), pytest.param(2, marks=pytest.mark.matrix)]


def damaged(content: Any, part: int) -> Iterator[tuple[str, Any]]:
    """The content with each of its values replaced by bad ones, or without it: a third of all ways."""
    for number, path in enumerate(places(content), part):
        for bad in (*BAD, ABSENT)[number % 3 :: 3]:
            changed = copy.deepcopy(content)
            section = changed
            for key in path[:-1]:
                section = section[key]
            if bad is ABSENT:
                del section[path[-1]]
            else:
                section[path[-1]] = bad
            yield f"{'.'.join(map(str, path))} = {bad!r}", changed


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = (
        content.items() if isinstance(content, dict) else enumerate(content[:1]) if isinstance(content, list) else ()
    )
    for key, value in items:
        yield from places(value, (*path, key))


def read(folder: Path, pages: bool = False) -> None:
    """All that commands read of a finished run. Nothing but an error of one line may come."""
    try:
        result = Result.read(folder)
        if result is None:
            return
        result.confusion()
        done = Comparison([result])
        for text in (done.table(), done.table("csv"), done.target_table(0.5), done.cost_table(), done.verdict()):
            assert isinstance(text, str)
        if pages:
            page([result])
    except FedloomError as error:
        refuse_lines(error)


@contextlib.contextmanager
def told(damage: str) -> Iterator[None]:
    """Say which damage made a test fail."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{damage}: {error!r}") from error


def refuse_lines(error: FedloomError) -> None:
    """What a command shows of an error: one line, and exit code 2."""
    assert "\n" not in str(error)
    assert error.exit_code == 2, repr(error)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", ["summary.json", "scenario.json", "env.json"])
def test_values_of_json_files(folder, name, part):
    content = json.loads((folder / name).read_text())
    sums = content.pop("checksums")
    # a page takes a quarter of a second: one for some of the values that pass
    for number, (what, changed) in enumerate(damaged(content, part)):
        forged = {"content": sha256(changed)} if "content" in sums else {**sums, "numbers": sha256(changed)}
        (folder / name).write_text(json.dumps(changed | {"checksums": forged}))
        with told(f"{name}: {what}"):
            read(folder, pages=number % 40 == 0)


@pytest.mark.parametrize("part", PARTS)
def test_values_of_the_config(folder, part):
    content = yaml.safe_load((folder / "config.yaml").read_text())
    for what, changed in damaged(content, part):
        (folder / "config.yaml").write_text(yaml.dump(changed, Dumper=yaml.CSafeDumper))
        forge(folder, changed)
        with told(what):
            read(folder)


@pytest.mark.parametrize("part", PARTS)
def test_values_of_rows(folder, part):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    kinds = {}
    for number, line in enumerate(lines):
        kinds.setdefault((json.loads(line)["name"], json.loads(line)["split"]), number)
    for number in list(kinds.values())[::3]:
        for what, changed in damaged(json.loads(lines[number]), part):
            text = [*lines[:number], json.dumps(changed), *lines[number + 1 :]]
            (folder / "metrics.jsonl").write_text("\n".join(text) + "\n")
            forge(folder)
            with told(f"row {number}: {what}"):
                read(folder)


def test_lost_rows(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    for keep in itertools.chain(range(3), range(3, len(lines), 5)):
        for text in (lines[:keep], [*lines[:keep], *lines[keep + 1 :]]):
            (folder / "metrics.jsonl").write_text("".join(text))
            forge(folder)
            read(folder)


@pytest.mark.parametrize("name", ["summary.json", "scenario.json", "env.json", "config.yaml"])
def test_one_flipped_bit_is_noticed(folder, name):
    raw = (folder / name).read_bytes()
    for place in range(0, len(raw), max(1, len(raw) // 150)):
        flipped = bytearray(raw)
        flipped[place] ^= 1
        if parsed(flipped) == parsed(raw):  # a comment, or a digit that a float does not hold
            continue
        (folder / name).write_bytes(flipped)
        reader = version_of if name == "env.json" else Result.read
        with pytest.raises(FedloomError, match=r"damaged|cannot be read"):
            reader(folder)


def parsed(raw: bytes | bytearray) -> Any:
    try:
        return yaml.safe_load(raw.decode())
    except (UnicodeDecodeError, yaml.YAMLError, ValueError):
        return None


@pytest.mark.parametrize("name", ["summary.json", "config.yaml", "scenario.json", "metrics.jsonl"])
def test_files_of_another_run(good, folder, tmp_path, name):
    run(parse(VALUES | {"seed": 1}), out=tmp_path / "other")
    shutil.copy(tmp_path / "other" / name, folder / name)
    read(folder)
    if name != "scenario.json":
        with pytest.raises(FedloomError):
            Result.read(folder)


def server_of(round_: Path) -> Path:
    return round_ / "server.safetensors"


def forge_checkpoint(round_: Path, **changed: Any) -> None:
    """Make the checksums of a checkpoint fit."""
    meta = json.loads((round_ / "meta.json").read_text()) | changed
    del meta["meta"]
    meta["server"] = hashlib.sha256(server_of(round_).read_bytes()).hexdigest()
    meta["index"] = hashlib.sha256((round_ / packs.INDEX).read_bytes()).hexdigest()
    (round_ / "meta.json").write_text(json.dumps(meta | {"meta": sha256(meta)}))


def go_on(folder: Path) -> None:
    """Resume and take a model: an error of one line, or none."""
    for action in (lambda: fl.load(folder, client=0), lambda: run(parse(VALUES), out=folder, existing="resume")):
        try:
            action()
        except FedloomError as error:
            refuse_lines(error)


@pytest.fixture
def half(folder) -> Path:
    """A run that has its first round alone."""
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "checkpoint" / "round-000002")
    return folder


BROKEN: dict[str, Any] = {
    "scalar": 3,
    "word": "x",
    "tensor": torch.zeros(2),
    "tree": {"a": torch.zeros(3)},
    "table": ClassTable(torch.zeros(3, 2), torch.ones(3, dtype=torch.bool)),
    "absent": ABSENT,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_entries_of_the_server_s_state(half, kind):
    round_ = half / "checkpoint" / "round-000001"
    record = from_bytes(server_of(round_).read_bytes())
    for name in list(record):
        changed = {key: value for key, value in record.items() if key != name}
        changed |= {} if BROKEN[kind] is ABSENT else {name: BROKEN[kind]}
        server_of(round_).write_bytes(to_bytes(changed))
        forge_checkpoint(round_)
        go_on(half)


@pytest.mark.parametrize("kind", BROKEN)
def test_entries_of_a_client_s_state(half, kind):
    round_ = half / "checkpoint" / "round-000001"
    stored = packs.ArchivedStates(round_, packs.read_index(round_))
    states = {client: dict(stored[client]) for client in stored}
    for name in list(states[0]):
        changed = {key: value for key, value in states[0].items() if key != name}
        changed |= {} if BROKEN[kind] is ABSENT else {name: BROKEN[kind]}
        for pack in round_.glob("*.pack"):
            pack.unlink()
        index = packs.write(round_, 1, states | {0: changed}, states, None)
        forge_checkpoint(round_, clients=packs.content_digest(index))
        go_on(half)


@pytest.mark.parametrize("column", ["client", "pack", "offset", "size"])
def test_the_index_of_client_states(half, column):
    round_ = half / "checkpoint" / "round-000001"
    index = np.load(round_ / packs.INDEX)
    for value in (-1, 7, 10**15, -(2**62)):
        changed = index.copy()
        changed[column][0] = value
        np.save(round_ / packs.INDEX, changed)
        forge_checkpoint(round_)
        go_on(half)


def header(shape: str, descr: str = "'<i8'") -> bytes:
    """A numpy file that ends after its header."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def zipped() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, a=np.zeros(3))
    return stream.getvalue()


ROW = np.lib.format.dtype_to_descr(packs._ROW)
NO_INDEX = {
    "nothing": b"",
    "an archive": zipped(),
    "half a header": header("(1,)")[:20],
    "no header": header("(1,)").replace(b"{'descr'", b"((((((((("),
    "brackets": b"\x93NUMPY\x01\x00\x76\x00" + b"-" * 117 + b"\n",
    "other columns": header("(0,)"),
    "more rows than there are": header("(35184372088832,)", str(ROW)),
    "more rows than any file has": header(f"({2**70},)", str(ROW)),
    "rows below 0": header("(-1,)", str(ROW)),
    "a single row": header("()", str(ROW)),
}


@pytest.mark.parametrize("content", NO_INDEX)
def test_files_that_are_no_index(half, content):
    round_ = half / "checkpoint" / "round-000001"
    (round_ / packs.INDEX).write_bytes(NO_INDEX[content])
    forge_checkpoint(round_)
    with pytest.raises(FedloomError, match=r"damaged \(clients\.npy is no index") as caught:
        fl.load(half, client=0)
    refuse_lines(caught.value)


@pytest.mark.parametrize("name", [".fedloom", "meta.json", "server.safetensors", packs.INDEX, "pack"])
def test_pipes_hold_nobody_up(half, name):
    round_ = half / "checkpoint" / "round-000001"
    file = half / name if name == ".fedloom" else next(round_.glob("*.pack")) if name == "pack" else round_ / name
    file.unlink()
    os.mkfifo(file)
    go_on(half)


def test_a_server_without_a_model(tmp_path):
    config = parse({**VALUES, "method": "fedavg", "evaluation": {"protocol": "global/global"}})
    run(config, out=tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoint" / "round-000002")
    round_ = tmp_path / "run" / "checkpoint" / "round-000001"
    server_of(round_).write_bytes(to_bytes({}))
    forge_checkpoint(round_)
    with pytest.raises(FedloomError, match=r"does not fit this config \(KeyError: 'conv1.weight'\)") as caught:
        run(config, out=tmp_path / "run", existing="resume")
    refuse_lines(caught.value)


@pytest.mark.parametrize("part", PARTS)
def test_values_of_the_meta_file(half, part):
    round_ = half / "checkpoint" / "round-000001"
    meta = json.loads((round_ / "meta.json").read_text())
    del meta["meta"]
    for what, changed in damaged(meta, part):
        (round_ / "meta.json").write_text(json.dumps(changed | {"meta": sha256(changed)}))
        with told(what):
            go_on(half)
