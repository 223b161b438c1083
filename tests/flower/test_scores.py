"""Scores name the client that is unlike the others, over rounds, and nobody honest."""

import math

import pytest
import torch

from fedloom.core.tables import ClassTable
from fedloom.data.dataset import Dataset
from fedloom.flower.scores import OUTLYING, ClientScores, correct_share, directions
from fedloom.methods.contract.spec import Sent
from fedloom.nets import MODELS
from fedloom.nets.net import tree_of

SENDS = {"model": Sent(), "step": Sent(form="change"), "prototypes": Sent(per_client=True)}


def outliers(scores):
    return {client for client in scores.values if scores.deviation(client)[0] >= OUTLYING}


def test_deviations_are_means_over_rounds_of_robust_ones():
    """Others' cosines of 0.1 to 0.5: median 0.3, MAD 0.1; -0.5 is 0.8 below, over 1.4826 * 0.1 + 0.1."""
    scores = ClientScores()
    cosines = {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.5, 5: -0.5}
    for round_ in range(1, 4):
        scores.add("cosine", cosines)
        assert outliers(scores) == ({5} if round_ >= 3 else set())
    assert scores.deviation(5) == (pytest.approx(0.8 / 0.24826), "cosine")
    for _ in range(3):  # three good rounds halve the mean
        scores.add("cosine", cosines | {5: 0.3})
    assert scores.deviation(5)[0] == pytest.approx(0.4 / 0.24826)


def test_small_rounds_are_compared_with_earlier_ones():
    """One client a round: the sixth one's weights are wrong on the server's samples, from its third round on."""
    scores = ClientScores()
    for _ in range(3):
        for client in range(5):
            scores.add("test", {client: 0.9 + client / 100})
        scores.add("test", {5: 0.2})
    assert outliers(scores) == {5}


def test_a_false_claim_is_named_at_once_and_a_plausible_one_is_not():
    scores = ClientScores()
    scores.add("claim", {0: 0.58, 1: 0.6, 2: 0.62, 3: 0.65, 4: 1.0})
    assert outliers(scores) == {4}
    assert scores.sentence(4).endswith("it reports an accuracy of 100.0 %, others 61.0 %")
    two_kinds = ClientScores()  # half of the clients have not trained yet
    two_kinds.add("claim", {0: 0.0, 1: 0.1, 2: 0.1, 3: 0.0, 4: 1.0, 5: 0.9, 6: 1.0})
    assert not outliers(two_kinds)
    plausible = ClientScores()
    plausible.add("claim", {0: 0.9, 1: 0.93, 2: 0.96, 3: 0.97, 4: 1.0})
    assert not outliers(plausible)


def test_one_round_counts_as_ten_deviations_at_most():
    scores = ClientScores()
    for value in (50.0, 0.0, 0.0, 0.0):
        scores.add("length", {0: 0.0, 1: 0.0, 2: 0.0, 3: value})
    assert scores.deviation(3)[0] == 2.5


def cosine_of(scores, client):
    return scores.values[client]["cosine"]


def test_cosines_of_a_reversed_change():
    generator = torch.Generator().manual_seed(3)
    payload = {"model": {"w": torch.randn(40, 30, generator=generator)}}
    common, scores = torch.randn(40, 30, generator=generator), ClientScores()

    def upload(sign):
        noise = torch.randn(40, 30, generator=generator)
        return {"model": {"w": payload["model"]["w"] + sign * common + 0.5 * noise}}

    uploads = {client: upload(-1 if client == 2 else 1) for client in range(4)}
    scores.add_directions({k: directions(u, payload, SENDS) for k, u in uploads.items()}, refused=[])
    assert cosine_of(scores, 2) < -0.7
    honest = [cosine_of(scores, client) for client in (0, 1, 3)]
    assert min(honest) > 0.5  # although one of their three others points away
    # Alone in a round, it is compared with those before.
    scores.add_directions({2: directions(upload(-1), payload, SENDS)}, refused=[])
    assert cosine_of(scores, 2) < -0.7


def test_rows_point_where_they_moved():
    """A small step of a long row is lost in the row's own direction; reversed, it is opposite to the honest one."""
    held = torch.tensor([True, True, False])
    received = ClassTable(torch.tensor([[100.0, 0.0], [0.0, 100.0], [0.0, 0.0]]), held)
    step = torch.tensor([[1.0, 2.0], [-1.0, 1.0], [0.0, 0.0]])
    there, back = (
        directions({"prototypes": ClassTable(received.values + sign * step, held)}, {"prototypes": received}, SENDS)
        for sign in (1, -1)
    )
    assert float(there["prototypes"] @ back["prototypes"]) == pytest.approx(-1.0)


@pytest.mark.parametrize(("noise", "is_named"), [(0.0, True), (0.01, True), (0.3, False)])
def test_colluders_that_send_the_same_are_named_and_similar_clients_are_not(noise, is_named):
    """Honest changes share half of their length, so their cosines are about 0.5; those of the colluders are 1."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda: torch.randn(100_000, generator=generator)  # noqa: E731
    scores = ClientScores()
    for _ in range(3):
        common, shared = draw(), draw()
        changes = {client: common + draw() for client in range(8)}
        changes |= {client: common + shared + noise * draw() for client in (8, 9)}
        scores.add_directions({k: directions({"step": {"w": of}}, {}, SENDS) for k, of in changes.items()}, refused=[])
    assert outliers(scores) == ({8, 9} if is_named else set())
    assert not is_named or "its uploads repeat another client's" in scores.sentence(8)


def test_directions_are_those_of_the_whole_vectors():
    """Sums over 251 folds keep angles: of a vector of 100,000 numbers and half of itself plus half of another."""
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 100_000, generator=generator)
    folded = [directions({"step": {"w": of}}, {}, SENDS)["step"] for of in (one, 0.5 * one + 0.5 * other, other)]
    assert float(folded[0] @ folded[1]) == pytest.approx(math.sqrt(0.5), abs=0.15)
    assert float(folded[0] @ folded[2]) == pytest.approx(0.0, abs=0.2)
    table = ClassTable(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([True, False]))
    assert directions({"prototypes": table, "samples": 3}, {}, SENDS).keys() == {"prototypes"}


def test_the_share_of_the_servers_samples_that_an_upload_classifies():
    net = MODELS.get("mlp")(input_shape=(4,), num_classes=2)
    init = tree_of(net)
    data = Dataset(torch.randn(300, 4), torch.zeros(300, dtype=torch.int64), ("a", "b"))
    biased = {name: torch.zeros_like(tensor) for name, tensor in init.items()}
    last = [name for name in init if name.endswith("bias")][-1]
    biased[last] = torch.tensor([1.0, 0.0])
    assert correct_share(net, init, {"model": biased}, SENDS, data) == 1.0
    assert correct_share(net, init, {"model": {last: biased[last]}}, SENDS, data) is None  # not the whole net
    assert correct_share(net, init, {"step": biased}, SENDS, data) is None  # a change is no weights
    assert correct_share(net, init, {"model": biased}, SENDS, data.head(0)) is None
