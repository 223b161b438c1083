"""Objects that garbage collections leave out while a run lasts."""

import types

import pytest

from fedloom.engine import speedups as memory
from fedloom.engine.speedups import HeldHeap


@pytest.fixture
def collector(monkeypatch):
    """A collector that notes what it is told: the tests' own heap is frozen already."""
    told = []
    fake = types.SimpleNamespace(
        told=told,
        freeze=lambda: told.append("freeze"),
        unfreeze=lambda: told.append("unfreeze"),
        get_freeze_count=lambda: 0,
    )
    monkeypatch.setattr(memory, "gc", fake)
    return fake


def test_the_heap_is_held_until_the_last_run_ends(collector):
    first, second = HeldHeap(), HeldHeap()
    first.hold()
    first.hold()
    second.hold()
    first.release()
    first.release()
    assert collector.told == ["freeze"]
    second.release()
    assert collector.told == ["freeze", "unfreeze"]


def test_a_heap_that_somebody_else_froze_stays_so(collector):
    collector.get_freeze_count = lambda: 1
    heap = HeldHeap()
    heap.hold()
    heap.release()
    assert collector.told == []
