"""Jobs and results cross between processes with all their fields, also with those that are added later."""

import multiprocessing
from dataclasses import dataclass, field

import pytest
import torch

from fedloom.core.records import Record
from fedloom.engine.jobs import EvalResult, JobResult
from fedloom.engine.processes.shared_memory import Packer, SharedMemory
from fedloom.engine.processes.workers import packed, send, unpacked
from support import same_bits


@dataclass(frozen=True, slots=True)
class LongerResult(JobResult):
    """A job's result with fields of every kind more."""

    momentum: Record = field(default_factory=dict)
    counts: torch.Tensor = field(default_factory=lambda: torch.arange(3))
    note: str = ""


@dataclass(frozen=True, slots=True)
class LongerEvaluation(EvalResult):
    """The result of an evaluation with a number more."""

    steps: int = 0


@pytest.mark.parametrize("reserve", [True, False], ids=["shared memory", "inline"])
def test_a_field_that_is_added_to_a_result_crosses(reserve):
    memory = SharedMemory(reserve=reserve)
    model, state = {"model": {"w": torch.randn(4, 5)}}, {"k": 3}
    result = LongerResult(1, model, state, {"ce": 0.5}, 2, 3, 0.25, momentum={"v": torch.randn(7)}, note="seen")
    again = unpacked(packed(result, Packer(memory)), memory.view)
    assert type(again) is LongerResult
    assert same_bits(again.upload, model)
    assert same_bits(again.momentum, result.momentum)
    assert torch.equal(again.counts, result.counts)
    assert (again.client, again.state, again.terms, again.note) == (1, state, {"ce": 0.5}, "seen")


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(3, 4, requires_grad=True), torch.eye(3).bool().T, torch.tensor(2.0), torch.zeros(0, 3).bfloat16()],
    ids=["gradient", "bool", "number", "empty"],
)
def test_tensors_of_other_fields_cross_as_bytes(tensor):
    """What arrives may be written to, and the sender's tensor stays."""
    here, there = multiprocessing.Pipe()
    send(here, ({"sums": tensor}, tensor))
    received, same = there.recv()
    assert received["sums"] is same
    assert (same.dtype, same.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(same, tensor.detach())
    same.zero_()
    assert not tensor.numel() or tensor.detach().any()


def test_a_field_that_is_added_to_an_evaluation_crosses():
    memory = SharedMemory()
    result = LongerEvaluation(client=2, tested={}, samples=5, steps=9)
    assert unpacked(packed(result, Packer(memory)), memory.view) == result
