"""Rows, groups and sites of each stage of the data."""

import numpy as np

import fedloom as fl
from fedloom.data import from_arrays
from fedloom.data.leak import flow_of, stage


def test_a_group_of_two_sites_counts_once_in_all():
    counted = stage(np.array([0, 0, 1, 1, -1]), ["a", "b"], np.array([5, 7, 7, -1, 2]))
    assert counted == {"rows": 5, "groups": 3, "sites": [["a", 2, 2], ["b", 2, 1]]}


def test_parts_hold_every_row_and_group_once():
    rng, person = np.random.default_rng(0), np.repeat(np.arange(40), 3)
    x, y, owner = rng.normal(size=(120, 4)), person % 2, person % 4
    source = from_arrays(x, y, groups=person, owners=[f"ward {k}" for k in owner])
    scenario = fl.scenario(source, val=0.2, held_out={"share": 0.25})
    parts = flow_of(scenario)
    assert {*parts} >= {"training", "validation", "test", "newcomers' training"}
    assert sum(part["rows"] for part in parts.values()) == 120
    assert sum(part["groups"] for part in parts.values()) == 40
    assert [sum(of) for of in zip(*(part["classes"] for part in parts.values()), strict=True)] == [60, 60]
    held = [(name, rows) for part in parts.values() for name, rows, _ in part["sites"]]
    assert {name: sum(rows for of, rows in held if of == name) for name, _ in held} == {
        f"ward {k}": 30 for k in range(4)
    }


def test_arrays_without_groups_have_no_count_of_groups():
    scenario = fl.scenario(from_arrays(np.eye(40), np.arange(40) % 2), clients=2, partition="iid")
    assert {part["groups"] for part in flow_of(scenario).values()} == {None}
