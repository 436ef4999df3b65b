"""How many threads an operation may use."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


def use(number: int) -> None:
    """Use `number` threads in this process from now on, in NumPy's and SciPy's algebra too."""
    torch.set_num_threads(number)
    threadpool_limits(number)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread inside the `with` block, for operations that are many and small.

    Several threads would wait for each other longer than they compute, on a busy machine many times
    longer.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
