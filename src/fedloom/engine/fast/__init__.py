"""Speed-ups: replayed steps and own convolution kernels. README.md in this folder explains them."""

from fedloom.engine.fast.kernels import OwnKernels, kernels_obstacle
from fedloom.engine.fast.kernels.operators import InferenceKernels
from fedloom.engine.fast.replayer import Replayer
from fedloom.engine.fast.torch_library import pool, threads_obstacle, threads_ready

__all__ = [
    "InferenceKernels",
    "OwnKernels",
    "Replayer",
    "kernels_obstacle",
    "pool",
    "threads_obstacle",
    "threads_ready",
]
