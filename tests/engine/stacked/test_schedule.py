"""The steps of a stack: whose they are, on which samples."""

import torch

from fedloom.data.augment import Augmentation
from fedloom.engine.stacked.training import Schedule
from fedloom.methods.contract.phases import Train
from support import configured, world


def schedule(labels, *, epochs=1, measured=False, batch_size=3):
    toy = world(configured("fedavg"), labels, batch_size=batch_size)
    clients = [toy.worker.begin(toy.federation.job(client, 1, measured=measured)) for client in range(len(labels))]
    clients.sort(key=lambda client: -len(client.job.indices))
    phase = Train(clients[0].phases[0].loss, epochs=epochs)
    return Schedule(toy.worker, phase, clients), clients


def spans(made):
    """Number and clients of every step."""
    return [(step.number, step.active) for step in made]


def test_clients_of_one_size_take_all_steps_together():
    made, _ = schedule([[0, 1, 2, 0, 1, 2, 0]] * 3, epochs=2)
    assert spans(made) == [(number, 3) for number in range(6)]
    assert made.steps == [6, 6, 6]
    assert made.samples == [14, 14, 14]


def test_clients_of_several_sizes_take_step_after_step_and_leave():
    made, _ = schedule([[0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 0]])
    assert spans(made) == [(0, 2), (1, 2), (2, 1)]
    assert [[len(own) for own in step.samples] for step in made] == [[3, 3], [3, 1], [1]]
    assert (made.steps, made.samples) == ([3, 2], [7, 4])


def test_every_epoch_has_all_samples_once_in_an_order_of_its_own():
    made, clients = schedule([[0, 1, 2, 0, 1, 2, 0]] * 2, epochs=2)
    order = [step.samples[1] for step in made]
    first, second = torch.cat(order[:3]), torch.cat(order[3:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == sorted(clients[1].job.indices.tolist())
    assert first.tolist() != second.tolist()


def test_the_order_is_that_of_the_clients_own_stream():
    toy = world(configured("fedavg"), [[0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 0, 3]], batch_size=3)
    alone = [toy.worker.begin(toy.federation.job(client, 1)) for client in range(2)]
    expected = [toy.worker.sampler.epoch_order(client.job, client.draws) for client in alone]
    made, _ = schedule([[0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 0, 3]])
    steps = list(made)
    assert torch.equal(torch.cat([step.samples[0] for step in steps]), expected[0])
    assert torch.equal(torch.cat([step.samples[1] for step in steps if step.active == 2]), expected[1])


def test_the_last_epoch_is_each_clients_own():
    made, _ = schedule([[0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 0]], epochs=2)
    assert [step.last_epoch for step in made] == [
        [False] * 2,
        [False] * 2,
        [False, True],
        [True, True],
        [True],
        [True],
    ]


def test_the_last_step_is_measured_and_a_first_one_is_not():
    made, _ = schedule([[0, 1, 2, 0, 1, 2, 0]] * 2, epochs=2, measured=True)
    assert [list(step.measured) for step in made] == [[]] * 5 + [[True, True]]
    single, _ = schedule([[0, 1]] * 2, measured=True)
    assert [list(step.measured) for step in single] == [[]]
    several, _ = schedule([[0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 0]], measured=True)
    assert [list(step.measured) for step in several] == [[], [False, True], [True]]
    without, _ = schedule([[0, 1, 2, 0, 1, 2, 0]] * 2, epochs=2)
    assert not any(step.measured for step in without)


def test_many_steps_cover_all_samples():
    made, _ = schedule([[0, 1] * 20] * 2, batch_size=2)
    assert spans(made) == [(number, 2) for number in range(20)]
    order = torch.cat([step.samples[0] for step in made])
    assert sorted(order.tolist()) == list(range(40))


def test_steps_say_where_an_epoch_begins():
    made, _ = schedule([[0, 1] * 20] * 2, batch_size=2, epochs=2)
    assert [step.number for step in made if made.opens_epoch(step)] == [0, 20]


def test_augmented_batches_have_the_same_steps():
    toy = world(configured("fedavg"), [[0, 1, 2, 0, 1, 2]] * 2, net="conv4", shape=(1, 16, 16), batch_size=3)
    object.__setattr__(toy.worker.local_training, "augment", Augmentation(flip=True))
    clients = [toy.worker.begin(toy.federation.job(client, 1)) for client in range(2)]
    made = Schedule(toy.worker, Train(clients[0].phases[0].loss, epochs=1), clients)
    assert spans(made) == [(0, 2), (1, 2)]
