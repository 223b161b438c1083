"""Sets of several domains, and the two that are made without any download."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedloom.core.errors import DataError
from fedloom.data import SOURCES
from fedloom.data.sources.source import load_splits
from source_files import encoded, pixels, prefixed, write_tree, write_zip

OFFICE = ("amazon", "caltech", "dslr", "webcam")
DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def load(name, **keys):
    return SOURCES.get(name)(**keys).load()


def domain_files(domains, classes, each=5, suffix="png"):
    return {
        f"{domain}/{name}/{i}.{suffix}": encoded(pixels(1000 * d + 100 * c + i))
        for d, domain in enumerate(domains)
        for c, name in enumerate(classes)
        for i in range(each)
    }


# --- Office-Caltech10 ------------------------------------------------------------------------------------------------

OFFICE_CLASSES = SOURCES.get("office-caltech10").class_names


@pytest.mark.parametrize("layout", ["folder", "below", "archive"])
def test_office_caltech_from_folders(tmp_path, layout):
    files = domain_files(OFFICE, OFFICE_CLASSES)
    if layout == "archive":
        write_zip(tmp_path / "office_caltech_10_dataset.zip", prefixed("office_caltech_10", files))
    else:
        write_tree(tmp_path, files if layout == "folder" else prefixed("office_caltech_10", files))
    splits = load("office-caltech10", path=tmp_path, size=8)
    assert splits.train.domains == splits.test.domains == OFFICE
    assert torch.bincount(splits.train.domain).tolist() == [40] * 4
    assert torch.bincount(splits.test.domain).tolist() == [10] * 4
    assert splits.train.domain.dtype == torch.int64
    for part in (splits.train, splits.test):  # every picture lies with its own domain and class
        for x, y, d in zip(part.x, part.y, part.domain, strict=True):
            expected = {pixels(1000 * int(d) + 100 * int(y) + i).transpose(2, 0, 1).tobytes() for i in range(5)}
            assert x.numpy().tobytes() in expected
    assert splits.train.gather(torch.tensor([0])).max() <= 1  # pixels in [0, 1], as in the paper


def test_per_domain_takes_a_prefix_of_each(tmp_path):
    write_tree(tmp_path, domain_files(OFFICE, OFFICE_CLASSES))
    whole = load("office-caltech10", path=tmp_path, size=8)
    part = load("office-caltech10", path=tmp_path, size=8, per_domain=7)
    assert torch.bincount(part.train.domain).tolist() == [7] * 4
    for d in range(4):
        assert torch.equal(part.train.x[part.train.domain == d], whole.train.x[whole.train.domain == d][:7])
    assert torch.equal(part.test.x, whole.test.x)
    with pytest.raises(DataError, match="per_domain = 41: domain amazon has 40 training samples"):
        load("office-caltech10", path=tmp_path, size=8, per_domain=41)


def test_groups_by_file_names_stay_within_a_domain(tmp_path):
    files = domain_files(OFFICE, OFFICE_CLASSES)
    write_tree(tmp_path, files)
    splits = load("office-caltech10", path=tmp_path, size=8, group={"pattern": r"^(\d)\.png"})
    for part in (splits.train, splits.test):
        pairs = {*zip(part.group.tolist(), part.domain.tolist(), strict=True)}
        assert len(pairs) == len({group for group, _ in pairs})
        for x, of in zip(part.x, part.group % 5, strict=True):
            names = {pixels(k * 100 + int(of)).transpose(2, 0, 1).tobytes() for k in range(40)}
            assert x.numpy().tobytes() in names
    assert not {*splits.train.group.tolist()} & {*splits.test.group.tolist()}
    for domain in OFFICE:
        files[f"{domain}_train.txt"] = f"{domain}/mug/1.png 8\n{domain}/bike/0.png 1\n".encode()
        files[f"{domain}_test.txt"] = f"{domain}/mug/2.png 8\n{domain}/bike/1.png 1\n".encode()
    write_tree(tmp_path, files)
    with pytest.raises(DataError, match="4 of 8 groups of the test set are in the training set too"):
        load_splits(SOURCES.get("office-caltech10")(path=tmp_path, size=8, group={"pattern": r"^(\d)\.png"}))


def test_lists_decide_parts_and_order(tmp_path):
    files = domain_files(OFFICE, OFFICE_CLASSES, each=2)
    for domain in OFFICE:
        files[f"{domain}_train.txt"] = f"{domain}/mug/1.png 8\n{domain}/bike/0.png 1\n".encode()
        files[f"{domain}_test.txt"] = f"{domain}/mug/0.png 8\n{domain}/unknown/0.png 3\n".encode()
    splits = load("office-caltech10", path=write_tree(tmp_path, files), size=8)
    assert splits.train.y.tolist() == [8, 1] * 4
    assert splits.test.y.tolist() == [8] * 4
    assert (splits.train.x[0].numpy() == pixels(801).transpose(2, 0, 1)).all()


def test_office_caltech_from_npz_pixels_and_features(tmp_path):
    def arrays(shape):
        x = np.random.default_rng(0).integers(0, 256, (20, *shape)).astype(np.uint8)
        return {f"{key}_{d}": value for d in OFFICE for key, value in (("x", x), ("y", np.arange(20) % 10))}

    names = [name.replace("_", "") for name in OFFICE_CLASSES]
    np.savez(tmp_path / "a.npz", **arrays((6, 6, 3)), classes=names)
    splits = load("office-caltech10", path=tmp_path / "a.npz", size=6)
    assert splits.train.x.shape == (64, 3, 6, 6)
    assert torch.bincount(splits.test.domain).tolist() == [4] * 4
    np.savez(tmp_path / "b.npz", **arrays((7,)))
    assert load("office-caltech10", path=tmp_path / "b.npz").train.x.shape == (64, 7)
    np.savez(tmp_path / "c.npz", **arrays((7,)), classes=list("abcdefghij"))
    with pytest.raises(DataError, match="its classes are a, b"):
        load("office-caltech10", path=tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", **arrays((7,)) | {"y_dslr": np.zeros(3, int)})
    with pytest.raises(DataError, match=r"y_dslr has shape \(3,\); need one label for each of 20"):
        load("office-caltech10", path=tmp_path / "d.npz")


# --- DomainNet -------------------------------------------------------------------------------------------------------

TOP_TEN = SOURCES.get("domainnet").class_names


def domainnet_files():
    """The published layout: 345 classes, of which the ten of the papers count, and two lists a domain."""
    classes = ("aardvark", "bird", "zebra")
    files = domain_files(DOMAINNET, classes, each=3, suffix="jpg")
    for domain in DOMAINNET:
        for part, numbers in (("train", (2, 0)), ("test", (1,))):
            lines = [f"{domain}/{name}/{i}.jpg {c}" for c, name in enumerate(classes) for i in numbers]
            files[f"{domain}_{part}.txt"] = "\n".join(lines).encode()
    return files


def test_domainnet_follows_the_published_lists(tmp_path):
    splits = load("domainnet", path=write_tree(tmp_path, domainnet_files()), size=8)
    assert splits.train.classes == TOP_TEN
    assert splits.train.y.tolist() == [0, 0, 9, 9] * 6
    assert splits.train.domain.tolist() == [d for d in range(6) for _ in range(4)]
    assert (splits.train.x[0].numpy() == pixels(102).transpose(2, 0, 1)).all()  # clipart, bird, 2.jpg comes first
    assert splits.test.y.tolist() == [0, 9] * 6


def test_domainnet_without_lists_splits_by_itself(tmp_path):
    files = domain_files(DOMAINNET, TOP_TEN)
    splits = load("domainnet", path=write_tree(tmp_path, files), size=8, per_domain=3)
    assert torch.bincount(splits.train.domain).tolist() == [3] * 6
    assert torch.bincount(splits.test.domain).tolist() == [10] * 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"real_train.txt": b"bird/0.jpg 1"}, r"real_train\.txt: line 1 is 'bird/0\.jpg 1'; need 'domain/class/file"),
        ({"real_train.txt": b"real/aardvark/0.jpg 0"}, r"real_train\.txt: lists no picture of bird"),
        ({"real_train.txt": b"real/bird/7.jpg 1"}, r"real/bird/7\.jpg: no such file"),
        ({"real_train.txt": b"real/bird/1.jpg 1"}, "listed twice"),
        ({"sketch/zebra/1.jpg": b"broken"}, r"sketch/zebra/1\.jpg: cannot be decoded as an image"),
    ],
)
def test_damaged_domainnet_files_are_named(tmp_path, change, message):
    write_tree(tmp_path, domainnet_files() | change)
    with pytest.raises(DataError, match=message):
        load("domainnet", path=tmp_path, size=8)


@pytest.mark.parametrize("does", [lambda source: source.files(), lambda source: source.load()])
def test_domains_that_are_not_there_are_named(tmp_path, does):
    files = domain_files(DOMAINNET, TOP_TEN)
    kept = {name: raw for name, raw in files.items() if not name.startswith(("real/", "sketch/"))}
    source = SOURCES.get("domainnet")(path=write_tree(tmp_path, kept), size=8)
    with pytest.raises(DataError, match=r"no real/ and no sketch/; published by"):
        does(source)


# --- several sources -------------------------------------------------------------------------------------------------


def npz(path, size=6, channels=1, each=10, classes=None, seed=0):
    rng = np.random.default_rng(seed)
    shape = (each * 10, size, size) if channels == 1 else (each * 10, size, size, channels)
    arrays = {"x_train": rng.integers(0, 256, shape).astype(np.uint8), "y_train": np.arange(each * 10) % 10}
    arrays |= {"x_test": arrays["x_train"][:20], "y_test": arrays["y_train"][:20]}
    np.savez(path, **arrays, **({} if classes is None else {"classes": classes}))
    return path


@pytest.fixture
def two(tmp_path):
    """Gray 6x6 and colour 9x9."""
    return {"usps": npz(tmp_path / "u.npz"), "mnist-m": npz(tmp_path / "m.npz", 9, 3, seed=1)}


def test_domains_of_unlike_shape_are_brought_to_one(two):
    splits = load("domains", parts=["usps", "mnist-m"], paths=two, size=6)
    assert splits.train.domains == ("usps", "mnist-m")
    assert splits.train.x.shape == (200, 3, 6, 6)
    assert torch.bincount(splits.train.domain).tolist() == [100, 100]
    assert torch.bincount(splits.test.domain).tolist() == [20, 20]
    gray = splits.train.x[splits.train.domain == 0]
    assert torch.equal(gray[:, 0], gray[:, 2])  # replicated
    stored = SOURCES.get("usps")(path=two["usps"]).load().train
    for x, y in zip(gray, splits.train.y[splits.train.domain == 0], strict=True):
        assert int(y) in {int(c) for c in stored.y[(stored.x[:, 0] == x[0]).flatten(1).all(1)]}
    assert splits.train.mean.tolist() == splits.train.std.tolist() == [127.5] * 3


def test_a_prefix_is_the_same_whatever_the_other_domains(two):
    one = load("domains", parts=["mnist-m"], paths={"mnist-m": two["mnist-m"]}, size=6, per_domain=8)
    both = load("domains", parts=["usps", "mnist-m"], paths=two, size=6, per_domain=8)
    assert torch.equal(both.train.x[both.train.domain == 1], one.train.x)
    more = load("domains", parts=["usps", "mnist-m"], paths=two, size=6, per_domain=16)
    assert torch.equal(more.train.x[more.train.domain == 1][:8], one.train.x)


def test_official_tests_are_pooled_only_when_asked(two):
    splits = load("domains", parts=["usps", "mnist-m"], paths=two, size=6, pool_splits=True, per_domain=50)
    assert torch.bincount(splits.train.domain).tolist() == [50, 50]
    assert torch.bincount(splits.test.domain).tolist() == [24, 24]  # 20 % of 120


def test_one_source_may_be_several_domains(tmp_path):
    parts = [
        {"name": site, "source": "npz", "path": str(npz(tmp_path / f"{site}.npz", seed=seed))}
        for seed, site in enumerate(("north", "south"))
    ]
    splits = load("domains", parts=parts, size=6, channels=1)
    assert splits.train.domains == ("north", "south")
    assert splits.train.input_shape == (1, 6, 6)


@pytest.mark.parametrize("pool", [False, True])
def test_groups_of_parts_stay_whole_and_apart(tmp_path, pool):
    names = [
        f"{domain}/{label}/p{person}_{k}.png" for domain in "ab" for label in "xy" for person in range(6) for k in "12"
    ]
    write_tree(tmp_path, {name: encoded(pixels(row)) for row, name in enumerate(names)})
    parts = [{"name": domain, "source": "image-folder", "path": str(tmp_path / domain), "size": 8} for domain in "ab"]
    keys = {"parts": parts, "size": 8, "pool_splits": pool, "group": {"pattern": r"(p\d+)_"}}
    splits = load("domains", **keys)
    train, test = (set(part.group.tolist()) for part in (splits.train, splits.test))
    assert (len(train | test), train & test) == (12, set())  # six persons a domain, of both classes
    with pytest.raises(DataError, match="part digits has no groups, and others have"):
        load("domains", **{**keys, "parts": [*parts, "digits"]})


def test_classes_must_agree(two, tmp_path):
    other = {"name": "letters", "source": "npz", "path": str(npz(tmp_path / "l.npz", classes=list("abcdefghij")))}
    with pytest.raises(DataError, match=r"letters has classes 10 \(a, b, c, \.\.\.\), usps has 10 \(0, 1, 2"):
        load("domains", parts=["usps", other], paths={"usps": two["usps"]})


def test_all_missing_parts_are_named_at_once(two, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "nothing"))
    parts = ["mnist", "usps", {"name": "street", "source": "svhn"}, "synthdigits"]
    with pytest.raises(DataError) as refused:
        load("domains", parts=parts, paths={"usps": two["usps"], "street": tmp_path / "street"})
    told = str(refused.value)
    assert "usps" not in told
    for name, place, file in (
        ("mnist", "nothing/mnist", "mnist.npz"),
        ("svhn", "street", "train_32x32.mat"),
        ("synthdigits", "nothing/synthdigits", "SynthDigits.zip"),
    ):
        assert f"source {name}: no folder {tmp_path / place}; expected there one of" in told
        assert file in told
    assert told.count("published by") == 3
    assert told.endswith("paths of parts belong in scenario.paths, by name")
    assert "\n" not in told


def test_parts_must_be_images(tmp_path):
    np.savez(tmp_path / "f.npz", x_train=np.ones((4, 3)), y_train=[0, 1, 0, 1], x_test=np.ones((2, 3)), y_test=[0, 1])
    with pytest.raises(DataError, match=r"npz holds torch\.float32 of shape \(4, 3\); need uint8 images"):
        load("domains", parts=["npz"], paths={"npz": tmp_path / "f.npz"})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"parts": []}, "at least 1 item"),
        ({"parts": ["usp"]}, "unknown source 'usp': did you mean 'usps'"),
        ({"parts": ["usps", "usps"]}, "two parts are called 'usps'"),
        ({"parts": ["usps"], "paths": {"mnist": "x"}}, "paths names 'mnist', which is none of the parts usps"),
        ({"parts": [{"source": "usps", "limt": 3}]}, "key 'limt' of a part = 3"),
        ({"parts": ["digits"], "paths": {"digits": "x"}}, "key 'path' of a part"),
    ],
)
def test_parts_that_cannot_be_are_refused_before_loading(keys, message):
    with pytest.raises(ValidationError, match=message):
        SOURCES.get("domains")(**keys)


# --- rendered and blended --------------------------------------------------------------------------------------------


def test_rendered_digits_are_the_same_every_time(monkeypatch, tmp_path):
    keys = {"per_class": 6, "test_per_class": 2}
    first = load("rendered", **keys)
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path))
    second = load("rendered", **keys)
    assert torch.equal(first.train.x, second.train.x)
    assert torch.bincount(first.train.y).tolist() == [6] * 10
    assert torch.bincount(first.test.y).tolist() == [2] * 10
    assert first.train.x.shape == (60, 3, 28, 28)
    assert not torch.equal(first.train.x[:20], first.test.x)
    assert len({x.numpy().tobytes() for x in first.train.x}) == 60
    assert not torch.equal(first.train.x, load("rendered", **keys, source_seed=1).train.x)


def test_rendered_digits_show_two_colours_and_a_digit():
    for x in load("rendered", per_class=10, test_per_class=1).train.x.numpy():
        corner = x[:, 0, 0]
        ink = (np.abs(x.astype(int) - corner[:, None, None]).sum(0) > 60).mean()
        assert 0.02 < ink < 0.6


def test_blended_digits_are_the_same_every_time(monkeypatch, tmp_path):
    first = load("blended")
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path))
    assert torch.equal(first.train.x, load("blended").train.x)
    plain = load("digits")
    assert torch.equal(first.train.y, plain.train.y)
    assert torch.equal(first.test.y, plain.test.y)
    assert first.train.x.shape == (1442, 3, 28, 28)
    assert len(load("blended", copies=2, size=8).train) == 2884


def test_blended_mnist(tmp_path):
    path = npz(tmp_path / "mnist.npz", 28)
    splits = load("blended", digits="mnist", path=path)
    assert splits.train.x.shape == (100, 3, 28, 28)
    assert splits.train.classes == tuple("0123456789")


def test_blended_is_photograph_minus_digit():
    """Where a digit is black its photograph shows unchanged: some patch of a photograph, up to the digit's ink."""
    from fedloom.data.sources.domains import _photograph_paths, _read_photograph
    from fedloom.data.sources.pixels import resized

    splits = load("blended")
    digit = resized((load("digits").train.x[:1].numpy() * 255.0 / 16).astype(np.uint8), 28, 1)[0, 0]
    ground = digit == 0
    image = splits.train.x[0].numpy()
    windows = [
        np.lib.stride_tricks.sliding_window_view(_read_photograph(path)[0], (28, 28)) for path in _photograph_paths()
    ]
    assert any((window[..., ground] == image[0][ground]).all(-1).any() for window in windows)
