"""Keep freed memory: on Linux with glibc, tensors of every step otherwise come from fresh pages, each of them a fault."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt, in malloc.h
GIB = 1 << 30


def keep_memory() -> bool:
    """Ask the allocator to serve large blocks from the heap and not to give it back; False where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return all(
        mallopt(*s)
        for s in ((_MMAP_THRESHOLD, GIB), (_TRIM_THRESHOLD, 2 * GIB - 1), (_MMAP_MAX, 0))
    )
