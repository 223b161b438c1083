"""FLOPs against counts made by hand."""

import dataclasses

import pytest
import torch

from fedloom.engine.flops import flops_of, flops_per_sample
from support import CLASSES, WIDTH, configured, same_bits, world

LABELS = [[0, 1, 2, 0, 1], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1]]
# Tiny is WIDTH -> 6 -> C. Two per multiply-add: forward, gradient by the weights, and by the input of the second layer.
FORWARD = 2 * (WIDTH * 6 + 6 * CLASSES)
STEP = 2 * FORWARD + 2 * 6 * CLASSES


@pytest.mark.parametrize("epochs", [1, 3])
def test_fedavg_is_forward_and_backward_for_every_epoch(epochs):
    toy = world(configured("fedavg"), LABELS, epochs=epochs)
    assert flops_per_sample(toy.worker, toy.job(1)) == epochs * STEP


def test_a_statistics_pass_counts_once():
    toy = world(configured("feddw", mu=0.0), LABELS, epochs=3)
    regulariser = 3 * 2 * CLASSES * 6 * CLASSES / 4  # w w^T and its gradient by both factors, once for 4 samples
    class_means = 2 * CLASSES * CLASSES  # one-hot labels times outputs
    expected = 3 * (STEP + regulariser) + FORWARD + class_means
    assert flops_per_sample(toy.worker, toy.job(1)) == pytest.approx(expected)


def test_two_nets_count_twice():
    toy = world(configured("fedco2", algorithm="label_skew"), LABELS)
    assert flops_per_sample(toy.worker, toy.job(1)) == 2 * STEP


def test_a_run_counts_all_participants_of_all_rounds():
    toy = world(configured("fedavg"), LABELS, participation=0.67)
    held = []
    for round_ in (1, 2, 3):
        held.append(toy.federation.step().samples_by_group)
        assert held[-1] == {0: sum(len(LABELS[client]) for client in toy.federation.participants(round_))}
    samples = sum(own[0] for own in held)
    assert flops_of(toy.federation, toy.worker, {0: samples}) == samples * STEP


def test_steps_that_are_recorded_or_replayed_count_once():
    toy = world(configured("fedavg"), LABELS, epochs=3)
    toy.worker.stepper = toy.worker.speedups.stepper(toy.data)
    toy.worker.stepper.eager = True
    counted = [flops_per_sample(toy.worker, toy.job(1)) for _ in range(2)]
    toy.worker.run(toy.job(1))
    counted.append(flops_per_sample(toy.worker, toy.job(1)))
    assert counted == [3 * STEP] * 3


def test_counting_changes_nothing_that_lasts():
    toy = world(configured("fedsc"), LABELS)
    toy.federation.step()
    before = dict(toy.federation.server)
    drawn = torch.random.get_rng_state()
    assert flops_of(toy.federation, toy.worker, {0: 7.0}) > 0
    assert same_bits(before, toy.federation.server)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    job = toy.job(0, round_=2)
    again = toy.worker.run(dataclasses.replace(job))
    assert same_bits(again.upload, toy.worker.run(job).upload)
