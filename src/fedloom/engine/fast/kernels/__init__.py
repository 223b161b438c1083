"""The project's own kernels for small nets on the CPU: convolutions of few channels, maxima of 2x2 windows.

Libraries compute convolutions in blocks of sixteen channels and more, but a LeNet has six. Here a vector holds
neighbours in a plane instead. They sum in another order than torch, so numbers agree to the accuracy of float32, not
bit for bit. `compiling.py` compiles the C++ for each geometry on first use, `operators.py` makes operators of torch."""
