"""The project's own kernels for small nets on the CPU: convolutions of few channels, maxima of 2x2 windows.

Libraries compute convolutions in blocks of sixteen channels and more; a LeNet has six. Here a vector is a run of
neighbours in a plane instead. The C++ beside this file is compiled for each geometry when it first comes, in half a
second, and kept (`core/native`); torch knows the kernels as operators with gradients (`operators.py`); a net's
`features` take them instead of torch's while `Native` is entered (`native.py`). Sums are made in another order than
torch's: the numbers agree to float32's accuracy, not bit for bit.
"""

from __future__ import annotations

from fedloom.nets.kernels.native import Native, suited

__all__ = ["Native", "suited"]
