"""Image sources on small files of their published layout."""

import bz2
import gzip
import io

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedloom.core.errors import DataError
from fedloom.data import SOURCES
from source_files import encoded, pixels, prefixed, write_tar, write_tree, write_zip

TRAIN, TEST = [3, 0, 9, 1], [2, 9]


def load(name, path=None, **keys):
    return SOURCES.get(name)(**({} if path is None else {"path": path}), **keys).load()


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def check(splits, images, labels, images_test, labels_test):
    """Images as [n, h, w, c] or [n, h, w]."""
    for part, x, y in ((splits.train, images, labels), (splits.test, images_test, labels_test)):
        x = np.stack(x)
        assert part.x.dtype == torch.uint8
        assert part.y.dtype == torch.int64
        assert part.y.tolist() == list(y)
        assert (part.x.numpy() == (x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))).all()


# --- MNIST, EMNIST ---------------------------------------------------------------------------------------------------

GRAY = [pixels(seed, 28, 1) for seed in range(6)]


def idx_files(train="train", test="t10k", suffix=""):
    arrays = {
        f"{train}-images-idx3-ubyte": np.stack(GRAY[:4]),
        f"{train}-labels-idx1-ubyte": np.array(TRAIN),
        f"{test}-images-idx3-ubyte": np.stack(GRAY[4:]),
        f"{test}-labels-idx1-ubyte": np.array(TEST),
    }
    return {f"{n}{suffix}": gzip.compress(idx(a)) if suffix else idx(a) for n, a in arrays.items()}


def test_mnist_from_the_folders_of_torchvision_and_from_keras_npz(tmp_path):
    check(
        load("mnist", write_tree(tmp_path / "a", prefixed("MNIST/raw", idx_files()))), GRAY[:4], TRAIN, GRAY[4:], TEST
    )
    arrays = {"x_train": GRAY[:4], "y_train": TRAIN, "x_test": GRAY[4:], "y_test": TEST}
    (tmp_path / "b").mkdir()
    np.savez(tmp_path / "b" / "mnist.npz", **arrays)
    for path in (tmp_path / "b", tmp_path / "b" / "mnist.npz"):
        splits = load("mnist", path)
        check(splits, GRAY[:4], TRAIN, GRAY[4:], TEST)
        assert splits.train.num_classes == 10


@pytest.mark.parametrize("subset", ["bymerge", "balanced"])
@pytest.mark.parametrize("packed", [False, True])
def test_emnist_is_turned_upright(tmp_path, subset, packed):
    files = idx_files(f"emnist-{subset}-train", f"emnist-{subset}-test", ".gz")
    if packed:
        write_zip(tmp_path / "gzip.zip", prefixed("gzip", files))
    else:
        write_tree(tmp_path, files)
    splits = load("emnist", tmp_path, subset=subset, verify=False)
    check(splits, [g.T for g in GRAY[:4]], TRAIN, [g.T for g in GRAY[4:]], TEST)
    assert splits.train.num_classes == 47
    assert splits.train.classes[10] == "A"
    assert splits.train.classes[46] == "t"


def test_a_published_archive_with_another_checksum_is_refused(tmp_path):
    write_zip(tmp_path / "gzip.zip", prefixed("gzip", idx_files("emnist-bymerge-train", "emnist-bymerge-test")))
    with pytest.raises(DataError, match=r"gzip\.zip: MD5 \w{32}, its publisher gives 58c8d27c"):
        load("emnist", tmp_path)


# --- CIFAR -----------------------------------------------------------------------------------------------------------

COLOUR = [pixels(seed, 32) for seed in range(12)]


def records(pictures, labels):
    return b"".join(bytes(y) + p.transpose(2, 0, 1).tobytes() for p, y in zip(pictures, labels, strict=True))


def cifar10_files():
    files = {f"data_batch_{i + 1}.bin": records(COLOUR[2 * i : 2 * i + 2], [[i], [9 - i]]) for i in range(5)}
    return {**files, "test_batch.bin": records(COLOUR[10:], [[4], [0]]), "batches.meta.txt": b"airplane\n"}


CIFAR_LABELS = [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]


@pytest.mark.parametrize("layout", ["folder", "below", "archive", "archive itself"])
def test_cifar10_binary_version(tmp_path, layout):
    files = prefixed("cifar-10-batches-bin", cifar10_files())
    path = tmp_path
    if layout.startswith("archive"):
        archive = write_tar(tmp_path / "cifar-10-binary.tar.gz", files)
        path = archive if layout == "archive itself" else tmp_path
    else:
        write_tree(tmp_path, files)
        path = tmp_path / "cifar-10-batches-bin" if layout == "folder" else tmp_path
    check(load("cifar10", path, verify=False), COLOUR[:10], CIFAR_LABELS, COLOUR[10:], [4, 0])


def test_cifar100_takes_the_fine_label(tmp_path):
    files = {"train.bin": records(COLOUR[:3], [[1, 72], [19, 0], [0, 99]]), "test.bin": records(COLOUR[3:4], [[5, 44]])}
    splits = load("cifar100", write_tree(tmp_path, prefixed("cifar-100-binary", files)))
    check(splits, COLOUR[:3], [72, 0, 99], COLOUR[3:4], [44])
    assert (splits.train.classes[0], splits.train.classes[99]) == ("apple", "worm")


def test_cifar10_from_npz_and_from_class_folders(tmp_path):
    arrays = {"x_train": np.stack(COLOUR[:3]), "y_train": [[3], [0], [9]], "x_test": COLOUR[3:4], "y_test": [[5]]}
    np.savez(tmp_path / "cifar10.npz", **arrays)
    check(load("cifar10", tmp_path / "cifar10.npz"), COLOUR[:3], [3, 0, 9], COLOUR[3:4], [5])
    folder = {"train/cat/1.png": encoded(COLOUR[0]), "train/truck/1.png": encoded(COLOUR[1])}
    splits = load("cifar10", write_tree(tmp_path / "f", {**folder, "test/ship/1.png": encoded(COLOUR[2])}))
    assert sorted(splits.train.y.tolist()) == [3, 9]
    assert splits.test.y.tolist() == [8]


def test_cifar_pixels_are_scaled_by_the_printed_moments(tmp_path):
    write_tree(tmp_path, cifar10_files())
    batch = load("cifar10", tmp_path).train.gather(torch.tensor([0]))[0, :, 0, 0]
    raw = torch.from_numpy(COLOUR[0][0, 0].astype(np.float32)) / 255
    expected = (raw - torch.tensor([0.4914, 0.4822, 0.4465])) / torch.tensor([0.2023, 0.1994, 0.2010])
    assert batch.tolist() == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("cifar10", {"cifar-10-batches-py/data_batch_1": b"\x80\x02"}),
        ("cifar10", {"cifar-10-python.tar.gz": b"\x1f\x8b"}),
        ("cifar10", {"data_batch_1": b"\x80\x02", "batches.meta": b"\x80\x02"}),
        ("cifar100", {"train": b"\x80\x02", "test": b"\x80\x02", "meta": b"\x80\x02"}),
        ("cifar100", {"cifar-100-python/train": b"\x80\x02"}),
    ],
)
def test_the_python_version_is_never_opened(tmp_path, name, files):
    write_tree(tmp_path, files)
    with pytest.raises(DataError, match=r"python version of cifar\d+, a pickle.*fetch the binary version \(cifar-10"):
        load(name, tmp_path)


def test_the_python_archive_itself_is_never_opened(tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(DataError, match="a pickle, and opening one can run any program"):
        load("cifar10", tmp_path / "cifar-10-python.tar.gz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_batch_3.bin": records(COLOUR[:2], [[0], [1]])[:-1]}, r"data_batch_3\.bin: 6145 bytes are no whole rec"),
        ({"test_batch.bin": b""}, r"test_batch\.bin: 0 bytes"),
        ({"data_batch_2.bin": records(COLOUR[:1], [[10]])}, r"label 10 is outside 0 \.\. 9"),
        ({"data_batch_4.bin": None}, r"data_batch_4\.bin: no such file"),
    ],
)
def test_damaged_cifar_files_are_named(tmp_path, change, message):
    files = {n: r for n, r in (cifar10_files() | change).items() if r is not None}
    with pytest.raises(DataError, match=message):
        load("cifar10", write_tree(tmp_path, files))


# --- SVHN, SynthDigits, USPS -----------------------------------------------------------------------------------------


def mat(pictures, labels, **changed):
    from scipy.io import savemat

    stream = io.BytesIO()
    arrays = {"X": np.stack(pictures, -1), "y": np.array(labels, np.uint8)[:, None]} | changed
    savemat(stream, {k: v for k, v in arrays.items() if v is not None}, do_compression=True)
    return stream.getvalue()


def test_svhn_label_ten_is_zero(tmp_path):
    write_tree(tmp_path, {"train_32x32.mat": mat(COLOUR[:3], [10, 1, 9]), "test_32x32.mat": mat(COLOUR[3:5], [2, 10])})
    check(load("svhn", tmp_path, verify=False), COLOUR[:3], [0, 1, 9], COLOUR[3:5], [2, 0])


@pytest.mark.parametrize("packed", [False, True])
def test_synthdigits(tmp_path, packed):
    files = {
        "synth_train_32x32.mat": mat(COLOUR[:3], [0, 1, 9]),
        "synth_test_32x32.mat": mat(COLOUR[3:5], [2, 0]),
        "synth_train_32x32_small.mat": b"not read",
    }
    write_zip(tmp_path / "SynthDigits.zip", files) if packed else write_tree(tmp_path, files)
    check(load("synthdigits", tmp_path), COLOUR[:3], [0, 1, 9], COLOUR[3:5], [2, 0])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "cannot be read as .mat"),
        (b"MATLAB 5.0 MAT-file" + bytes(50), "cannot be read as .mat"),
        (mat(COLOUR[:2], [1, 2])[:-300], "cannot be read as .mat"),
        (mat(COLOUR[:2], [1, 2], X=None), "need X"),
        (mat(COLOUR[:2], [1, 2], X=np.zeros((32, 32, 3, 2))), r"float64.*need X \[h, w, c, n\] uint8"),
        (mat(COLOUR[:2], [1, 2, 3]), "one label per sample"),
        (mat(COLOUR[:2], [1, 11]), r"label 11 is outside 0 \.\. 9"),
        (mat(COLOUR[:2], [1, 2], y=np.array([[1.5], [2.0]])), "labels"),
    ],
)
def test_damaged_mat_files_are_named(tmp_path, raw, message):
    write_tree(tmp_path, {"train_32x32.mat": raw, "test_32x32.mat": mat(COLOUR[3:5], [2, 10])})
    with pytest.raises(DataError, match=message) as caught:
        load("svhn", tmp_path, verify=False)
    assert "\n" not in str(caught.value)


def libsvm(values, labels):
    lines = [f"{y} {' '.join(f'{i}:{v:.4f}' for i, v in enumerate(x, 1))}" for x, y in zip(values, labels, strict=True)]
    return bz2.compress("\n".join(lines).encode())


def test_usps_libsvm_files(tmp_path):
    values = np.linspace(-1, 1, 256)
    files = {"usps.bz2": libsvm([values, -values], [7, 10]), "usps.t.bz2": libsvm([values], [1])}
    splits = load("usps", write_tree(tmp_path, files), verify=False)
    assert splits.train.y.tolist() == [6, 9]
    assert splits.test.y.tolist() == [0]
    assert splits.train.x[0].flatten().tolist() == ((values.round(4) + 1) / 2 * 255).astype(np.uint8).tolist()
    assert splits.train.input_shape == (1, 16, 16)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (libsvm([np.zeros(256)], [1])[:-20], r"usps\.bz2: cannot be read"),
        (bz2.compress(b"1 1:0.5\n2 257:1"), "line 2 is not 'label index:value"),
        (bz2.compress(b"1 1:0.5\n2 0:1"), "line 2 is not"),
        (bz2.compress(b"1 1:0.5\nx 1:1"), "line 2 is not"),
        (bz2.compress(b"1 1:nan"), "values outside -1 .. 1"),
        (bz2.compress(b"1 1:7"), "values outside -1 .. 1"),
        (bz2.compress(b"11 1:0.5"), r"label 10 is outside 0 \.\. 9"),
    ],
)
def test_damaged_usps_files_are_named(tmp_path, raw, message):
    write_tree(tmp_path, {"usps.bz2": raw, "usps.t.bz2": libsvm([np.zeros(256)], [1])})
    with pytest.raises(DataError, match=message):
        load("usps", tmp_path, verify=False)


# --- Tiny-ImageNet, MNIST-M, class folders ---------------------------------------------------------------------------


def tiny_files():
    files = {f"train/n0{c}/images/n0{c}_{i}.JPEG": encoded(pixels(10 * c + i, 64)) for c in (2, 1) for i in range(3)}
    files["train/n01/images/gray.JPEG"] = encoded(pixels(5, 64, 1))
    files["val/images/val_0.JPEG"] = encoded(pixels(90, 64))
    files["val/images/val_1.JPEG"] = encoded(pixels(91, 64))
    files["val/val_annotations.txt"] = b"val_0.JPEG\tn02\t0\t0\t1\t1\nval_1.JPEG\tn01\t0\t0\t1\t1\n"
    files["train/n01/n01_boxes.txt"] = b""
    files["test/images/test_0.JPEG"] = encoded(pixels(92, 64))
    return {**files, "words.txt": b"n01\tgoldfish, Carassius\nn02\tnewt\nn03\ttoad\n"}


@pytest.mark.parametrize("packed", [False, True])
def test_tiny_imagenet_tests_on_the_validation_images(tmp_path, packed):
    files = prefixed("tiny-imagenet-200", tiny_files())
    write_zip(tmp_path / "tiny-imagenet-200.zip", files) if packed else write_tree(tmp_path, files)
    splits = load("tiny-imagenet", tmp_path, verify=False)
    assert splits.train.classes == ("goldfish", "newt")
    assert torch.bincount(splits.train.y).tolist() == [4, 3]
    assert splits.test.y.tolist() == [1, 0]
    assert (splits.test.x[0].numpy() == pixels(90, 64).transpose(2, 0, 1)).all()
    seen = {int(y): set() for y in splits.train.y}
    for x, y in zip(splits.train.x, splits.train.y, strict=True):
        seen[int(y)].add(x.numpy().tobytes())
    assert pixels(20, 64).transpose(2, 0, 1).tobytes() in seen[1]
    assert np.repeat(pixels(5, 64, 1)[None], 3, 0).tobytes() in seen[0]


def test_tiny_imagenet_refuses_annotations_of_unknown_classes(tmp_path):
    write_tree(tmp_path, tiny_files() | {"val/val_annotations.txt": b"val_0.JPEG\tn02\nval_1.JPEG\tn77\n"})
    with pytest.raises(DataError, match=r"val_annotations\.txt: line 2 names class 'n77'"):
        load("tiny-imagenet", tmp_path)


def mnist_m_files():
    files = {f"mnist_m_train/{i:08d}.png": encoded(COLOUR[i]) for i in range(4)}
    files |= {f"mnist_m_test/{i:08d}.png": encoded(COLOUR[4 + i]) for i in range(2)}
    files["mnist_m_train_labels.txt"] = b"".join(b"%08d.png %d\n" % (i, y) for i, y in enumerate(TRAIN))
    files["mnist_m_test_labels.txt"] = b"".join(b"%08d.png %d\n" % (i, y) for i, y in enumerate(TEST))
    return files


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_m(tmp_path, packed):
    files = prefixed("mnist_m", mnist_m_files())
    write_tar(tmp_path / "mnist_m.tar.gz", files) if packed else write_tree(tmp_path, files)
    check(load("mnist-m", tmp_path), COLOUR[:4], TRAIN, COLOUR[4:6], TEST)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mnist_m_train/00000002.png": b"broken"}, r"00000002\.png: cannot be decoded as an image"),
        ({"mnist_m_train/00000002.png": None}, r"00000002\.png: no such file"),
        ({"mnist_m_test_labels.txt": b"00000000.png x"}, r"mnist_m_test_labels\.txt: line 1 is '00000000\.png x'"),
        ({"mnist_m_test_labels.txt": b"00000000.png 10"}, r"\(test\): label 10 is outside 0 \.\. 9"),
        ({"mnist_m_test_labels.txt": b"0.png 1\n\xff"}, r"mnist_m_test_labels\.txt: byte 8 \(0xff\) is not UTF-8"),
        ({"mnist_m_test_labels.txt": b"00000000.png 1\n00000000.png 2"}, "listed twice"),
    ],
)
def test_damaged_mnist_m_files_are_named(tmp_path, change, message):
    files = {n: r for n, r in (mnist_m_files() | change).items() if r is not None}
    with pytest.raises(DataError, match=message):
        load("mnist-m", write_tree(tmp_path, files))


def folders(parts):
    return {
        f"{part}{name}/{i}.png": encoded(pixels(100 * c + i))
        for part in parts
        for c, name in enumerate(("dog", "cat"))
        for i in range(5)
    }


@pytest.mark.parametrize("other", ["test", "val"])
@pytest.mark.parametrize("packed", [False, True])
def test_image_folder_with_its_own_parts(tmp_path, other, packed):
    files = folders(["train/"]) | {f"{other}/cat/9.jpg": encoded(pixels(7), "JPEG"), "train/cat/notes.txt": b"no"}
    path = write_zip(tmp_path / "set.zip", files) if packed else write_tree(tmp_path / "set", files)
    splits = load("image-folder", path, size=6)
    assert splits.train.classes == ("cat", "dog")
    assert splits.train.x.shape == (10, 3, 6, 6)
    assert torch.bincount(splits.train.y).tolist() == [5, 5]
    assert splits.test.y.tolist() == [0]


def test_image_folder_without_parts_holds_a_share_of_each_class_out(tmp_path):
    write_tree(tmp_path, folders([""]))
    splits = load("image-folder", tmp_path, size=8, channels=1)
    assert torch.bincount(splits.train.y).tolist() == [4, 4]
    assert torch.bincount(splits.test.y).tolist() == [1, 1]
    again = load("image-folder", tmp_path, size=8, channels=1)
    assert torch.equal(splits.train.x, again.train.x)
    assert splits.train.input_shape == (1, 8, 8)


def test_a_new_picture_is_noticed(tmp_path):
    write_tree(tmp_path, folders(["train/", "test/"]))
    assert len(load("image-folder", tmp_path).train) == 10
    write_tree(tmp_path, {"train/cat/new.png": encoded(pixels(77))})
    assert len(load("image-folder", tmp_path).train) == 11


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"readme.txt": b""}, "no pictures in class folders"),
        ({"a.png": encoded(pixels(0))}, "no pictures in class folders"),
        ({"train/a/1.png": encoded(pixels(0))}, "no pictures in class folders below val/"),
        ({"train/a/1.png": encoded(pixels(0)), "test/b/1.png": encoded(pixels(1))}, "class folder 'test/b' is none of"),
        (
            {"train/a/1.png": b"", "train/b/1.png": encoded(pixels(0)), "test/a/1.png": encoded(pixels(1))},
            r"train/a/1\.png: cannot be decoded",
        ),
    ],
)
def test_folders_that_are_no_set_are_refused(tmp_path, files, message):
    with pytest.raises(DataError, match=message):
        load("image-folder", write_tree(tmp_path, files))


# --- what all share --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mnist", "train-images-idx3-ubyte.gz.*LeCun"),
        ("emnist", "emnist-bymerge-train-images-idx3-ubyte.*gzip.zip.*NIST"),
        ("cifar10", "cifar-10-batches-bin/data_batch_1.bin, cifar-10-binary.tar.gz, cifar10.npz.*Krizhevsky"),
        ("cifar100", "cifar-100-binary/train.bin, cifar-100-binary.tar.gz.*Krizhevsky"),
        ("svhn", "train_32x32.mat.*Stanford"),
        ("usps", "usps.bz2.*LIBSVM"),
        ("synthdigits", "synth_train_32x32.mat.*Ganin"),
        ("mnist-m", "mnist_m_train_labels.txt.*Ganin"),
        ("tiny-imagenet", "tiny-imagenet-200.zip.*CS231n"),
        ("office-caltech10", "office_caltech_10/amazon.*FedBN"),
        ("domainnet", "clipart.*Boston"),
        ("imdb", "aclImdb/train/pos.*Stanford"),
    ],
)
def test_missing_files_are_named_with_their_place_and_publisher(tmp_path, monkeypatch, name, expected):
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match=rf"source {name}: no folder {tmp_path}/{name}; expected there one of.*{expected}"
    ):
        load(name)
    with pytest.raises(DataError, match=rf"source {name}: nothing usable in {tmp_path};.*scenario\.path"):
        load(name, tmp_path)


def test_without_a_path_the_data_folder_is_searched(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    write_tree(tmp_path / "mnist", idx_files())
    assert load("mnist").train.y.tolist() == TRAIN


@pytest.mark.parametrize(
    ("normalise", "mean", "std"),
    [("unit", 0.0, 255.0), ("half", 127.5, 127.5), ("published", 0.1307 * 255, 0.3081 * 255)],
)
def test_pixels_are_scaled_as_asked(tmp_path, normalise, mean, std):
    splits = load("mnist", write_tree(tmp_path, idx_files()), normalise=normalise)
    for part in (splits.train, splits.test):
        assert part.mean.tolist() == pytest.approx([mean])
        assert part.std.tolist() == pytest.approx([std])


def test_moments_that_nobody_printed_cannot_be_asked_for():
    with pytest.raises(ValidationError, match="no published mean is known for usps"):
        SOURCES.get("usps")(normalise="published")


def test_the_second_load_needs_no_parsing_and_gives_the_same(tmp_path, monkeypatch):
    write_tree(tmp_path, cifar10_files())
    first = load("cifar10", tmp_path)
    kind = SOURCES.get("cifar10")
    monkeypatch.setattr(kind, "parse", None)
    second = load("cifar10", tmp_path)
    for a, b in ((first.train, second.train), (first.test, second.test)):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert torch.equal(a.mean, b.mean)
        assert a.classes == b.classes


def test_offline_is_understood_by_all_and_changes_no_config():
    for name, kind in SOURCES:
        assert "offline" in kind.model_fields, name
    assert "offline" not in SOURCES.get("cifar10")(offline=True).model_dump()
    assert SOURCES.get("hf")(dataset="x", offline=True).model_dump()["offline"] is True
