"""IDX files: written here by the format's own definition, read, damaged, refused."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedloom.core.errors import DataError
from fedloom.data import SOURCES
from fedloom.data.sources.mnist import FashionMNIST, Idx, parse_idx

FASHION = Path("/usr/share/datasets/fashion-mnist")
IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
LABELS = np.array([0, 2, 1], np.uint8)


def idx_bytes(array, code=0x08):
    """Magic (two zeros, type code, number of dimensions), big-endian sizes, values."""
    return struct.pack(">HBB", 0, code, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(path, data):
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path):
    """The array in the file."""
    return parse_idx(path.read_bytes(), str(path))


def write_set(folder, suffix="", **changed):
    """The four files of a set: three images each, test images inverted; `changed` replaces arrays by name."""
    arrays = {"train_images": IMAGES, "train_labels": LABELS, "t10k_images": 255 - IMAGES, "t10k_labels": LABELS}
    for name, array in (arrays | changed).items():
        part, kind = name.split("_")
        write(folder / f"{part}-{kind}-idx{array.ndim}-ubyte{suffix}", idx_bytes(array))
    return folder


# --- one file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_reads_plain_and_gzipped_files(tmp_path, name):
    assert (read(write(tmp_path / name, idx_bytes(IMAGES))) == IMAGES).all()


@pytest.mark.parametrize(("code", "dtype"), [(0x08, "u1"), (0x09, "i1"), (0x0B, ">i2"), (0x0C, ">i4")])
def test_reads_every_integer_type_in_big_endian(tmp_path, code, dtype):
    array = np.array([[0, 1], [100, 127]], dtype)
    got = read(write(tmp_path / "a", idx_bytes(array, code)))
    assert got.tolist() == [[0, 1], [100, 127]]


def test_the_array_may_be_written_to(tmp_path):
    read(write(tmp_path / "a", idx_bytes(LABELS)))[0] = 1


def test_every_truncation_of_a_plain_file_is_refused(tmp_path):
    data = idx_bytes(LABELS)
    for length in range(len(data)):
        with pytest.raises(DataError, match=r"truncated|not an IDX header"):
            read(write(tmp_path / "a", data[:length]))


def test_every_truncation_of_a_gzipped_file_is_refused(tmp_path):
    packed = gzip.compress(idx_bytes(LABELS))
    for length in range(1, len(packed)):
        path = tmp_path / "a.gz"
        path.write_bytes(packed[:length])
        with pytest.raises(DataError, match="damaged or truncated"):
            read(path)


def test_a_gz_file_that_is_no_gzip_or_has_a_wrong_checksum_is_refused(tmp_path):
    packed = bytearray(gzip.compress(idx_bytes(IMAGES)))
    packed[-8] ^= 1  # the stored CRC
    for data in (idx_bytes(IMAGES), bytes(packed)):
        path = tmp_path / "a.gz"
        path.write_bytes(data)
        with pytest.raises(DataError, match="damaged or truncated"):
            read(path)


@pytest.mark.parametrize("start", [b"\x01\x00\x08\x01", b"\x00\x00\x99\x01", b"PK\x03\x04", b"\x7fELF"])
def test_foreign_files_are_refused_with_what_they_start_with(tmp_path, start):
    with pytest.raises(DataError, match=f"starts with {start.hex()}, which is not an IDX header"):
        read(write(tmp_path / "a", start + bytes(20)))


@pytest.mark.parametrize("extra", [-1, 1])
def test_a_payload_of_another_length_than_promised_is_refused(tmp_path, extra):
    data = idx_bytes(IMAGES)
    data = data[:extra] if extra < 0 else data + bytes(extra)
    with pytest.raises(DataError, match=f"{len(data)} bytes where its header promises {16 + 60}"):
        read(write(tmp_path / "a", data))


def test_sizes_whose_product_overflows_are_refused(tmp_path):
    header = struct.pack(">HBB4I", 0, 0x08, 4, *[1 << 16] * 4)  # 2^64 elements: 0 in 64-bit arithmetic
    with pytest.raises(DataError, match="promises"):
        read(write(tmp_path / "a", header))


# --- a set -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_folder_of_four_files_is_a_source(tmp_path, suffix):
    splits = Idx(path=write_set(tmp_path, suffix)).load()
    assert splits.train.y.tolist() == splits.test.y.tolist() == [0, 2, 1]
    assert splits.train.classes == ("0", "1", "2")
    assert (splits.train.x[:, 0].numpy() == IMAGES).all()
    assert (splits.test.x[:, 0].numpy() == 255 - IMAGES).all()


def test_both_parts_are_scaled_by_the_training_sets_moments(tmp_path):
    splits = Idx(path=write_set(tmp_path)).load()
    for part, images in ((splits.train, IMAGES), (splits.test, 255 - IMAGES)):
        expected = (images.astype(np.float64) - IMAGES.mean()) / IMAGES.std()
        assert part.gather(torch.arange(3))[:, 0].numpy() == pytest.approx(expected, abs=1e-5)


def test_a_missing_part_is_named(tmp_path):
    write_set(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte: no such file"):
        Idx(path=tmp_path).load()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_labels": LABELS[:2]}, r"\(train\): .*one label per sample"),
        ({"t10k_labels": LABELS[:2]}, r"\(test\): .*one label per sample"),
        ({"t10k_labels": np.array([0, 1, 9], np.uint8)}, r"\(test\): label 9 is above all training labels"),
        ({"t10k_images": IMAGES[:, :2]}, "differ in sample shape"),
        ({"train_images": IMAGES[:0], "train_labels": LABELS[:0]}, r"shape \(0, 4, 5\)"),
    ],
    ids=["train labels", "test labels", "unknown class", "other size", "empty"],
)
def test_sets_that_contradict_themselves_are_refused(tmp_path, changed, message):
    with pytest.raises(DataError, match=message):
        Idx(path=write_set(tmp_path, **changed)).load()


def test_labels_in_the_place_of_images_are_refused(tmp_path):
    write_set(tmp_path)
    write(tmp_path / "train-images-idx3-ubyte", idx_bytes(LABELS))
    with pytest.raises(DataError, match=r"training images have shape \(3,\)"):
        Idx(path=tmp_path).load()


# --- Fashion-MNIST ---------------------------------------------------------------------------------------------------


def test_a_missing_folder_says_what_to_install_or_to_set(tmp_path):
    with pytest.raises(DataError, match=r"no folder .*absent; install .*dataset-fashion-mnist, or set scenario\.path"):
        FashionMNIST(path=tmp_path / "absent").load()


def test_fashion_mnist_refuses_an_eleventh_class(tmp_path):
    write_set(tmp_path, train_labels=np.array([0, 10, 1], np.uint8))
    with pytest.raises(DataError, match=r"label 10 is outside 0 \.\. 9"):
        FashionMNIST(path=tmp_path).load()


def test_limit_takes_the_first_training_images_and_the_whole_test_set(tmp_path):
    splits = FashionMNIST(path=write_set(tmp_path), limit=2).load()
    assert splits.train.y.tolist() == [0, 2]
    assert (splits.train.x[:, 0].numpy() == IMAGES[:2]).all()
    assert len(splits.test) == 3


def test_limit_must_be_positive():
    with pytest.raises(ValidationError):
        FashionMNIST(limit=0)


@pytest.mark.skipif(not FASHION.is_dir(), reason=f"Debian's package dataset-fashion-mnist is not installed ({FASHION})")
def test_the_real_fashion_mnist_is_as_published():
    splits = SOURCES.get("fashion-mnist")().load()
    assert torch.bincount(splits.train.y).tolist() == [6000] * 10
    assert torch.bincount(splits.test.y).tolist() == [1000] * 10
    assert splits.train.input_shape == splits.test.input_shape == (1, 28, 28)
    assert splits.train.classes[0] == "t-shirt"
    assert splits.train.classes[9] == "ankle boot"
    # The commonly cited moments of the training set: 0.2860 and 0.3530 of the full range.
    assert splits.train.mean.item() / 255 == pytest.approx(0.2860, abs=1e-4)
    assert splits.train.std.item() / 255 == pytest.approx(0.3530, abs=1e-4)
