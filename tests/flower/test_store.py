"""Private states on a node's disk."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from fedloom.core.errors import DataError
from fedloom.flower.node import StateStore
from support import same_bits


def record(value):
    return {"model": {"w": torch.full((3,), float(value))}, "steps": value}


@pytest.fixture
def store(tmp_path):
    return StateStore(tmp_path / "states", "ab", 3)


def test_a_state_comes_back_as_it_was_for_its_round_client_and_run_alone(tmp_path):
    StateStore(tmp_path, "ab", 3).save(5, record(5))
    assert same_bits(StateStore(tmp_path, "ab", 3).load(5), record(5))
    others = (("ab", 3, 4), ("ab", 2, 5), ("cd", 3, 5))
    assert [StateStore(tmp_path, run, client).load(round_) for run, client, round_ in others] == [None] * 3


def test_the_newest_states_stay_and_the_one_that_the_server_counts_on(store):
    for round_ in range(1, 8):
        store.save(round_, record(round_), spare=2)
    assert [round_ for round_ in range(1, 8) if store.load(round_)] == [2, 4, 5, 6, 7]  # 4: see `is_kept_for_rewind`


def test_a_damaged_state_is_as_one_that_is_lost(store):
    store.save(1, record(1))
    file = store.path / "round-000001.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    assert store.load(1) is None


def test_a_disk_keeps_its_token(tmp_path):
    tokens = [StateStore(tmp_path / place, "ab", 0).token() for place in ("a", "a", "b")]
    assert tokens[0] == tokens[1] != tokens[2]


def test_a_process_killed_while_it_writes_leaves_whole_states(tmp_path):
    code = """
        import sys, torch
        from pathlib import Path
        from fedloom.flower.node import StateStore
        store = StateStore(Path(sys.argv[1]), "ab", 0)
        for round_ in range(1, 100_000):
            store.save(round_, {"w": torch.full((20_000,), float(round_))})
            print(round_, flush=True)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], stdout=subprocess.PIPE)
    for _ in range(20):
        last = int(child.stdout.readline())
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    last = int(([last, *child.stdout.read().split()])[-1])  # the child may be ahead, and old states are deleted
    child.stdout.close()
    state = StateStore(tmp_path, "ab", 0).load(last)
    assert float(state["w"].min()) == float(state["w"].max()) == last


def modes(folder):
    return {path.name: oct(path.lstat().st_mode & 0o777) for path in folder.rglob("*")}


def test_nobody_else_reads_states_and_tokens(store, tmp_path):
    """Also where an earlier version left them open: the next join closes them."""
    before = os.umask(0)
    try:
        token = store.token()
        store.save(5, record(5))
    finally:
        os.umask(before)
    closed = dict.fromkeys(["states", "ab", "client-000003"], "0o700")
    closed |= {"token": "0o600", "round-000005.safetensors": "0o600"}
    assert modes(tmp_path) == closed
    for path in (store.path.parent, *store.path.parent.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert store.token() == token
    assert modes(tmp_path) == closed


@pytest.mark.parametrize("link", ["ab", "ab/client-000003"])
def test_a_link_in_place_of_a_folder_is_not_written_through(store, tmp_path, link):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "round-000001.safetensors").write_text("mine")
    place = tmp_path / "states" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    for write in (store.token, lambda: store.save(5, record(5))):
        with pytest.raises(DataError, match="it is a link"):
            write()
    assert [path.name for path in outside.iterdir()] == ["round-000001.safetensors"]


BAD_TOKENS = [b"", b"0" * 15, b"0" * 17, b"g" * 16, b"\xff" * 16, b"0" * 16 + b"\n", b"x" * 10**6]


@pytest.mark.parametrize("content", BAD_TOKENS)
def test_a_damaged_token_is_named(store, content):
    store.token()
    (store.path / "token").write_bytes(content)
    with pytest.raises(DataError, match="damaged, because a token has 16 hexadecimal digits"):
        store.token()
