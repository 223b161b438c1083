"""A file is written whole or not at all."""

import errno
import math
import os
import stat
from pathlib import Path

import pytest

from fedloom.core import files
from fedloom.core.errors import ConfigError
from fedloom.core.files import (
    cache_dir,
    json_digest,
    json_text,
    parse_json,
    private_umask,
    restrict_to_owner,
    write_atomic,
)


def test_writes_bytes_and_text_and_makes_missing_folders(tmp_path):
    write_atomic(tmp_path / "new" / "deep" / "a.bin", b"\x00\xff")
    write_atomic(tmp_path / "b.txt", "Zürich\n")
    assert (tmp_path / "new" / "deep" / "a.bin").read_bytes() == b"\x00\xff"
    assert (tmp_path / "b.txt").read_bytes() == "Zürich\n".encode()


def test_replaces_the_old_file_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "a"
    path.write_text("a longer old text")
    write_atomic(path, "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o027, 0o640), (0o000, 0o644)])
def test_the_umask_decides_who_reads_a_file(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "a", "x")
        write_atomic(tmp_path / "private", "x", private=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600


def modes(folder):
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}


def test_a_private_file_and_the_folders_made_for_it_are_their_owners_alone(tmp_path):
    write_atomic(tmp_path / "new" / "deep" / "token", "x", private=True)
    write_atomic(tmp_path / "new" / "deep" / "token", "y", private=True)
    assert modes(tmp_path) == {"new": 0o700, "deep": 0o700, "token": 0o600}


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "a").symlink_to(victim)
    write_atomic(tmp_path / "a", "new", private=True)
    assert (victim.read_text(), (tmp_path / "a").read_text()) == ("mine", "new")
    assert not (tmp_path / "a").is_symlink()


def test_what_others_could_read_is_closed_and_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "a").write_text("a")
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True, mode=0o755)
    (folder / "deep" / "state").write_text("a")
    (folder / "deep" / "tool").write_text("a")
    (folder / "deep" / "tool").chmod(0o755)
    (folder / "link").symlink_to(outside)
    (folder / "file link").symlink_to(outside / "a")
    restrict_to_owner(folder)
    restrict_to_owner(tmp_path / "missing")
    assert modes(folder) | {"link": 0, "file link": 0} == {
        "deep": 0o700,
        "state": 0o600,
        "tool": 0o700,
        "link": 0,
        "file link": 0,
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(outside.stat().st_mode) == 0o755
    assert stat.S_IMODE((outside / "a").stat().st_mode) == 0o644


def test_private_files_closes_what_libraries_write_meanwhile(tmp_path):
    with private_umask():
        (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    assert modes(tmp_path) == {"a": 0o600, "b": 0o644}


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("existed", [True, False])
def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch, existed):
    path = tmp_path / "checkpoint"
    if existed:
        path.write_text("old")
    monkeypatch.setattr(files.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomic(path, "new")
    assert caught.value.errno == errno.ENOSPC
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("checkpoint", "old")] * existed


def test_a_kill_during_the_rename_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    path.write_text("old")

    def interrupted(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, "new")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("checkpoint", "old")]


def test_data_is_flushed_to_disk_before_the_old_file_is_replaced(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_text("old")
    seen = []
    monkeypatch.setattr(
        files.os, "fsync", lambda descriptor: seen.append((os.fstat(descriptor).st_size, path.read_text()))
    )
    write_atomic(path, "12345")
    assert seen == [(5, "old")]


def test_the_cache_is_the_users_own_or_the_platforms(monkeypatch):
    monkeypatch.setenv("FEDLOOM_CACHE", "/somewhere")
    assert cache_dir() == Path("/somewhere")
    monkeypatch.delenv("FEDLOOM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/fedloom")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "fedloom"


def test_json_has_no_numbers_that_are_not_finite():
    value = {"a": math.nan, "b": [math.inf, (1.5, -math.inf)], "c": {"d": None, "e": True, "f": "NaN"}}
    assert json_text(value) == '{"a": null, "b": [null, [1.5, null]], "c": {"d": null, "e": true, "f": "NaN"}}'


def test_a_digest_is_of_values_whatever_the_order_of_keys():
    assert json_digest({"a": 1, "b": [1.5, "c"]}) == json_digest({"b": (1.5, "c"), "a": 1})
    assert json_digest({"a": 1}) != json_digest({"a": 1.0})
    assert json_digest([]) == "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"  # sha256 of "[]"


def test_json_that_nests_too_deep_is_a_value_error_like_any_other():
    assert parse_json('{"a": [1, null]}') == {"a": [1, None]}
    for text in ("{", 100_000 * "[", b"\xff"):
        with pytest.raises(ValueError):
            parse_json(text)


def test_expanded_puts_the_home_directory_in(monkeypatch):
    monkeypatch.setenv("HOME", "/home/of/somebody")
    assert files.expand_home("~/x") == Path("/home/of/somebody/x")
    assert files.expand_home("x/~") == Path("x/~")
    with pytest.raises(ConfigError, match="no home directory is known for ~nobody-of-this-name"):
        files.expand_home("~nobody-of-this-name/x")


def test_no_home_directory_is_one_line(monkeypatch):
    for name in ("FEDLOOM_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda user: {}[user])
    with pytest.raises(ConfigError, match=r"no folder for the cache: .* or set FEDLOOM_CACHE to a folder of your own"):
        files.cache_dir()


def test_a_place_that_cannot_be_written_is_refused_before(tmp_path):
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    files.refuse_unwritable(tmp_path / "new" / "file")
    files.refuse_unwritable(tmp_path / "file")
    for place in (tmp_path, tmp_path / "file" / "below", tmp_path / "pipe", Path("/dev/full")):
        with pytest.raises(OSError, match=r"regular|irectory"):
            files.refuse_unwritable(place)
        with pytest.raises(OSError, match=r"regular|irectory|exists"):
            files.write_atomic(place, "x")


def test_nothing_is_appended_or_read_through_what_is_no_regular_file(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="symbolic"):
        files.open_to_append(tmp_path / "link")
    with pytest.raises(OSError, match=r"regular|No such device"):
        files.open_to_append(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular"):
        files.read_file(tmp_path / "pipe")
    with files.open_to_append(tmp_path / "file") as stream:
        stream.write(b"y")
    assert files.read_file(tmp_path / "file") == b"xy"
