"""Speed-ups: replayed steps and own convolution kernels. README.md in this folder explains them."""

from fedloom.engine.fast.graphs import GraphStepper
from fedloom.engine.fast.kernels.operators import InferenceKernels, OwnKernels, kernels_obstacle
from fedloom.engine.fast.replayer import Replayer
from fedloom.engine.fast.stack_graphs import StackGraphs
from fedloom.engine.fast.torch_library import replay_library

__all__ = [
    "GraphStepper",
    "InferenceKernels",
    "OwnKernels",
    "Replayer",
    "StackGraphs",
    "kernels_obstacle",
    "replay_library",
]
