"""Kernels in C, on request: `FAIRMARGIN_NATIVE=1`.

They are compiled by GCC when a network first needs them, take a few seconds, and give the numbers
of the PyTorch code up to rounding (docs/performance.md says how much faster). A process that does
not ask for them never starts a compiler.
"""
