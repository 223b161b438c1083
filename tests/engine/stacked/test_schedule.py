"""Which steps of a stack are taken together, and whose they are."""

import torch

from fedloom.data.augment import Augmentation
from fedloom.engine.stacked.schedule import Schedule
from fedloom.engine.stacked.stacks import Stacks
from fedloom.methods.phases import Train
from support import configured, world


def schedule(labels, *, epochs=1, measured=False, batch_size=3, augment=None):
    toy = world(configured("fedavg"), labels, batch_size=batch_size, **({"shape": (1, 4, 4)} if augment else {}))
    stacks = Stacks(toy.worker, 8)
    members = [stacks.worker.begun(toy.federation.job(client, 1, measured=measured)) for client in range(len(labels))]
    members.sort(key=lambda member: -len(member.job.indices))
    phase = Train(members[0].phases[0].loss, epochs=epochs)
    return Schedule(toy.worker, phase, members), members


def spans(made):
    return [(run.first, run.last, run.active) for run in made]


def test_members_of_one_size_take_an_epoch_together():
    made, _ = schedule([[0, 1, 2, 0, 1, 2, 0]] * 3, epochs=2)
    assert spans(made) == [(0, 3, 3), (3, 6, 3)]
    assert made.steps == [6, 6, 6]
    assert made.samples == [14, 14, 14]


def test_members_of_several_sizes_take_step_after_step_and_leave():
    made, _ = schedule([[0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 0]])
    assert spans(made) == [(0, 1, 2), (1, 2, 2), (2, 3, 1)]
    assert [[len(own) for own in run.samples] for run in made] == [[3, 3], [3, 1], [1]]


def test_every_epoch_has_all_samples_once_in_an_order_of_its_own():
    made, members = schedule([[0, 1, 2, 0, 1, 2, 0]] * 2, epochs=2)
    first, second = (run.samples[1] for run in made)
    assert sorted(first.tolist()) == sorted(second.tolist()) == sorted(members[1].job.indices.tolist())
    assert first.tolist() != second.tolist()


def test_the_last_epoch_is_each_members_own():
    made, _ = schedule([[0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 0]], epochs=2)
    assert [made.last_epoch(step, 2) for step in range(4)] == [[False] * 2, [False] * 2, [False, True], [True, True]]


def test_a_step_that_is_probed_stands_alone_and_a_first_one_is_not():
    made, _ = schedule([[0, 1, 2, 0, 1, 2, 0]] * 2, epochs=2, measured=True)
    assert spans(made) == [(0, 3, 2), (3, 5, 2), (5, 6, 2)]
    assert [list(run.probed) for run in made] == [[], [], [True, True]]
    single, _ = schedule([[0, 1]] * 2, measured=True)
    assert [list(run.probed) for run in single] == [[]]


def test_many_steps_come_in_several_runs():
    made, _ = schedule([[0, 1] * 20] * 2, batch_size=2)
    assert spans(made) == [(0, 16, 2), (16, 20, 2)]
    order = torch.cat([run.samples[0] for run in made])
    assert sorted(order.tolist()) == list(range(40))


def test_runs_say_where_an_epoch_begins():
    made, _ = schedule([[0, 1] * 20] * 2, batch_size=2, epochs=2)
    assert [made.opens(run) for run in made] == [True, False, True, False]


def test_augmented_batches_come_one_by_one():
    toy = world(configured("fedavg"), [[0, 1, 2, 0, 1, 2]] * 2, net="conv4", shape=(1, 16, 16), batch_size=3)
    object.__setattr__(toy.worker.local, "augment", Augmentation(flip=True))
    stacks = Stacks(toy.worker, 8)
    members = [stacks.worker.begun(toy.federation.job(client, 1)) for client in range(2)]
    made = Schedule(toy.worker, Train(members[0].phases[0].loss, epochs=1), members)
    assert spans(made) == [(0, 1, 2), (1, 2, 2)]
