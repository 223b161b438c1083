"""Memory between processes: jobs and results come out as they were sent, and what must last is copied."""

import multiprocessing
from dataclasses import dataclass, field

import pytest
import torch

from fedloom.core.records import Record
from fedloom.core.tables import ClassTable
from fedloom.engine.jobs import JobResult
from fedloom.engine.processes.shared_memory import SharedMemory, dumps, lasting, loads
from support import same_bits

TENSORS = [
    torch.randn(3, 4, requires_grad=True),
    torch.arange(5),
    torch.tensor([True, False, True]),
    torch.tensor(2.5, dtype=torch.float64),
    torch.zeros(0, 7),
    torch.zeros(0, 3).bfloat16(),
    torch.randn(3).bfloat16(),
    torch.eye(3).bool().T,
    torch.randn(6, 2).T,
]


def record():
    table = ClassTable(torch.randn(3, 2), torch.tensor([True, False, True]))
    return {"model": {"w": torch.randn(4, 5), "n": torch.tensor(3)}, "table": table, "counts": torch.arange(4), "k": 7}


@pytest.mark.parametrize("reserve", [True, False], ids=["shared", "inline"])
@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}-{tuple(t.shape)}")
def test_a_tensor_comes_out_as_it_was_sent(tensor, reserve):
    """What arrives may be written to, and the sender's tensor stays."""
    memory = SharedMemory(reserve=reserve)
    dumps(torch.ones(3, dtype=torch.uint8), memory)  # so that the next one must be aligned
    received, same = loads(dumps(({"sums": tensor}, tensor), memory), memory)
    assert received["sums"] is same
    assert (same.dtype, same.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(same, tensor.detach())
    assert not tensor.numel() or memory.holds(same) == reserve
    if same.is_contiguous() and same.numel():
        same.zero_()
        assert tensor.detach().any()


@dataclass(frozen=True, slots=True)
class LongerResult(JobResult):
    """A job's result with a field more."""

    momentum: Record = field(default_factory=dict)


@pytest.mark.parametrize("reserve", [True, False], ids=["shared", "inline"])
def test_a_result_comes_out_with_all_fields(reserve):
    memory, sent = SharedMemory(reserve=reserve), LongerResult(1, record(), {"k": 3}, {"ce": 0.5}, 2, 3, 0.25)
    received = loads(dumps(sent, memory), memory)
    assert type(received) is LongerResult
    assert same_bits(received.upload, sent.upload)
    assert (received.state, received.terms, received.momentum) == ({"k": 3}, {"ce": 0.5}, {})


def test_a_tensor_of_several_messages_is_written_once_until_the_memory_is_cleared():
    memory, weights = SharedMemory(), {"w": torch.randn(1000)}
    dumps({"model": weights}, memory)
    used = memory.used
    (tensor,) = loads(dumps(dict(weights), memory), memory).values()
    assert memory.used == used
    memory.clear()
    dumps(torch.zeros(1000), memory)
    assert memory.used == used
    assert not tensor.any()  # the view is of the memory that was used again


def test_lasting_copies_what_lies_in_a_memory_and_nothing_else():
    memory, own = SharedMemory(), torch.ones(3)
    inside = loads(dumps(record(), memory), memory)
    kept = lasting(inside | {"own": own}, [memory])
    assert kept["own"] is own
    tensors = [*kept["model"].values(), kept["table"].values, kept["table"].held, kept["counts"]]
    assert not any(memory.holds(tensor) for tensor in tensors)
    assert memory.holds(inside["counts"])
    assert same_bits({**kept, "own": own}, inside | {"own": own})


def _double(memory, message, answer):
    loads(message, memory).mul_(2)
    answer.send(memory.used)


def test_another_process_sees_the_same_memory():
    context, memory = multiprocessing.get_context("fork"), SharedMemory()
    message = bytes(dumps(torch.arange(4), memory))
    ours, theirs = context.Pipe()
    process = context.Process(target=_double, args=(memory, message, theirs))
    process.start()
    theirs.close()
    assert ours.recv() == memory.used
    process.join()
    assert loads(message, memory).tolist() == [0, 2, 4, 6]
