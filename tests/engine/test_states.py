"""Client states beyond a budget go to disk and come back as they were."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable
from fedloom.engine.states import ClientStates
from support import same_bits


def state(number, floats=256):
    table = ClassTable(torch.full((2, 3), float(number)), torch.tensor([True, True]))
    return {"model": {"w": torch.full((floats,), float(number))}, "table": table, "seen": True, "round": number}


SIZE = 4 * 256 + 4 * 6 + 2


def in_memory(states):
    """Bytes of the tensors that are in memory now."""
    return len(states._in_memory) * SIZE


def test_without_a_budget_it_is_a_dict_in_the_order_of_ids():
    states = ClientStates()
    for client in (5, 1, 3):
        states[client] = state(client)
    assert list(states) == [1, 3, 5]
    assert states[3]["round"] == 3
    assert 4 not in states
    assert states.get(4) is None
    with pytest.raises(KeyError):
        states[4]
    del states[3]
    assert list(states) == [1, 5]
    assert in_memory(states) == 2 * SIZE


def test_states_beyond_the_budget_come_back_bit_for_bit(tmp_path):
    states = ClientStates(budget=3 * SIZE, folder=tmp_path / "states")
    for client in range(10):
        states[client] = state(client)
        assert in_memory(states) <= 3 * SIZE
    assert len(states) == 10
    assert sum(1 for _ in (tmp_path / "states").rglob("*.safetensors")) == 7
    for client in range(10):
        assert same_bits(states[client], state(client))
        assert in_memory(states) <= 3 * SIZE


def test_those_used_last_stay_in_memory(tmp_path):
    states = ClientStates(budget=2 * SIZE, folder=tmp_path / "states")
    states[0], states[1] = state(0), state(1)
    assert states[0]["round"] == 0
    states[2] = state(2)
    assert [path.stem for path in (tmp_path / "states").rglob("*.safetensors")] == ["00000001"]


def test_a_state_that_changed_after_it_was_on_disk_is_the_new_one(tmp_path):
    states = ClientStates(budget=2 * SIZE, folder=tmp_path / "states")
    for client in (0, 1, 2):
        states[client] = state(client)
    states[0] = state(7)
    states[1], states[2] = state(1), state(2)
    assert same_bits(states[0], state(7))


def test_close_removes_the_files_and_a_start_empties_the_folder(tmp_path):
    folder = tmp_path / "states"
    for _ in range(2):
        states = ClientStates(budget=SIZE, folder=folder)
        assert not list(folder.rglob("*.safetensors"))
        states[0], states[1] = state(0), state(1)
        assert list(folder.rglob("*.safetensors"))
    states.close()
    assert not folder.exists()


def test_a_budget_below_one_state_is_refused():
    with pytest.raises(ConfigError, match=r"client 4 alone takes .* raise it above one state"):
        ClientStates(budget=SIZE - 1)[4] = state(4)


def test_a_budget_without_a_folder_makes_one_of_its_own():
    states = ClientStates(budget=SIZE)
    states[0], states[1] = state(0), state(1)
    assert same_bits(states[0], state(0))
    folder = states._folder
    assert folder.exists()
    states.close()
    assert not folder.exists()
