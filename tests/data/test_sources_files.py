"""Folders and archives as named files, pictures to pixels, and the splits of sets that have none."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.core.errors import DataError
from fedloom.data.sources.files import data_dir, open_files, verify_md5
from fedloom.data.sources.pixels import decode, resized
from fedloom.data.sources.source import first_rows, stratified_split
from source_files import encoded, pixels, write_tar, write_tree, write_zip

TREE = {"a/1.txt": b"one", "a/b/2.txt": b"two", "3.txt": b"three"}
WRITERS = {"folder": write_tree, "set.zip": write_zip, "set.tar": write_tar, "set.tar.gz": write_tar}


@pytest.fixture(params=list(WRITERS))
def made(request, tmp_path):
    return lambda files: WRITERS[request.param](tmp_path / request.param, files)


# --- folders and archives --------------------------------------------------------------------------------------------


def test_every_kind_holds_the_same_files(made):
    files = open_files(made(TREE))
    assert files.names() == sorted(TREE)
    assert files.read("a/b/2.txt") == b"two"
    assert dict(files.read_each(["3.txt", "a/1.txt"])) == {"3.txt": b"three", "a/1.txt": b"one"}
    assert files.has("3.txt")
    assert not files.has("a")
    with pytest.raises(DataError, match=r"none\.txt"):
        files.read("none.txt")


def test_the_single_folder_around_an_archive_is_left_out(tmp_path):
    for archive in (write_zip(tmp_path / "a.zip", {f"top/{n}": r for n, r in TREE.items()}),):
        assert open_files(archive).names() == sorted(TREE)
    assert open_files(write_tar(tmp_path / "b.tar.gz", {f"./top/{n}": r for n, r in TREE.items()})).read("3.txt")


def test_hidden_files_do_not_count(made):
    assert open_files(made({**TREE, "a/.DS_Store": b"", "__MACOSX/a/._1.txt": b""})).names() == sorted(TREE)


@pytest.mark.parametrize("name", ["../evil.txt", "/evil.txt", "a/../../evil.txt", "C:\\evil.txt", "..\\evil.txt"])
@pytest.mark.parametrize("kind", ["set.zip", "set.tar.gz"])
def test_members_outside_their_folder_are_refused_before_anything_is_read(tmp_path, kind, name):
    archive = WRITERS[kind](tmp_path / kind, {**TREE, name: b"evil"})
    with pytest.raises(DataError, match="leads outside its folder"):
        open_files(archive)
    assert sorted(path.name for path in tmp_path.iterdir()) == [kind]


@pytest.mark.parametrize("kind", ["set.zip", "set.tar", "set.tar.gz"])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.7])
def test_a_truncated_archive_is_one_clear_line(tmp_path, kind, share):
    big = {f"{i}.bin": np.random.default_rng(i).bytes(5000) for i in range(5)}
    archive = WRITERS[kind](tmp_path / kind, big)
    archive.write_bytes(archive.read_bytes()[: int(share * archive.stat().st_size)])

    def read():
        files = open_files(archive)
        return [files.read(name) for name in big]

    with pytest.raises(DataError, match=rf"{kind}: (cannot be read .*damaged or truncated|holds no)") as caught:
        read()
    assert "\n" not in str(caught.value)


def test_a_flipped_bit_in_a_zip_is_noticed(tmp_path):
    archive = write_zip(tmp_path / "set.zip", {"a.txt": b"x" * 100, "b.txt": b"y"})
    archive.write_bytes(archive.read_bytes().replace(b"xxxx", b"xxxz", 1))
    with pytest.raises(DataError, match="Bad CRC"):
        open_files(archive).read("a.txt")


def test_other_files_are_no_archives(tmp_path):
    (tmp_path / "set.rar").write_bytes(b"")
    with pytest.raises(DataError, match=r"set\.rar: neither a folder nor an archive \(\.zip"):
        open_files(tmp_path / "set.rar")


def test_the_publishers_md5_is_compared(tmp_path):
    path = tmp_path / "set.bin"
    path.write_bytes(b"abc")
    good = hashlib.md5(b"abc").hexdigest()
    verify_md5([path], {"set.bin": good})
    verify_md5([path], {"other.bin": "0"})
    with pytest.raises(DataError, match=rf"set\.bin: MD5 {good}, its publisher gives 00; .*scenario\.verify=false"):
        verify_md5([path], {"set.bin": "00"})


def test_data_lie_where_the_user_says_else_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path))
    assert data_dir() == tmp_path / "data"
    monkeypatch.setenv("FEDLOOM_DATA", "/mine")
    assert str(data_dir()) == "/mine"


# --- pictures --------------------------------------------------------------------------------------------------------


def test_a_picture_becomes_channels_first_bytes():
    picture = pixels(0)
    assert (decode(encoded(picture), "a", 8, 3) == picture.transpose(2, 0, 1)).all()
    gray = pixels(1, channels=1)
    assert (decode(encoded(gray), "a", 8, 1)[0] == gray).all()
    assert (decode(encoded(gray), "a", 8, 3) == gray).all()  # gray replicated


def test_resizing_arrays():
    x = np.stack([pixels(seed).transpose(2, 0, 1) for seed in range(3)])
    assert resized(x, 8, 3) is x
    assert resized(x, 5, 3).shape == (3, 3, 5, 5)
    assert (resized(x[:, :1], 8, 3) == x[:, :1]).all()
    luma = np.rint(x.transpose(0, 2, 3, 1) @ np.array([0.299, 0.587, 0.114]))
    assert np.abs(resized(x, 8, 1)[:, 0] - luma).max() <= 1
    halved = x.astype(float).reshape(3, 3, 4, 2, 4, 2).mean((3, 5))
    inner = resized(x, 4, 3)[..., 1:-1, 1:-1]  # antialiased: close to the mean of a wider neighbourhood
    assert np.abs(inner - halved[..., 1:-1, 1:-1]).mean() < 40
    assert (resized(np.full((2, 1, 16, 16), 9, np.uint8), 28, 3) == 9).all()


# --- splits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "test"), [(157, 32), (9298, 1860), (70000, 14000), (99289, 19858)])
def test_test_sizes_are_those_of_the_papers(samples, test):
    """Fed-CO2: DSLR 32 of 157, USPS 1,860, MNIST 14,000, SVHN 19,858 test images."""
    labels = np.random.default_rng(0).integers(0, 10, samples)
    train, held = stratified_split(labels, 0.2, np.random.default_rng(0), "toy")
    assert (len(train), len(held)) == (samples - test, test)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=80), st.integers(0, 99))
def test_a_split_is_complete_disjoint_and_even(labels, seed):
    labels = np.array(labels)
    train, test = stratified_split(labels, 0.25, np.random.default_rng(seed), "toy")
    assert sorted([*train, *test]) == list(range(len(labels)))
    exact = np.bincount(labels, minlength=5) * len(test) / len(labels)
    assert (np.abs(np.bincount(labels[test], minlength=5) - exact) < 1).all()


def test_a_split_of_one_sample_is_refused():
    with pytest.raises(DataError, match="toy: 1 samples cannot be split"):
        stratified_split(np.zeros(1, int), 0.2, np.random.default_rng(0), "toy")


def test_a_prefix_never_asks_for_more_than_there_is():
    rows = np.arange(5)
    assert first_rows(rows, None, "a") is not None
    assert first_rows(rows, 5, "a").tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match="per_domain = 6: domain a has 5 training samples"):
        first_rows(rows, 6, "a")
