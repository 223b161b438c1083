"""Parts that methods share: training at the server against steps in plain numbers, prototypes made once a round."""

import itertools
import math

import numpy as np
import pytest
import torch

from fedloom.core.tables import ClassTable
from fedloom.methods.parts.contrast import prototypes_of, prototypes_of_table
from fedloom.methods.parts.measures import batches, descended


# -- descent -----------------------------------------------------------------------------------------------------------
def stepped(w, targets, *, adam, cosine, lr=0.01):
    """w after steps on (w - t)^4, in plain numbers: Algorithm 1 of Kingma & Ba, ICLR 2015, or w - lr g."""
    m = v = 0.0
    for t, target in enumerate(targets, 1):
        rate = lr * (1 + math.cos(math.pi * (t - 1) / len(targets))) / 2 if cosine else lr
        g = 4 * (w - target) ** 3
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w -= rate * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8) if adam else rate * g
    return w


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("cosine", [False, True])
def test_steps_are_the_written_ones(adam, cosine):
    firsts, targets = [1.0, -2.0, 0.5], [0.3, -1.0, 2.0, 0.0, 0.7]
    tree = {"a": torch.tensor(firsts[:2], dtype=torch.float64), "b": torch.tensor(firsts[2], dtype=torch.float64)}
    left = iter(targets)

    def loss(tree):
        target = next(left)
        return (tree["a"] - target).pow(4).sum() + (tree["b"] - target).pow(4)

    ours = descended(loss, tree, 0.01, len(targets), adam=adam, cosine=cosine)
    wanted = [stepped(w, targets, adam=adam, cosine=cosine) for w in firsts]
    assert [*ours["a"].tolist(), float(ours["b"])] == pytest.approx(wanted, abs=1e-12)
    assert not ours["a"].requires_grad
    assert tree["a"].tolist() == firsts[:2]


def test_no_step_changes_nothing():
    tree = {"a": torch.ones(2)}
    assert descended(lambda tree: tree["a"].sum(), tree, 1.0, 0, adam=True) is tree


def test_batches_are_whole_passes():
    drawn = list(itertools.islice(batches(5, 2, np.random.default_rng(0)), 6))
    assert [len(rows) for rows in drawn] == [2, 2, 1, 2, 2, 1]
    assert sorted(torch.cat(drawn[:3]).tolist()) == sorted(torch.cat(drawn[3:]).tolist()) == [0, 1, 2, 3, 4]
    assert not torch.equal(torch.cat(drawn[:3]), torch.cat(drawn[3:]))
    for size in (None, 5, 9):
        every = itertools.islice(batches(5, size, np.random.default_rng(0)), 2)
        assert [rows.tolist() for rows in every] == [[0, 1, 2, 3, 4]] * 2


# -- contrast ----------------------------------------------------------------------------------------------------------
def table(*held: bool) -> ClassTable:
    return ClassTable(torch.arange(6.0).view(3, 2) * torch.tensor(held).unsqueeze(1), torch.tensor(held))


def rows_of(table: ClassTable, all_rows: bool = False) -> torch.Tensor:
    held = table.held.unsqueeze(0)
    return prototypes_of(table.values.unsqueeze(0), held, held, all_rows=all_rows).rows


def test_the_same_table_gives_the_same_prototypes_and_another_one_others():
    first, second = table(True, False, True), table(True, True, True)
    made = prototypes_of_table(first)
    assert prototypes_of_table(first) is made
    assert prototypes_of_table(ClassTable(first.values, first.held)) is made
    assert torch.equal(made.rows, rows_of(first))
    assert torch.equal(prototypes_of_table(first, all_rows=True).rows, rows_of(first, all_rows=True))
    assert torch.equal(prototypes_of_table(second).rows, rows_of(second))
    assert torch.equal(prototypes_of_table(first).rows, rows_of(first))


def test_a_table_that_was_changed_in_place_is_another_one():
    changed = table(True, True, True)
    before = prototypes_of_table(changed).rows.clone()
    changed.values.mul_(2)
    assert torch.equal(prototypes_of_table(changed).rows, 2 * before)
