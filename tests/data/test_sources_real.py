"""Sources on real data: Debian's Fashion-MNIST, and what ../shared/data/unpack.py unpacks where that folder is."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.data import SOURCES

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SHARED / "unpack.py").is_file(), reason="needs the real data of ../shared/data"),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    names = ["cifar10", "cifar100", "mnist", "usps", "mnistm", "office_caltech10", "imdb"]
    words = [sys.executable, str(SHARED / "unpack.py"), "--out", str(folder), *names]
    subprocess.run(words, check=True, capture_output=True)
    return folder


def load(name, **keys):
    return SOURCES.get(name)(**keys).load()


def seconds_to_first_batch(name, **keys):
    """Median of three: the machine is shared."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        load(name, **keys).train.gather(torch.arange(64))
        taken.append(time.perf_counter() - start)
    return sorted(taken)[1]


@pytest.mark.parametrize(("name", "each"), [("cifar10", 5000), ("cifar100", 500)])
def test_cifar(real, name, each, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path))
    start, worked = time.perf_counter(), time.process_time()
    splits = load(name, path=real / f"{name}.npz")
    splits.train.gather(torch.arange(64))
    first, worked = time.perf_counter() - start, time.process_time() - worked
    assert torch.bincount(splits.train.y).tolist() == [each] * (50_000 // each)
    assert torch.bincount(splits.test.y).tolist() == [each // 5] * (50_000 // each)
    assert splits.train.classes == SOURCES.get(name).class_names
    pixels = splits.train.x.numpy() / np.float32(255)
    printed = SOURCES.get(name).published[0]
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(printed, abs=2e-3)
    again = seconds_to_first_batch(name, path=real / f"{name}.npz")
    print(f"{name}: first batch after {first:.2f} s ({worked:.2f} s of work) from .npz, {again:.3f} s from the cache")
    assert worked < 2.0  # work, not waiting: the machine may be busy
    assert again < 1.0


def test_mnist_from_idx_and_from_npz_are_the_same(real):
    idx, npz = load("mnist", path=SHARED / "mnist"), load("mnist", path=real / "mnist.npz")
    assert torch.equal(idx.train.x, npz.train.x)
    assert torch.equal(idx.test.y, npz.test.y)
    assert (len(idx.train), len(idx.test)) == (60_000, 10_000)
    assert idx.train.x.float().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)


def test_digit_domains(real):
    paths = {"mnist": SHARED / "mnist", "usps": real / "usps.npz", "mnist-m": real / "mnistm.npz"}
    parts = ["mnist", "usps", "mnist-m", "rendered", "blended"]
    splits = load("domains", parts=parts, paths=paths, per_domain=743, pool_splits=True)
    assert torch.bincount(splits.train.domain).tolist() == [743] * 5
    # Fed-CO2: 14,000 MNIST and 1,860 USPS test images; of MNIST-M only 744 + 200 a class are here.
    assert torch.bincount(splits.test.domain).tolist() == [14_000, 1_860, 1_888, 2_000, 360]
    assert splits.train.input_shape == (3, 28, 28)


def test_office_caltech(real):
    splits = load("office-caltech10", path=real / "office_caltech10.npz", size=64)
    whole = torch.bincount(splits.train.domain) + torch.bincount(splits.test.domain)
    assert whole.tolist() == [958, 1123, 157, 295]
    assert torch.bincount(splits.test.domain)[2] == 32  # DSLR, as in Fed-CO2
    features = load("office-caltech10", path=SHARED / "office_caltech10_surf.npz")
    assert features.train.input_shape == (800,)
    assert torch.equal(features.train.y, splits.train.y)


def test_imdb(real):
    splits = load("imdb", path=real)
    assert torch.bincount(splits.train.y).tolist() == torch.bincount(splits.test.y).tolist() == [12_500, 12_500]
    assert splits.train.x.shape == (25_000, 200)
    assert splits.train.x.max() == 9_999
    assert (splits.train.x == 1).float().mean() < 0.08  # unknown words
    assert 0.4 < splits.train.y[:1000].float().mean() < 0.6  # shuffled
    assert seconds_to_first_batch("imdb", path=real) < 1.0
