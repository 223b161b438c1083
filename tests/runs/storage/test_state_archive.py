"""Client states in packs: few files, the states that changed, and the same content whatever was written when."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.core.records import Record
from fedloom.runs.storage import state_archive as packs
from support import same_bits


def state(client: int, version: int = 0, floats: int = 16) -> Record:
    return {"w": torch.full((floats,), float(client)), "version": version}


class Counted(dict[int, Record]):
    """Counts what is read: what is written anew."""

    read = 0

    def __getitem__(self, client: int) -> Record:
        self.read += 1
        return super().__getitem__(client)


def saved(path: Path, states: dict[int, Record], changed: Any = (), last: Path | None = None, round_: int = 1) -> Path:
    path.mkdir()
    packs.write(path, round_, states, changed, last)
    return path


def stored(path: Path) -> packs.ArchivedStates:
    return packs.ArchivedStates(path, packs.read_index(path))


def test_states_come_back_bit_for_bit_from_one_file(tmp_path: Path) -> None:
    states = {client: state(client, floats=1 + client % 7) for client in range(0, 900, 3)}
    there = stored(saved(tmp_path / "a", states))
    there.verify()
    assert list(there) == sorted(states)
    assert all(same_bits(there[client], states[client]) for client in states)
    assert len(list((tmp_path / "a").iterdir())) == 2
    with pytest.raises(KeyError):
        there[1]


def test_changed_states_alone_are_written_and_files_stay_few(tmp_path: Path) -> None:
    """A hundred checkpoints, each with 20 of 1,000 states changed."""
    states, last, versions = Counted({c: state(c) for c in range(1000)}), saved(tmp_path / "0", {}), {}
    last = saved(tmp_path / "1", states, last=last)
    states.read = 0
    for round_ in range(2, 102):
        changed = [(37 * round_ + 50 * k) % 1000 for k in range(20)]
        for client in changed:
            versions[client] = round_
            states[client] = state(client, round_)
        new = saved(tmp_path / str(round_), states, changed, last, round_)
        index = packs.read_index(new)
        files = list(new.glob("*.pack"))
        assert len(files) <= 9  # a power of two of 20 each, to 1,000
        assert sum(f.stat().st_size for f in files) <= 2 * int(index["size"].sum())
        last = new
    assert states.read <= 100 * 20 * 9  # each change a few times, not 100 * 1000
    there = stored(last)
    assert all(there[c]["version"] == versions.get(c, 0) for c in range(1000))


def test_states_that_are_gone_are_not_kept(tmp_path: Path) -> None:
    states = {client: state(client) for client in range(10)}
    last = saved(tmp_path / "1", states)
    del states[4]
    there = stored(saved(tmp_path / "2", states, [], last, 2))
    assert 4 not in there
    assert len(there) == 9


def test_the_content_does_not_depend_on_the_packs(tmp_path: Path) -> None:
    old, new = {c: state(c) for c in range(20)}, {c: state(c, int(c < 3)) for c in range(20)}
    steps = saved(tmp_path / "b", new, [0, 1, 2], saved(tmp_path / "a", old), 2)
    once = saved(tmp_path / "c", new)
    assert len(list(steps.glob("*.pack"))) == 2
    assert (tmp_path / "a" / packs.archive_name(1)).samefile(steps / packs.archive_name(1))  # shared
    assert packs.content_digest(packs.read_index(steps)) == packs.content_digest(packs.read_index(once))
    other = saved(tmp_path / "d", old)
    assert packs.content_digest(packs.read_index(other)) != packs.content_digest(packs.read_index(once))


@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_a_damaged_state_is_named(tmp_path: Path, damage: str) -> None:
    folder = saved(tmp_path / "a", {c: state(c) for c in range(5)})
    (pack,) = folder.glob("*.pack")
    content = bytearray(pack.read_bytes())
    content[-1] ^= 1
    pack.write_bytes(content if damage == "flip" else content[:-1])
    with pytest.raises(ValueError, match="the state of client 4 does not match its checksum"):
        stored(folder).verify()


def test_without_the_checkpoint_before_everything_is_written(tmp_path: Path) -> None:
    states = {c: state(c) for c in range(5)}
    last = saved(tmp_path / "a", states)
    next(last.glob("*.pack")).unlink()
    stored(saved(tmp_path / "b", states, [1], last, 2)).verify()


def test_packs_are_copied_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = {client: state(client) for client in range(20)}
    first = saved(tmp_path / "a", states)

    def refuse(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(packs.os, "link", refuse)
    states[3] = state(3, version=1)
    there = stored(saved(tmp_path / "b", states, [3], first, round_=2))
    there.verify()
    assert [there[client]["version"] for client in (2, 3)] == [0, 1]
