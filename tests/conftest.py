"""Tests run in several processes at a time (pyproject.toml); each then keeps to one thread. One after another: -n 0."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
