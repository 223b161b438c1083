"""Views: who holds what, without a copy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data.views import Views


def views_of(*lists):
    return Views.from_lists([np.array(part, dtype=np.int64) for part in lists])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=6))
def test_every_client_gets_its_own_list_back(lists):
    views = views_of(*lists)
    assert len(views) == len(lists)
    assert [views[k].tolist() for k in range(len(lists))] == lists
    assert [views.tensor(k).tolist() for k in range(len(lists))] == lists
    assert views.sizes.tolist() == [len(part) for part in lists]


def test_a_view_is_a_slice_of_one_array():
    views = views_of([4, 2], [7], [])
    assert np.shares_memory(views[0], views.order)
    views.order[0] = 9  # a copy would not see this
    assert views[0].tolist() == [9, 2]
    assert views.tensor(0).tolist() == [9, 2]


def test_indices_are_int64_whatever_they_were_made_of():
    views = Views.from_lists([np.array([1, 2], dtype=np.int16), np.array([], dtype=np.float64)])
    assert views.order.dtype == np.int64
    assert views.offsets.dtype == np.int64


def test_a_client_beyond_the_last_is_an_error():
    with pytest.raises(IndexError):
        views_of([1], [2])[2]


def test_class_counts_by_hand():
    labels = np.array([0, 2, 2, 1, 0, 2])
    views = views_of([1, 2, 0], [], [5, 3])
    assert views.class_counts(labels, 4).tolist() == [[1, 0, 2, 0], [0, 0, 0, 0], [0, 1, 1, 0]]


def test_class_counts_of_the_first_clients():
    labels = np.array([0, 2, 2, 1, 0, 2])
    views = views_of([1, 2, 0], [], [5, 3])
    assert views.class_counts(labels, 4, first=2).tolist() == [[1, 0, 2, 0], [0, 0, 0, 0]]
    assert views.class_counts(labels, 4, first=9).tolist() == views.class_counts(labels, 4).tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-1, 4), max_size=30))
def test_owners_become_views_and_views_owners(owners):
    owner = np.array(owners, dtype=np.int64)
    views = Views.from_owners(owner, 5)
    assert [views[k].tolist() for k in range(5)] == [np.flatnonzero(owner == k).tolist() for k in range(5)]
    assert views.owner_of(len(owner)).tolist() == owners
    assert views.holders().tolist() == sorted(k for k in owners if k >= 0)


def test_even_pieces_and_other_names_for_samples():
    views = Views.split_evenly(np.array([4, 2, 9, 7, 1]), 3)
    assert [views[k].tolist() for k in range(3)] == [[4, 2], [9, 7], [1]]
    assert [views.renumber(np.arange(10) * 10)[k].tolist() for k in range(3)] == [[40, 20], [90, 70], [10]]
