"""Keep each of several test processes to one thread; run tests one after another with -n 0."""

import os
from collections import Counter

if "PYTEST_XDIST_WORKER" in os.environ:
    # PyTorch reads this when it is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Ray reads these once in a process, when it is imported. A test that gives an address leaves them
# unset, and those after it could start no cluster of their own in that process.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

import pytest


@pytest.fixture(autouse=True, scope="session")
def _digests_elsewhere(tmp_path_factory):
    """Keep what tests know of files out of the user's cache."""
    os.environ["FAIRMARGIN_DIGESTS"] = str(tmp_path_factory.mktemp("digests"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: many tests wait for processes that they start."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long, so that no process is left with one at the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])
