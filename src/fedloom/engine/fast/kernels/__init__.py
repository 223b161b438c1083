"""The project's own kernels for small nets on the CPU: convolutions of few channels, maxima of 2x2 windows.

Libraries compute convolutions in blocks of sixteen channels and more, but a LeNet has six. Here a vector holds
neighbours in a plane instead. They sum in another order than torch, so numbers agree to the accuracy of float32, not
bit for bit. `compiling.py` compiles the C++ for each geometry on first use, `operators.py` makes operators of torch.
"""

from collections.abc import Sequence

from torch import nn

from fedloom.engine.fast.kernels.compiling import KERNELS_FOLDER, KernelError, compiler, library
from fedloom.engine.fast.kernels.operators import OwnKernels, benefits, load_operators

__all__ = ["OwnKernels", "kernels_obstacle"]


def kernels_obstacle(nets: Sequence[nn.Module]) -> str | None:
    """Return why the kernels cannot be used for any of the nets; None if they can."""
    if not any(map(benefits, nets)):
        return "no net has a convolution of so few channels that they are faster"
    if compiler() is None:
        return "there is no C++ compiler (c++, g++, clang++ or $CXX), and they are compiled when first used"
    try:
        library(KERNELS_FOLDER / "pooling.cpp", HEIGHT=2, WIDTH=2)  # the smallest kernel, as a test
        load_operators()
    except KernelError as error:
        return str(error)
    return None
