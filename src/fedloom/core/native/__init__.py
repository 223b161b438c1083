"""C++ of the project's own, compiled for the processor at hand: what is shared by all that uses it, and sums."""

from fedloom.core.native.compiling import KernelError, compiler, library, library_of
from fedloom.core.native.sums import add_scaled

__all__ = ["KernelError", "add_scaled", "compiler", "library", "library_of"]
