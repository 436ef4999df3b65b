"""How many threads an operation may use."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


def use(number: int) -> None:
    """From now on, in this process; the linear algebra of NumPy and SciPy included."""
    torch.set_num_threads(number)
    threadpool_limits(number)


@contextmanager
def one_thread() -> Iterator[None]:
    """For operations that are many and small: threads would wait for each other longer than they compute, on a busy
    machine many times longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
