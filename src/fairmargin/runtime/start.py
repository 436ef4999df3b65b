"""Settings that PyTorch reads once, when it is imported. They do not override the user's.

- **How threads wait.** GNU's OpenMP, which PyTorch's wheels bring, lets a thread that waits for
  another one spin for milliseconds. On a machine with other work the other thread may wait for the
  very core on which this one spins: there waiting threads sleep. On a quiet machine they spin for
  some microseconds first, because waking takes longer than most waits last (docs/performance.md).
- **As many threads as the container may use.** PyTorch counts cores, and knows nothing of a quota
  of their time.
- **Large pages** for large tensors: fewer faults and fewer misses of the address cache.
"""

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

# A user who sets one of these has chosen how threads wait.
WAITING = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}
# Rounds that a waiting thread spins on a quiet machine before it sleeps.
SPINS = "1000"
# Load average, in busy cores, from which a machine counts as shared.
SHARED = 0.5
THREADS = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"


def prepare() -> None:
    """Make the settings in this process and those it starts.

    Once PyTorch is imported it is too late, and nothing is done.
    """
    if "torch" not in sys.modules:
        os.environ.update(settings(os.environ))


def settings(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables to add to those that are set already.

    Args:
        chosen: the variables that are set.
    """
    found: dict[str, str] = {}
    if not WAITING & chosen.keys():
        if load() > SHARED:
            found["OMP_WAIT_POLICY"] = "passive"
        else:
            found["GOMP_SPINCOUNT"] = SPINS
    if LARGE_PAGES not in chosen:
        found[LARGE_PAGES] = "1"
    quota = cpu_quota()
    if not THREADS & chosen.keys() and quota < _cores():
        found["OMP_NUM_THREADS"] = str(max(1, math.floor(quota)))
    return found


def load() -> float:
    """Return how many cores were busy during the last minute; 0 where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def _cores() -> int:
    """Number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota(
    groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> float:
    """Return how many cores' worth of time this process may use; infinite without a limit.

    The limit is that of its control groups (Linux).

    Args:
        groups: where control groups are mounted.
        own: the list of those that this process is in.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return math.inf
    found = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += [_version_2(folder) for folder in _with_parents(groups, path)]
        elif "cpu" in controllers.split(","):
            for mount in {controllers, "cpu"}:
                found += [_version_1(folder) for folder in _with_parents(groups / mount, path)]
    return min(found)


def _with_parents(mount: Path, path: str) -> list[Path]:
    """The folder of a group and of all groups around it: each has its own limit."""
    names = Path(path.strip("/")).parts
    return [mount.joinpath(*names[:depth]) for depth in range(len(names) + 1)]


def _version_2(folder: Path) -> float:
    """`cpu.max` holds "QUOTA PERIOD" in microseconds; "max PERIOD" without a limit."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf


def _version_1(folder: Path) -> float:
    """A file each for quota and period; −1 without a limit."""
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else math.inf
    except (OSError, ValueError):
        return math.inf
