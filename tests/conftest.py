"""Keep each of several test processes to one thread; run tests one after another with -n 0."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # PyTorch reads this when it is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
