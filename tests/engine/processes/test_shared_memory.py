"""Memory between processes: what is put in comes out, and what must last is copied."""

import multiprocessing

import pytest
import torch

from fedloom.core.tables import ClassTable
from fedloom.engine.processes.shared_memory import Packer, SharedMemory, lasting, unpack
from support import same_bits

TENSORS = [
    torch.randn(3, 4),
    torch.arange(5),
    torch.tensor([True, False, True]),
    torch.tensor(2.5, dtype=torch.float64),
    torch.zeros(0, 7),
    torch.randn(6, 2).T,
]


def record():
    table = ClassTable(torch.randn(3, 2), torch.tensor([True, False, True]))
    return {"model": {"w": torch.randn(4, 5), "n": torch.tensor(3)}, "table": table, "counts": torch.arange(4), "k": 7}


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}-{tuple(t.shape)}")
def test_a_tensor_comes_out_as_it_was_put_in(tensor):
    memory = SharedMemory()
    memory.put(torch.ones(3, dtype=torch.uint8))  # so that the next one must be aligned
    seen = memory.view(memory.put(tensor))
    assert seen.dtype == tensor.dtype
    assert seen.shape == tensor.shape
    assert torch.equal(seen, tensor)


def test_a_record_comes_out_as_it_was_packed():
    memory, original = SharedMemory(), record()
    packed = Packer(memory).pack(original)
    assert same_bits(unpack(packed, memory.view), original)


def test_what_records_share_is_put_in_once():
    memory, weights = SharedMemory(), {"w": torch.randn(1000)}
    packer = Packer(memory)
    packer.pack({"model": weights})
    used = memory.used
    assert packer.pack({"model": dict(weights)})["model"] == packer.pack({"model": weights})["model"]
    assert memory.used == used
    packer.pack({"model": weights}, shared=False)
    assert memory.used == 2 * used


def test_memory_is_used_again_after_clear():
    memory = SharedMemory()
    first = memory.put(torch.ones(10))
    memory.clear()
    assert memory.put(torch.zeros(10)) == first
    assert not memory.view(first).any()


def test_lasting_copies_what_lies_in_an_memory_and_nothing_else():
    memory, own = SharedMemory(), torch.ones(3)
    inside = unpack(Packer(memory).pack(record()), memory.view)
    kept = lasting(inside | {"own": own}, [memory])
    assert kept["own"] is own
    tensors = [*kept["model"].values(), kept["table"].values, kept["table"].held, kept["counts"]]
    assert not any(memory.holds(tensor) for tensor in tensors)
    assert memory.holds(inside["counts"])
    assert same_bits({**kept, "own": own}, inside | {"own": own})


def _double(memory, place, answer):
    memory.view(place).mul_(2)
    answer.send(memory.used)


def test_another_process_sees_the_same_memory():
    context, memory = multiprocessing.get_context("fork"), SharedMemory()
    place = memory.put(torch.arange(4))
    ours, theirs = context.Pipe()
    process = context.Process(target=_double, args=(memory, place, theirs))
    process.start()
    theirs.close()
    assert ours.recv() == memory.used
    process.join()
    assert memory.view(place).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("tensor", [*TENSORS, torch.randn(3).bfloat16()], ids=lambda t: f"{t.dtype}-{tuple(t.shape)}")
def test_where_none_can_be_reserved_a_tensor_travels_with_its_message(tensor):
    memory = SharedMemory(reserve=False)
    assert not memory.reserved
    ours, theirs = multiprocessing.Pipe()
    ours.send((memory, memory.put(tensor)))
    there, sent = theirs.recv()
    seen = there.view(sent)
    assert (seen.dtype, seen.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(seen, tensor)
    assert not memory.holds(memory.empty_like(tensor))
