"""Start Python processes that import nothing from the current folder.

A new process imports the standard library before it is told where its parent looks for modules. By
default it looks in the current folder first, where a file `multiprocessing.py` would be executed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "PYTHONSAFEPATH"


@contextmanager
def safe_path() -> Iterator[None]:
    """Let processes that start inside the `with` block begin without the current folder.

    They take over their parent's search path afterwards, so what it can import they can too.
    """
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
