"""Keep freed memory on Linux with glibc.

Otherwise the tensors of every step come from fresh pages, and each page costs a fault.
"""

import ctypes
import sys

# Options of mallopt, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
GIB = 1 << 30


def keep_memory() -> bool:
    """Ask the allocator to serve large blocks from the heap and to keep the heap.

    Returns False where there is no glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    options = {_MMAP_THRESHOLD: GIB, _TRIM_THRESHOLD: 2 * GIB - 1, _MMAP_MAX: 0}
    return all(mallopt(option, value) for option, value in options.items())
