"""Memory: how much is free, and freed memory that is kept (Linux with glibc).

Without keeping it, the tensors of every step come from fresh pages, and each costs a fault.
"""

import ctypes
import sys
from pathlib import Path

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


def free_memory(
    info: Path = Path("/proc/meminfo"),
    groups: Path = Path("/sys/fs/cgroup"),
    own: Path = Path("/proc/self"),
) -> int | None:
    """Return how many bytes this process can still take without swapping; None if nothing says.

    It is the least of what the system has, what the control groups allow, and `ulimit -v`.

    Args:
        info: what the system says of its memory (Linux).
        groups: where control groups are mounted.
        own: what the system says of this process.
    """
    found = [_of_system(info), _of_groups(groups, own / "cgroup"), _of_limit(own / "statm")]
    known = [size for size in found if size is not None]
    return max(min(known), 0) if known else None


def check_fits(size: float, what: str, advice: str) -> None:
    """Raise a ValueError if this many bytes do not fit into the memory that is free.

    Args:
        size: estimated bytes.
        what: needs them, with its verb: "the pictures of planted need".
        advice: what would fit, or how to need less.
    """
    free = free_memory()
    if free is not None and size > free:
        raise ValueError(
            f"{what} about {in_gib(size)} of memory and {in_gib(free)} are free; {advice}"
        )


def in_gib(size: float) -> str:
    """Return a number of bytes as people read it: "1.5 GiB"."""
    number = size / GIB
    if number >= 1024:
        return f"{number / 1024:,.1f} TiB"
    return f"{number:.1f} GiB" if number >= 0.1 else f"{size / (1 << 20):.1f} MiB"


def _of_system(info: Path) -> int | None:
    try:
        lines = info.read_text().splitlines()
        kibibytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return int(kibibytes) * 1024
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _of_groups(groups: Path, own: Path) -> int | None:
    """What the control group of this process, or one around it, leaves (version 2)."""
    try:
        lines = own.read_text().splitlines()
        path = next(line[3:] for line in lines if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    names = Path(path.strip("/")).parts
    left = []
    for depth in range(len(names) + 1):
        folder = groups.joinpath(*names[:depth])
        try:
            most = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
            # Files that were read count as used, and are given up when memory is needed.
            rows = (folder / "memory.stat").read_text().splitlines()
            files = sum(int(row.split()[1]) for row in rows if row.startswith("inactive_file "))
            if most != "max":
                left.append(int(most) - used + files)
        except (OSError, ValueError, IndexError):
            continue
    return min(left) if left else None


def _of_limit(statm: Path) -> int | None:
    try:
        # Here, because Windows has no such module.
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most == resource.RLIM_INFINITY:
            return None
        return most - int(statm.read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError, IndexError):
        return None
