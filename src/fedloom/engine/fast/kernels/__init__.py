"""The project's own kernels for small nets on the CPU: convolutions of few channels, maxima of 2x2 windows.

Libraries compute convolutions in blocks of sixteen channels and more; a LeNet has six. Here a vector is a run of
neighbours in a plane instead. The C++ beside this file is compiled for each geometry when it first comes, in half a
second, and kept (`compiling.py`); torch knows the kernels as operators with gradients (`operators.py`); a net's
`features` take them instead of torch's within `OwnKernels` (`native.py`). Sums are made in another order than torch's:
the numbers agree to float32's accuracy, not bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedloom.engine.fast.kernels.compiling import HERE, KernelError, compiler, library
from fedloom.engine.fast.kernels.native import OwnKernels, suited

__all__ = ["OwnKernels", "kernels_obstacle"]


def kernels_obstacle(nets: Sequence[nn.Module]) -> str | None:
    """Why the kernels cannot be used for any of the nets; None if they can."""
    if not any(map(suited, nets)):
        return "no net has a convolution of so few channels that they are faster"
    if compiler() is None:
        return "there is no C++ compiler (c++, g++, clang++ or $CXX), and they are compiled when first used"
    try:
        library(HERE / "pooling.cpp", HEIGHT=2, WIDTH=2)  # the smallest, to see whether any can be
    except KernelError as error:
        return str(error)
    return None
