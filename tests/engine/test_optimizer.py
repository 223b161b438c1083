"""The local optimisers against `torch.optim`, bit for bit."""

import pytest
import torch

from fedloom.engine.optimizer import Optimizer
from fedloom.methods.contract.phases import OptimizerSpec

SHAPES = [(3, 4), (7,), (), (2, 3, 5, 5), (1, 129)]
SPECS = [
    OptimizerSpec("sgd", lr=0.1),
    OptimizerSpec("sgd", lr=0.05, momentum=0.9),
    OptimizerSpec("sgd", lr=0.05, weight_decay=1e-2),
    OptimizerSpec("sgd", lr=0.01, momentum=0.9, weight_decay=1e-5),
    OptimizerSpec("adam", lr=1e-3),
    OptimizerSpec("adam", lr=0.02, weight_decay=1e-2),
    OptimizerSpec("adam", lr=0.02, betas=(0.5, 0.7), eps=1e-3),
]


def theirs(spec: OptimizerSpec, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    if spec.name == "sgd":
        return torch.optim.SGD(
            parameters, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, foreach=False
        )
    return torch.optim.Adam(
        parameters, lr=spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay, foreach=False
    )


def start(dtype: torch.dtype) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=rng, dtype=dtype).requires_grad_() for shape in SHAPES]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_twenty_steps_equal_torch_bit_for_bit(spec, dtype):
    ours, reference = start(dtype), start(dtype)
    optimizer, oracle = Optimizer(spec, ours), theirs(spec, reference)
    rng = torch.Generator().manual_seed(1)
    for step in range(20):
        gradients = [torch.randn(p.shape, generator=rng, dtype=dtype) * 10.0 ** (step % 5 - 2) for p in ours]
        for p, g in zip(reference, gradients, strict=True):
            p.grad = g.clone()
        oracle.step()
        optimizer.step(gradients)
        for a, b in zip(ours, reference, strict=True):
            assert torch.equal(a, b), (step, float((a - b).abs().max()))
    assert optimizer.steps == 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_adam_reads_corrections_from_a_tensor_with_the_bits_of_counted_steps(dtype, decay):
    """As a captured step does: its numbers of the host would be those of the capture."""
    adam = OptimizerSpec("adam", lr=0.02, weight_decay=1e-2, decay=decay)
    specs = [adam, OptimizerSpec("sgd", lr=0.1), *[OptimizerSpec("adam", lr=1e-3, betas=(0.5, 0.7), decay=decay)] * 3]
    counted_parameters, parameters = start(dtype), start(dtype)
    counted, reading = Optimizer(specs, counted_parameters, 3), Optimizer(specs, parameters, 3).separate()
    numbers = torch.empty(4, dtype=torch.float64)
    reading.read_numbers(numbers)
    rng = torch.Generator().manual_seed(1)
    for step in range(1, 51):
        gradients = [torch.randn(p.shape, generator=rng, dtype=dtype) * 10.0 ** (step % 5 - 2) for p in parameters]
        numbers.copy_(torch.tensor(counted.numbers_of_steps(step, 1), dtype=torch.float64))
        counted.step([gradient.clone() for gradient in gradients])
        reading.step(gradients)
        for tensors in zip(counted_parameters, parameters, strict=True), zip(counted.state, reading.state, strict=True):
            assert all(torch.equal(a, b) for a, b in tensors), step
