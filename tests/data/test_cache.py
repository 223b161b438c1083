"""The cache: what it trusts, what it makes again, and what it leaves behind."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from fedloom.core.errors import DataError
from fedloom.data import cache
from fedloom.data.cache import cached, checksum

VALUES = np.arange(12, dtype=np.int64).reshape(3, 4)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "arrays"


@pytest.fixture
def source_file(tmp_path):
    path = tmp_path / "set.bin"
    path.write_bytes(b"12345")
    return path


class Build:
    """Writes one array and counts how often it was asked."""

    def __init__(self, values=VALUES):
        self.values, self.calls = values, 0

    def __call__(self, writer):
        self.calls += 1
        writer.add("x", self.values)
        return {"classes": ["a", "b"]}


def entry_of(folder):
    (found,) = [path for path in folder.iterdir() if path.is_dir()]
    return found


def test_the_second_time_nothing_is_built(source_file):
    build = Build()
    for _ in range(3):
        entry = cached("toy", {"a": 1}, [source_file], build)
        assert (entry.arrays["x"] == VALUES).all()
        assert entry.meta == {"classes": ["a", "b"]}
    assert build.calls == 1


def test_arrays_are_mapped_and_torch_may_hold_them_without_copy_or_warning(source_file):
    array = cached("toy", {}, [source_file], Build()).arrays["x"]
    assert isinstance(array.base, np.memmap) or isinstance(array, np.memmap)
    tensor = torch.from_numpy(array)  # would warn, and so fail here, on memory that must not be written
    assert tensor.data_ptr() == array.ctypes.data


def test_writing_to_an_array_leaves_the_entry_alone(source_file):
    build = Build()
    cached("toy", {}, [source_file], build).arrays["x"][:] = -1
    assert (cached("toy", {}, [source_file], build).arrays["x"] == VALUES).all()
    assert build.calls == 1


def test_other_keys_are_other_entries(source_file):
    one, two = Build(VALUES), Build(VALUES + 1)
    cached("toy", {"size": 1}, [source_file], one)
    assert (cached("toy", {"size": 2}, [source_file], two).arrays["x"] == VALUES + 1).all()
    assert (cached("toy", {"size": 1}, [source_file], one).arrays["x"] == VALUES).all()
    assert (one.calls, two.calls) == (1, 1)


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_changed_file_is_parsed_again_in_the_same_place(source_file, folder, change):
    cached("toy", {}, [source_file], Build(VALUES))
    if change == "size":
        source_file.write_bytes(b"123456")
    else:
        os.utime(source_file, ns=(0, 0))
    build = Build(VALUES * 2)
    assert (cached("toy", {}, [source_file], build).arrays["x"] == VALUES * 2).all()
    assert build.calls == 1
    assert len([path for path in folder.iterdir() if path.is_dir()]) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "entry.json").unlink(),
        lambda entry: (entry / "entry.json").write_text("{"),
        lambda entry: (entry / "entry.json").write_text("[]"),
        lambda entry: (entry / "entry.json").write_text(json.dumps({"made_by": [1, "x"]})),
        lambda entry: (entry / "x.npy").unlink(),
        lambda entry: (entry / "x.npy").write_bytes(b""),
        lambda entry: (entry / "x.npy").write_bytes((entry / "x.npy").read_bytes()[:-1]),
        lambda entry: (entry / "x.npy").write_bytes((entry / "x.npy").read_bytes().replace(b"(3, 4)", b"(4, 3)")),
        lambda entry: flip(entry / "x.npy", -1),
        lambda entry: flip(entry / "x.npy", 0),
        lambda entry: np.save(entry / "x.npy", np.array([{}], dtype=object), allow_pickle=True),
    ],
    ids=["gone", "cut", "list", "keys", "no array", "empty", "short", "shape", "bit", "magic", "pickle"],
)
def test_a_damaged_entry_is_made_again(source_file, folder, damage):
    build = Build()
    cached("toy", {}, [source_file], build)
    damage(entry_of(folder))
    assert (cached("toy", {}, [source_file], build).arrays["x"] == VALUES).all()
    assert build.calls == 2
    cached("toy", {}, [source_file], build)
    assert build.calls == 2


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("attribute", ["_FORMAT", "__version__"])
def test_an_entry_of_another_version_is_made_again(source_file, monkeypatch, attribute):
    cached("toy", {}, [source_file], Build(VALUES * 3))
    monkeypatch.setattr(cache, attribute, "another")
    assert (cached("toy", {}, [source_file], Build()).arrays["x"] == VALUES).all()


def test_a_failed_build_leaves_nothing_and_the_next_one_works(source_file, folder):
    def fail(writer):
        writer.add("x", VALUES)
        raise DataError("line 3 is wrong")

    with pytest.raises(DataError, match="line 3 is wrong"):
        cached("toy", {}, [source_file], fail)
    assert [path.suffix for path in folder.iterdir()] in ([".lock"], [])
    assert (cached("toy", {}, [source_file], Build()).arrays["x"] == VALUES).all()


def test_what_a_killed_process_left_is_cleared_away(source_file, folder):
    cached("toy", {}, [source_file], Build())
    left_over = folder / f".{entry_of(folder).name}.abc"
    left_over.mkdir()
    (left_over / "x.npy").write_bytes(b"half")
    source_file.write_bytes(b"other")
    cached("toy", {}, [source_file], Build())
    assert not left_over.exists()


def test_another_array_may_take_the_place_of_one_filled_in_place(source_file):
    def build(writer):
        array = writer.new("x", (1000, 1000), np.float64)
        array[:] = 1
        writer.add("x", VALUES)
        assert array.sum() == 1_000_000  # still mapped, still whole

    assert (cached("toy", {}, [source_file], build).arrays["x"] == VALUES).all()


def test_an_array_may_be_made_anew_with_another_kind_of_numbers(source_file):
    def build(writer):
        small = writer.new("x", (3, 4), np.uint8)
        small[...] = VALUES
        wide = writer.new("x", (3, 4), np.float32)
        wide[...] = small  # still as it was filled
        writer.add("x", wide)

    for _ in range(2):
        array = cached("toy", {}, [source_file], build).arrays["x"]
        assert (array.dtype, (array == VALUES).all()) == ("float32", True)


def test_a_file_name_that_is_not_utf8_is_no_obstacle(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.bin")
    path.write_bytes(b"1")
    assert (cached("toy", {}, [path], Build()).arrays["x"] == VALUES).all()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"absent\.bin: no such file"):
        cached("toy", {}, [tmp_path / "absent.bin"], Build())


def test_a_cache_that_cannot_be_written_says_what_to_set(source_file, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="set FEDLOOM_CACHE"):
        cached("toy", {}, [source_file], Build())


def test_a_full_disk_while_writing_says_what_to_set(source_file, folder, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=r"No space left on device.*set FEDLOOM_CACHE"):
        cached("toy", {}, [source_file], Build())
    assert not [path for path in folder.iterdir() if path.is_dir()]


def test_waiting_for_another_process_is_bounded(source_file, folder, monkeypatch):
    from filelock import FileLock

    cached("toy", {}, [source_file], Build())
    source_file.write_bytes(b"other")
    monkeypatch.setattr(cache, "_WAIT_SECONDS", 0.1)
    with (
        FileLock(f"{entry_of(folder)}.lock"),
        pytest.raises(DataError, match="another process has been making it for 0 s"),
    ):
        cached("toy", {}, [source_file], Build())


CHILD = """
import sys, time, types
from pathlib import Path
import numpy as np
import fedloom

data = sys.modules["fedloom.data"] = types.ModuleType("fedloom.data")  # the package without torch: children start fast
data.__path__ = [str(Path(fedloom.__file__).parent / "data")]
from fedloom.data.cache import cached

def build(writer):
    with open(sys.argv[2], "a") as stream:
        stream.write("built\\n")
    time.sleep(0.5)
    writer.add("x", np.arange(1000))

print(int(cached("toy", {}, [Path(sys.argv[1])], build).arrays["x"].sum()))
"""


def test_two_processes_at_once_build_one_entry(source_file, tmp_path):
    log = tmp_path / "log"
    words = [sys.executable, "-c", CHILD, str(source_file), str(log)]
    children = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [child.communicate(timeout=60)[0].strip() for child in children] == ["499500"] * 3
    assert log.read_text() == "built\n"


def test_a_killed_builder_blocks_nobody(source_file, tmp_path, folder):
    log = tmp_path / "log"
    slow = CHILD.replace("time.sleep(0.5)", "time.sleep(60)")
    child = subprocess.Popen([sys.executable, "-c", slow, str(source_file), str(log)])
    deadline = time.monotonic() + 30
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    child.kill()
    child.wait()
    assert (cached("toy", {}, [source_file], Build()).arrays["x"] == VALUES).all()
    assert len([path for path in folder.iterdir() if path.is_dir()]) == 1


def test_checksums_see_shape_and_dtype_and_sample_large_arrays(monkeypatch):
    assert len({checksum(VALUES), checksum(VALUES.reshape(4, 3)), checksum(VALUES.view(np.uint64))}) == 3
    monkeypatch.setattr(cache, "_BLOCK", 8)
    monkeypatch.setattr(cache, "_CHECKED_BLOCKS", 3)  # of 12 blocks: 0, 4, 8 and the last
    for row, seen in ((0, True), (1, False), (4, True), (11, True)):
        changed = np.arange(12)
        changed[row] += 1
        assert (checksum(changed) != checksum(np.arange(12))) is seen
