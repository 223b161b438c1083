"""Label shares from uploads: exact where theory says so, read off where they are told."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.label_inference import infer_labels, shares_of_scores
from fedloom.core.tables import ClassTable
from fedloom.methods.wrappers.noisy_uploads import NoisyUploads
from fedloom.methods.wrappers.privacy import Options
from support import FEDERATED, ROW_METHODS, Recording, Through, after, configured, handmade, sampled, world

LABELS = [0, 0, 0, 1, 1, 3, 3, 3]
SHARES = torch.tensor([3, 2, 0, 3]).double() / 8


def biased(classes=4, width=5):
    net = Through(torch.zeros(classes, width, dtype=torch.float64))
    net.head = torch.nn.Linear(width, classes, dtype=torch.float64)
    torch.nn.init.zeros_(net.head.weight)
    torch.nn.init.zeros_(net.head.bias)
    return net


def gradient_of(net, x, y):
    return torch.autograd.grad(cross_entropy(net(x), y), [net.head.weight, net.head.bias])


def test_one_step_of_logistic_regression_from_zero_tells_the_shares_if_a_class_is_missing():
    """Scores above the lowest are exact shares there: the missing class has the lowest, -1 / C."""
    net = biased()
    generator = torch.Generator().manual_seed(3)
    gradient = gradient_of(net, torch.randn(8, 5, dtype=torch.float64, generator=generator), torch.tensor(LABELS))
    received = {"model": {"head.weight": torch.zeros(4, 5), "head.bias": torch.zeros(4)}}
    upload = {"model": {"head.weight": -0.3 * gradient[0], "head.bias": -0.3 * gradient[1]}, "samples": 8}
    guess = infer_labels(upload, received, 4)
    assert guess.source == "last layer"
    assert torch.allclose(guess.shares, SHARES, rtol=0, atol=1e-12)


def test_what_tells_most_is_taken():
    held = torch.tensor([True, True, False, True])
    table = ClassTable(torch.ones(4, 2) * held[:, None], held)
    model = {"head.bias": torch.tensor([3.0, 1.0, 2.0, 0.0])}
    received = {"model": {"head.bias": torch.zeros(4)}}
    counts = torch.tensor([3, 2, 0, 3])
    full = {"model": model, "rows": table, "class_counts": counts}
    for leave, source, shares in (
        ((), "counts", [3 / 8, 2 / 8, 0, 3 / 8]),
        (("class_counts",), "last layer and mask", [3 / 4, 1 / 4, 0, 0]),
        (("class_counts", "rows"), "last layer", [3 / 6, 1 / 6, 2 / 6, 0]),
        (("class_counts", "model"), "mask", [1 / 3, 1 / 3, 0, 1 / 3]),
        (("class_counts", "model", "rows"), "nothing", [1 / 4] * 4),
    ):
        guess = infer_labels({key: value for key, value in full.items() if key not in leave}, received, 4)
        assert guess.source == source
        assert guess.shares.tolist() == pytest.approx(shares)


def test_a_mask_without_a_table_tells_the_classes_too():
    guess = infer_labels({"held": torch.tensor([True, False, False, True])}, {}, 4)
    assert (guess.source, guess.shares.tolist()) == ("mask", [0.5, 0, 0, 0.5])


def test_shares_in_an_upload_are_read_off_and_masks_of_numbers_are_masks():
    shares = torch.tensor([0.5, 0.0, 0.25, 0.25])
    guess = infer_labels({"class_shares": shares}, {}, 4)
    assert (guess.source, guess.shares.tolist()) == ("shares", shares.tolist())
    guess = infer_labels({"held": torch.tensor([1.0, 0.0, 0.0, 1.0])}, {}, 4)
    assert (guess.source, guess.shares.tolist()) == ("mask", [0.5, 0, 0, 0.5])
    assert infer_labels({"vector": torch.tensor([0.5, 0.0, 0.25, -0.25])}, {}, 4).source == "nothing"


def test_a_change_is_not_taken_for_weights():
    upload, received = ({"model": {"head.bias": torch.tensor(bias)}} for bias in ([3.0, 1.0], [0.0, 5.0]))
    assert infer_labels(upload, received, 2, changes={"model"}).shares.tolist() == [1, 0]
    assert infer_labels(received, upload, 2).shares.tolist() == [0, 1]


def test_what_dp_leaves_of_an_upload_tells_nothing():
    toy = after(world(configured("fedsc+dp"), [LABELS, [0, 1]], engine=Recording), 1)
    uploads = {done.client: done.upload for done in toy.federation.engine.done}
    server = toy.federation.server_context()
    view = NoisyUploads(Options(), toy.method.spec.sends, uploads, toy.federation.server, server, {0, 1}, 2)
    received = {"model": {name: torch.zeros_like(value) for name, value in toy.task.init.items()}}
    assert infer_labels(view[0], received, 4).source == "nothing"


@pytest.mark.parametrize("name", sampled([name for name in FEDERATED if name in ROW_METHODS]))
def test_no_upload_breaks_it(name):
    toy = world(handmade(name), [[0, 1, 2, 0], [1, 3, 3, 2]])
    job = toy.job(0)
    sent = toy.worker.run(job).upload
    (upload,) = toy.method.unpack(toy.federation.server, {0: sent}, toy.federation.server_context).values()
    guess = infer_labels(upload, job.payload, 4)
    assert guess.shares.shape == (4,)
    assert float(guess.shares.sum()) == pytest.approx(1)
    if guess.source == "counts":
        assert guess.shares.tolist() == [0.5, 0.25, 0.25, 0]


def test_equal_scores_are_equal_shares():
    assert shares_of_scores(torch.ones(4)).tolist() == [0.25] * 4
    assert shares_of_scores(torch.tensor([float("nan")] * 2)).tolist() == [0.5, 0.5]
