"""NPZ files in the Keras convention, right and wrong."""

import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from fedloom.core.errors import DataError
from fedloom.data.sources.npz import Npz, read_npz
from fedloom.data.sources.source import configure_source


def arrays(shape=(4, 6, 5), dtype=np.uint8):
    rng = np.random.default_rng(0)
    x = [rng.integers(0, 256, shape).astype(dtype) for _ in range(2)]
    return {"x_train": x[0], "y_train": np.arange(4) % 3, "x_test": x[1], "y_test": np.arange(4) % 2}


@pytest.fixture
def save(tmp_path):
    def to_source(**changed):
        np.savez(tmp_path / "set.npz", **(arrays() | changed))
        return Npz(path=tmp_path / "set.npz")

    return to_source


@pytest.mark.parametrize(
    ("stored", "seen"),
    [
        ((4, 6, 5), (1, 6, 5)),  # images without channels
        ((4, 6, 5, 3), (3, 6, 5)),  # channels last
        ((4, 6, 5, 1), (1, 6, 5)),
        ((4, 3, 6, 5), (3, 6, 5)),  # channels first
        ((4, 1, 6, 5), (1, 6, 5)),
        ((4, 3, 6, 3), (3, 6, 3)),  # could be both: taken as channels first
        ((4, 7), (7,)),  # no images at all
    ],
)
def test_layouts(save, stored, seen):
    data = arrays(stored)
    splits = save(**data).load()
    assert splits.train.input_shape == splits.test.input_shape == seen
    last = len(stored) == 4 and seen != stored[1:]
    expected = np.moveaxis(data["x_train"], -1, 1) if last else data["x_train"].reshape(4, *seen)
    assert (splits.train.x.numpy() == expected).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_both_parts_are_scaled_by_the_training_sets_channels(save, dtype):
    data = arrays((4, 6, 5, 3), dtype)
    splits = save(**data).load()
    mean, std = (f(data["x_train"].astype(np.float64), axis=(0, 1, 2)) for f in (np.mean, np.std))
    for part, x in ((splits.train, data["x_train"]), (splits.test, data["x_test"])):
        expected = np.moveaxis((x - mean) / std, -1, 1)
        assert part.gather(torch.arange(4)).numpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("key", ["x_train", "y_train", "x_test", "y_test"])
def test_a_missing_key_is_named(tmp_path, key):
    np.savez(tmp_path / "set.npz", **{name: value for name, value in arrays().items() if name != key})
    with pytest.raises(DataError, match=f"lacks {key}; need x_train, y_train, x_test, y_test"):
        Npz(path=tmp_path / "set.npz").load()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y_train": np.array([0, -1, 1, 2])}, r"\(train\): label -1 is outside 0 \.\. 2"),
        ({"y_test": np.array([0, -5, 1, 2])}, r"\(test\): label -5 is outside 0 \.\. 2"),
        ({"y_train": np.arange(3)}, r"\(train\): .*one label per sample"),
        ({"x_test": np.full((4, 6, 5), np.nan)}, r"\(test\): 120 values are NaN or infinite"),
        ({"x_test": np.zeros((4, 5, 6))}, "differ in sample shape"),
        ({"x_train": np.zeros(()), "x_test": np.zeros(())}, "one label per sample"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_arrays_are_refused(save, changed, message):
    with pytest.raises(DataError, match=message):
        save(**changed).load()


def member(shape, version=1, length=None):
    """An .npy that states `shape` and holds 96 bytes."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    size = (length or len(header)).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + header.encode() + bytes(96)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (member((2**40, 1)), r"x_train\.npy states shape \(1099511627776, 1\) of uint8, 1,099,511,627,776 bytes"),
        (member((2**62, 2**62)), r"x_train\.npy states shape"),
        (member((4, -24)), "states shape"),
        (member((4, 6, 5)), r"states shape \(4, 6, 5\) of uint8, 120 bytes, and holds 96"),
        (member((4, 24), version=2, length=2**32 - 1), r"x_train\.npy does not begin as an array does"),
        (member("(" * 5000), "cannot be read as"),
        (member((4, 24), version=9), "cannot be read as"),
        (b"x", r"x_train\.npy does not begin as an array does"),
        (b"", r"x_train\.npy does not begin as an array does"),
    ],
    ids=["huge", "overflow", "negative", "short", "long header", "nested", "version", "text", "empty"],
)
def test_a_header_that_lies_is_refused_before_memory_is_taken(save, raw, message):
    source = save()
    with zipfile.ZipFile(source.path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(source.path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, contents in (members | {"x_train.npy": raw}).items():
            archive.writestr(name, contents)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message) as caught:
            source.load()
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)


def test_an_archive_beyond_memory_is_refused_before_it_is_read(save, monkeypatch):
    source = save()
    monkeypatch.setattr("os.sysconf", lambda name: 8)
    with pytest.raises(DataError, match="GiB of memory, this machine has"):
        source.load()


def test_other_files_in_the_archive_are_left_alone(save):
    source = save()
    with zipfile.ZipFile(source.path, "a") as archive:
        archive.writestr("README.txt", "by hand")
    assert len(source.load().train) == 4


def test_a_missing_file_says_what_was_expected(tmp_path):
    with pytest.raises(DataError, match=r"absent\.npz: no such file; expected an \.npz with x_train"):
        Npz(path=tmp_path / "absent.npz").load()


def test_a_missing_file_of_any_arrays_has_a_whole_sentence(tmp_path):
    with pytest.raises(DataError, match=r"absent\.npz: no such file; expected an \.npz$"):
        read_npz(tmp_path / "absent.npz", ())


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.99])
def test_a_truncated_file_is_refused(save, share):
    source = save()
    data = source.path.read_bytes()
    source.path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DataError, match=r"set\.npz: cannot be read as \.npz"):
        source.load()


def test_a_flipped_pixel_is_noticed_by_the_archives_checksum(save):
    source = save()
    data = bytearray(source.path.read_bytes())
    place = bytes(data).index(arrays()["x_train"].tobytes())
    data[place] ^= 1
    source.path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="CRC"):
        source.load()


@pytest.mark.parametrize("kind", ["text", "npy", "folder"])
def test_what_is_no_npz_is_refused(tmp_path, kind):
    path = tmp_path / "set.npz"
    if kind == "text":
        path.write_text("x_train, y_train")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as stream:
            np.save(stream, np.zeros(3))
    with pytest.raises(DataError, match=r"cannot be read as \.npz"):
        Npz(path=path).load()


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


def test_object_arrays_are_refused_and_never_unpickled(save, tmp_path):
    mark = tmp_path / "exploded"
    source = save(x_train=np.array([Bomb(mark)] * 4, dtype=object))
    with pytest.raises(DataError, match="Object arrays cannot be loaded"):
        source.load()
    assert not mark.exists()
    np.load(source.path, allow_pickle=True)["x_train"][0].close()  # the bomb is live: whoever unpickles it sets it off
    assert mark.exists()


@pytest.mark.parametrize(
    "names", [("x", "y"), ("X", "Y"), ("data", "target"), ("images", "labels"), ("arr_0", "arr_1")], ids=" ".join
)
def test_a_file_with_samples_and_labels_alone_keeps_a_fifth_of_each_class_for_tests(tmp_path, names):
    x, y = np.random.default_rng(0).random((60, 6), np.float32), np.arange(60) % 3
    np.savez(tmp_path / "data.npz", **dict(zip(names, (x, y), strict=True)))
    splits = configure_source(Npz, path=tmp_path / "data.npz").load()
    assert torch.bincount(splits.test.y).tolist() == [4, 4, 4]
    assert len(splits.train) == 48
    rows = {tuple(row) for row in torch.cat([splits.train.x, splits.test.x]).tolist()}
    assert rows == {tuple(row) for row in x.tolist()}


def test_groups_of_such_a_file_are_not_parted(tmp_path):
    group = np.arange(60) // 2
    np.savez(tmp_path / "data.npz", x=np.zeros((60, 2), np.float32), y=np.arange(60) // 2 % 3, group=group)
    splits = configure_source(Npz, path=tmp_path / "data.npz", group="group").load()
    assert not {*splits.train.group.tolist()} & {*splits.test.group.tolist()}


def test_other_spellings_of_the_parts(tmp_path):
    x, y = np.zeros((6, 2), np.float32), np.arange(6) % 2
    np.savez(tmp_path / "data.npz", X_train=x, Y_train=y, test_data=x, test_labels=y, x_val=x[:2], y_val=y[:2])
    splits = configure_source(Npz, path=tmp_path / "data.npz").load()
    assert (len(splits.train), len(splits.test)) == (8, 6)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((4, 2)), "y": np.zeros(3)}, r"x of shape \(4, 2\) and y of shape \(3,\)"),
        ({"x": np.zeros((4, 2)), "data": np.zeros((4, 2)), "y": np.zeros(4)}, "holds x and data, which mean the same"),
        ({"x": np.zeros((4, 2))}, "lacks x_train, .* or x and y alone"),
        ({"x": np.zeros((4, 2)), "y": np.zeros(4), "x_test": np.zeros((4, 2))}, "lacks x_train, y_train, y_test"),
    ],
)
def test_files_that_are_not_clear_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(DataError, match=message):
        configure_source(Npz, path=tmp_path / "data.npz").load()
