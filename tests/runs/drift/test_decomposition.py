"""The parts of drift: what is 0, what adds up, and that nothing of the run changes."""

import math

import pytest
import torch
from torch import nn

from fedloom.methods import METHODS
from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.nets.net import Net
from fedloom.runs.drift.decomposition import Decomposition, DriftObserver, _Parts
from support import CLASSES, WIDTH, Tiny, TinyBN, TinyDropout, alike, configured, handmade, mixed, sampled, world

LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1, 3]]
PARTS = ("local", "sampling", "server")
# Clients that train in phases of their own, servers that move weights by themselves, no global model.
SPECIAL = ("fedadam", "fedbabu", "fedproto", "fednova", "scaffold")
ONE_VIEW = [name for name in METHODS.names() if configured(name).spec.views == 1]


class InDouble(Net):
    """A net that computes in float64, where rounding is far below any drift."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 6, dtype=torch.float64)
        self.head = nn.Linear(6, CLASSES, dtype=torch.float64)

    def features(self, x):
        return self.fc(x.double()).relu()


def measured(method, labels=LABELS, rounds=1, every=1, **keys):
    """A world whose rounds are observed, with the observer and what it saw in the last round."""
    toy = world(method, labels, **keys)
    observer = DriftObserver(Decomposition(toy.worker, every))
    toy.federation.observer = observer
    toy.reports = [toy.federation.step() for _ in range(rounds)]
    return toy, observer, whole(observer.latest)


def whole(drift):
    """The figures of the whole round by name."""
    return {v.name: v.value for v in drift.values if v.client is None}


def of_clients(drift, name):
    return {v.client: v.value for v in drift.values if v.name == name}


# -- zeros ---------------------------------------------------------------------------------------------------------
def test_one_full_batch_step_has_no_local_and_no_sampling_drift():
    _, _, figures = measured(configured("fedavg"), net=InDouble, batch_size=64)
    assert figures["global_step"] > 0.01
    assert figures["local_drift"] < 1e-12 * figures["global_step"]
    assert figures["sampling_drift"] == 0
    assert figures["server_drift"] < 1e-12 * figures["global_step"]


def test_in_float32_what_remains_of_it_is_rounding():
    _, _, figures = measured(configured("fedavg"), batch_size=64)
    assert figures["drift"] < 1e-4 * figures["global_step"]


def test_more_steps_give_local_drift_and_fewer_clients_give_sampling_drift():
    _, _, figures = measured(configured("fedavg"), net=InDouble, batch_size=2)
    assert figures["local_drift"] > 1e-4 * figures["global_step"]
    assert figures["sampling_drift"] == 0
    _, _, figures = measured(configured("fedavg"), net=InDouble, batch_size=64, participation=0.5)
    assert figures["local_drift"] < 1e-12 * figures["global_step"]
    assert figures["sampling_drift"] > 0.1 * figures["global_step"]
    assert figures["sampling_share"] == pytest.approx(1.0)


@pytest.mark.parametrize("net", [TinyDropout, TinyBN])
def test_one_client_has_no_drift(net):
    """Its own training is the centralised one: the same batches, the same dropped units."""
    optimizer = OptimizerSpec(name="sgd", lr=0.1, momentum=0.9)
    _, observer, figures = measured(
        configured("fedavg"), [[0, 1, 2, 0, 1]], net=net, batch_size=2, epochs=2, optimizer=optimizer
    )
    assert figures["global_step"] > 0.01
    assert [figures[name] for name in ("drift", "local_drift", "sampling_drift", "server_drift")] == [0, 0, 0, 0]
    assert all(figures[f"{part}_share"] is None for part in PARTS)
    assert figures["diversity"] == pytest.approx(1.0)
    assert of_clients(observer.latest, "distance_to_mean") == {0: 0}


# -- sums ----------------------------------------------------------------------------------------------------------
def test_parts_of_updates_computed_by_hand():
    """u_0 = (1, 0), u_1 = (0, 2), u_2 = (3, 0) with 1, 1 and 2 samples; clients 0 and 1 take part; c = (1, 1)."""
    parts = _Parts({0, 1}, torch.tensor([1.0, 1.0], dtype=torch.float64))
    for client, samples, update in [(0, 1, [1.0, 0.0]), (1, 1, [0.0, 2.0]), (2, 2, [3.0, 0.0])]:
        parts.add(client, samples, torch.tensor(update, dtype=torch.float64))
    # all: (7, 2) / 4; participants: (1, 2) / 2; the model moved by (2, 1), so the drift is (1, 0)
    figures = {v.name: v.value for v in parts.figures(torch.tensor([2.0, 1.0], dtype=torch.float64), 1.0)}
    assert figures["drift"] == 1
    assert figures["local_drift"] == pytest.approx(math.hypot(0.75, 0.5))
    assert figures["sampling_drift"] == pytest.approx(math.hypot(1.25, 0.5))
    assert figures["server_drift"] == pytest.approx(1.5)
    shares = [figures[f"{part}_share"] for part in PARTS]
    assert shares == pytest.approx([0.75, -1.25, 1.5])


@pytest.mark.parametrize("name", sampled(ONE_VIEW, *SPECIAL))
def test_parts_add_up_and_nothing_of_the_run_changes(name):
    """The shares of what has a global model sum to 1; the others say that they have none."""
    keys = {"participation": 0.5, "batch_size": 2}
    toy, observer, figures = measured(handmade(name), rounds=2, **keys)
    plain = world(handmade(name), LABELS, **keys)
    plain.reports = [plain.federation.step() for _ in range(2)]
    assert alike(plain, toy, "serial")
    if "drift" in figures:
        assert sum(figures[f"{part}_share"] for part in PARTS) == pytest.approx(1.0, abs=1e-9)
        assert figures["drift"] <= sum(figures[f"{part}_drift"] for part in PARTS) + 1e-9
    else:
        assert any(note.endswith(": no decomposition") for note in observer.latest.notes)


def test_the_server_part_is_what_the_server_adds():
    """FedAvg's is rounding; FedAdam steps by a rule of its own."""
    _, _, plain = measured(configured("fedavg"), net=InDouble)
    _, _, adam = measured(configured("fedadam"), net=InDouble)
    assert plain["server_drift"] < 1e-12
    assert adam["server_drift"] > 0.01
    assert adam["local_drift"] == plain["local_drift"]


def test_a_decomposition_comes_every_so_many_rounds():
    _, observer, first = measured(configured("fedavg"), every=2)
    assert "drift" in first
    _, observer, second = measured(configured("fedavg"), every=2, rounds=2)
    assert "drift" not in second
    assert "diversity" in second
    assert observer.latest.notes == []


def test_clients_with_several_architectures_have_no_decomposition():
    federation = mixed(handmade("fedproto"), [Tiny(), TinyBN()], LABELS)
    observer = federation.observer = DriftObserver(Decomposition(federation.engine.worker, 1))
    federation.step()
    assert observer.latest.notes[-1] == "clients have several architectures: no decomposition"


def test_noise_on_uploads_is_the_server_part():
    """With full participation, and far above local drift."""
    _, _, figures = measured(configured("fedavg+dp"))
    assert figures["server_share"] > 0.9


def test_a_method_without_a_round_for_clients_that_were_not_drawn_has_no_decomposition():
    method = configured("fedavg")
    plain = method.down

    def down(server, client, ctx):
        ctx.drawn.index(client)  # a ValueError for whoever was not drawn
        return plain(server, client, ctx)

    method.down = down
    toy, observer, figures = measured(method, participation=0.5)
    assert toy.federation.round == 1
    assert figures["diversity"] >= 1
    assert [note for note in observer.latest.notes if "(down)" in note and "failed in round 1" in note]
