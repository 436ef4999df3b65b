"""Kernels in C, on request: `FAIRMARGIN_NATIVE=1`.

GCC compiles them when a network first needs them, in about two seconds. They give the numbers of
the PyTorch code up to rounding (docs/performance.md says how much faster). A process that does not
ask for them never starts a compiler.
"""
