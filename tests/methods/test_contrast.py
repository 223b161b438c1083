"""Prototypes that all clients of a round share are made once, and anew for everything that differs."""

import torch

from fedloom.core.tables import ClassTable
from fedloom.methods.parts.contrast import prototypes_of, prototypes_of_table


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
