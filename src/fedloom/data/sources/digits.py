"""Sets that need no files: scikit-learn's digits, FCUBE and synthetic(alpha, beta)."""

import gzip
from dataclasses import replace

import numpy as np
from pydantic import Field

from fedloom.data.dataset import checked
from fedloom.data.sources.cached import ParsedSamples, ParsedSplits, checked_splits
from fedloom.data.sources.files import package_folder
from fedloom.data.sources.source import Source, Splits, source

_DIMENSION, _CLASSES = 60, 10
_PARTS = 4
_Samples = tuple[np.ndarray, np.ndarray, np.ndarray]  # x, y, device


class DrawnSource(Source):
    """Base of sets that are drawn from a seed. Each domain is a client unless another partition is set."""

    model = "logistic"

    source_seed: int = Field(0, ge=0)

    def load(self) -> Splits:
        return replace(checked_splits(self.drawn(np.random.default_rng(self.source_seed))), domains_are_owners=True)

    def drawn(self, rng: np.random.Generator) -> ParsedSplits:
        raise TypeError(f"{type(self).__name__} defines no drawn()")


@source("fcube")
class FCube(DrawnSource):
    """FCUBE: points of the cube [-1, 1]^3 whose class is the sign of the first coordinate.

    NIID-Bench (Li et al., ICDE 2022, arXiv 2102.02079). Three planes cut the cube into eight parts. Each of four
    clients holds two of them that are symmetric about the centre, 500 points of either class: features differ, labels
    do not. The 1,000 test points are uniform in the cube; each belongs to the client that holds its part.

        scenario: {source: fcube, partition: natural}"""

    per_client: int = Field(1000, ge=2, description="Number of training points of each of the four clients.")
    test_points: int = Field(1000, ge=1, description="Number of test points, uniform in the cube.")

    def drawn(self, rng: np.random.Generator) -> ParsedSplits:
        part = np.repeat(np.arange(_PARTS), self.per_client)
        labels = np.tile(np.arange(self.per_client) % 2, _PARTS)
        signs = np.stack([np.ones(len(part)), np.where(part > 1, -1, 1), np.where(part % 2 == 1, -1, 1)], axis=1)
        points = rng.random((len(part), 3)) * signs * np.where(labels == 1, -1, 1)[:, None]
        test = 2 * rng.random((self.test_points, 3)) - 1
        opposite = test[:, 1:] * test[:, :1] < 0  # the second and the third coordinate against the first
        return ParsedSplits(
            "fcube",
            ParsedSamples(points.astype(np.float32), labels, part),
            ParsedSamples(test.astype(np.float32), (test[:, 0] <= 0).astype(np.int64), opposite @ np.array([2, 1])),
            ("0", "1"),
            tuple(f"part {number}" for number in range(_PARTS)),
        )


@source("synthetic")
class Synthetic(DrawnSource):
    """synthetic(alpha, beta): every device labels its inputs with a different softmax model.

    FedProx (Li et al., MLSys 2020, arXiv 1812.06127), after Shamir et al. 2014; LEAF has a set of the same name. There
    are 60 features and 10 classes. Of device k, y = argmax(W_k x + b_k), all entries of W_k and b_k are N(u_k, 1), and
    u_k is N(0, alpha). Inputs are N(v_k, S), S diagonal with S_jj = j^-1.2, entries of v_k are N(B_k, 1), and B_k is
    N(0, beta). Alpha and beta are standard deviations, as in the released code (at 0 and 1, variances are the same).
    Device k has 50 + floor(exp(g)) samples, g from N(4, 2^2). The last tenth of them, rounded up, is for tests.

        scenario: {source: synthetic, model_spread: 1, input_spread: 1, partition: natural}"""

    model_spread: float = Field(1.0, ge=0, description="How far the devices' models lie apart, the paper's alpha.")
    input_spread: float = Field(1.0, ge=0, description="How far the devices' inputs lie apart, the paper's beta.")
    same_model: bool = False
    devices: int = Field(30, ge=1, description="Number of devices.")

    def drawn(self, rng: np.random.Generator) -> ParsedSplits:
        sizes = 50 + np.floor(rng.lognormal(4, 2, self.devices)).astype(np.int64)
        deviations = np.arange(1, _DIMENSION + 1) ** -0.6  # roots of the variances j^-1.2
        shared = rng.normal(0, 1, (_DIMENSION + 1, _CLASSES))
        train: list[_Samples] = []
        test: list[_Samples] = []
        for device, size in enumerate(sizes.tolist()):
            model_mean, input_mean = rng.normal(0, self.model_spread), rng.normal(0, self.input_spread)
            weights = shared if self.same_model else rng.normal(model_mean, 1, (_DIMENSION + 1, _CLASSES))
            centre = np.zeros(_DIMENSION) if self.same_model else rng.normal(input_mean, 1, _DIMENSION)
            x = centre + deviations * rng.normal(0, 1, (size, _DIMENSION))
            y = (x @ weights[:-1] + weights[-1]).argmax(1)
            kept = int(0.9 * size)
            for part, rows in ((train, slice(None, kept)), (test, slice(kept, None))):
                part.append((x[rows].astype(np.float32), y[rows], np.full(len(y[rows]), device)))
        parts = [ParsedSamples(*map(np.concatenate, zip(*part, strict=True))) for part in (train, test)]
        names = tuple(f"device {device}" for device in range(self.devices))
        return ParsedSplits("synthetic", parts[0], parts[1], tuple(map(str, range(_CLASSES))), names)


_TEST_EVERY = 5


@source("digits")
class Digits(Source):
    """1,797 real handwritten digits of 8x8 pixels (UCI optical digits, as shipped with scikit-learn).

    There is no official split: every fifth image of each class, in the file's order, is a test image (355 images).
    Pixels 0 .. 16 are scaled by mean 4.9 and standard deviation 6."""

    model = "digits-cnn"

    def load(self) -> Splits:
        pixels, labels = _read_digits()
        rank_in_class = np.empty(len(labels), np.int64)
        for label in range(10):
            members = np.flatnonzero(labels == label)
            rank_in_class[members] = np.arange(len(members))
        is_test = rank_in_class % _TEST_EVERY == _TEST_EVERY - 1
        train, test = (
            checked(pixels[rows], labels[rows], origin="digits", classes=[*"0123456789"], mean=[4.9], std=[6.0])
            for rows in (~is_test, is_test)
        )
        return Splits(train, test)


def _read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Read pixels [1797, 8, 8] uint8 and labels [1797] from scikit-learn's file."""
    # importing scikit-learn's loaders would cost a second and a half at every start
    folder = package_folder("digits", "sklearn", "scikit-learn", "images")
    path = folder / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        with gzip.open(path, "rt") as stream:
            table = np.array([row.split(",") for row in stream.read().split()], dtype=np.float32)
        return table[:, :64].reshape(-1, 8, 8).astype(np.uint8), table[:, 64].astype(np.int64)
    from sklearn.datasets import load_digits  # the file has moved: use the slow public loader

    digits = load_digits()
    return digits.images.astype(np.uint8), digits.target.astype(np.int64)
