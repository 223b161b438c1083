"""A graph of operators on one client's tensors as a C++ function that does them for many clients, one after another.

Where steps are short, torch's operators cost more by the call than by the number, and what each leaves for the next
goes through memory. Here a client's whole block of steps is one function for its shapes: nothing is paid by the
operator, and what is left in between stays in the cache. The function is compiled once and kept
(`core/native`). Sums have a fixed order, another one than torch's: the numbers agree to rounding.

`arrays.py`: where numbers lie, and loops over them. `writer.py`: the function's text and its memory. `operators.py`:
what torch's operators are in C++. `program.py`: the function, compiled.
"""

from fedloom.engine.cpp.arrays import UntranslatableError
from fedloom.engine.cpp.program import Program

__all__ = ["Program", "UntranslatableError"]
