"""Run tasks on the workers of a Ray cluster."""

import importlib
import ipaddress
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairmargin.data.sources import VARIABLE
from fairmargin.runs import progress
from fairmargin.runs.folder import Locked
from fairmargin.runtime import terminal, threads
from fairmargin.runtime.limits import ARRAYS, IMAGE
from fairmargin.runtime.signals import Interrupted, stop_requests
from fairmargin.sweep import workers
from fairmargin.sweep.base import Result, Task, refuse_torchrun

# Seconds for which a network file system may keep the locks of a machine that is gone.
LEASE = 120.0
# The first version whose clusters on one machine ask for a token by default (docs/decisions.md).
OLDEST = (2, 59)
# The switch by which Ray, on any system, stays on the loopback interface. It is read when Ray is
# imported, and its name is about the systems where that is the default.
SEVERAL_MACHINES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@dataclass(frozen=True)
class Ray:
    """A Ray cluster.

    If this process is already connected to a cluster, that one is used.

    Args:
        address: of the cluster; $RAY_ADDRESS by default. Without both, a cluster is started on this
            machine and ended after the tasks. It listens to this machine alone, and asks for a
            token.
        cpus: CPUs that each task declares, and threads that it uses.
        gpus: GPUs that each task declares; it sees no others. With 0.5, two tasks share one.
        retries: how often a task whose worker or machine is lost begins again.
    """

    address: str | None = None
    cpus: int = 1
    gpus: float = 0
    retries: int = 3

    def __post_init__(self) -> None:
        if self.cpus < 1 or self.gpus < 0 or self.retries < 0:
            raise ValueError(
                "cpus must be at least 1, gpus and retries at least 0; "
                f"got {self.cpus}, {self.gpus} and {self.retries}"
            )

    @property
    def alone(self) -> bool:
        """False: tasks are sent to workers."""
        return False

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result | Exception]]:
        """See `Engine.map`."""
        refuse_torchrun()
        ray = import_ray(self.address)
        # In this order, because Ray installs a handler of its own for SIGTERM.
        with self._cluster(ray), stop_requests() as stop:
            start = self._remote_function(ray)
            here = Path.cwd()
            pending = {}
            for index, task in enumerate(tasks):
                pending[start.remote(function, task, here, self.cpus, self.gpus)] = index
            told = unfinished = False
            while pending:
                if stop and not told:
                    told = True
                    for reference in pending:
                        # As Ctrl-C does: the run saves and stops.
                        ray.cancel(reference)
                ready, _ = ray.wait(list(pending), timeout=workers.POLL)
                for reference in ready:
                    index = pending.pop(reference)
                    found = _fetched(ray, reference)
                    if stop and isinstance(found, ChildProcessError):
                        unfinished = True
                    else:
                        yield index, found
            if unfinished:
                raise Interrupted(workers.STOPPED, stop.number)

    def _remote_function(self, ray: Any) -> Any:
        options = ray.remote(
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            max_retries=self.retries,
            # A machine that is taken away asks its workers to stop.
            retry_exceptions=[Interrupted],
            runtime_env={"env_vars": _variables()},
        )
        return options(_serve).options(name="run")

    @contextmanager
    def _cluster(self, ray: Any) -> Iterator[None]:
        """Connect to the cluster, and disconnect afterwards; use a connection that exists."""
        if ray.is_initialized():
            yield
            return
        address = _address(self.address)
        options = {} if address else {"include_dashboard": False}
        handler = signal.getsignal(signal.SIGTERM)
        try:
            _check_reachable(address or "")
            ray.init(address or "local", logging_level=logging.WARNING, **options)
        except OSError as error:
            if not address:
                raise
            raise ValueError(
                f"there is no Ray cluster at {address} that accepts this connection ({error}); "
                'start one with "ray start --head", set RAY_AUTH_MODE=token if it asks for a '
                "token, or leave --address out to use this machine"
            ) from error
        try:
            if not address:
                _check_loopback(ray.util.get_node_ip_address())
                self._check_resources(ray.cluster_resources())
            yield
        finally:
            ray.shutdown()
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)

    def _check_resources(self, there: dict[str, float]) -> None:
        """Raise ValueError if a run needs more than this machine has: Ray would wait forever."""
        cpus, gpus = there.get("CPU", 0), there.get("GPU", 0)
        if self.cpus > cpus or self.gpus > gpus:
            raise ValueError(
                f"each run declares {self.cpus} CPUs and {self.gpus:g} GPUs, and this machine has "
                f"{cpus:g} and {gpus:g}; lower --cpus or --gpus, or give the --address of a cluster"
            )


def import_ray(address: str | None = None) -> Any:
    """Return the module `ray`, or raise ValueError that says how to install it.

    Args:
        address: as in `Ray`. Without one, clusters of this process are for this machine alone.
    """
    if not _address(address):
        os.environ.setdefault(SEVERAL_MACHINES, "0")
        # The default, said so that Ray does not warn of it.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    # Lines of different runs often differ in their numbers alone, and Ray would drop them as
    # repetitions.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    # Runs are private.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Its colours would be shown as control characters.
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise ValueError(
            '--engine ray needs an extra package: pip install "fairmargin[ray]"'
        ) from error
    _check_version(ray.__version__)
    return ray


def _address(given: str | None) -> str | None:
    return given or os.environ.get("RAY_ADDRESS") or None


def _check_version(version: str) -> None:
    """Raise ValueError for a Ray whose clusters let everybody in by default."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ValueError(
            f"Ray {version} starts clusters that ask for no token; FairMargin needs {oldest} or "
            'newer: pip install --upgrade "fairmargin[ray]"'
        )


def _check_loopback(host: str) -> None:
    """Raise ValueError if a cluster that was started here can be reached from other machines."""
    if not ipaddress.ip_address(host).is_loopback:
        raise ValueError(
            f"Ray listens on {host}, where other machines can reach it, because it was imported "
            f"first or {SEVERAL_MACHINES} is set; set {SEVERAL_MACHINES}=0, or start a cluster "
            "yourself and give its --address"
        )


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing answers at HOST:PORT. Ray itself would try for many minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    # Addresses such as "auto" have no port.
    if port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _variables() -> dict[str, str]:
    """The environment variables that a worker on another machine needs."""
    found = {name: os.environ[name] for name, _ in (ARRAYS, IMAGE) if os.environ.get(name)}
    root = os.environ.get(VARIABLE)
    if root:
        found[VARIABLE] = str(Path(root).expanduser().absolute())
    return found


def _serve(function: Callable[[Any], Any], task: Any, here: Path, cpus: int, gpus: float) -> Any:
    """Run one task in a worker of Ray."""
    if here.is_dir():
        # So that relative paths mean the same as in the process that gave them.
        os.chdir(here)
    if gpus == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    terminal.guard()
    progress.share_the_terminal()
    threads.use(cpus)
    with stop_requests() as stop:
        deadline = time.monotonic() + LEASE
        while True:
            found = workers.answer(function, task)
            if isinstance(found, Interrupted):
                raise found
            if not isinstance(found, Locked) or stop or time.monotonic() > deadline:
                return found
            # A retry may come before the lock of the lost worker is gone.
            time.sleep(1)


def _fetched(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except (Interrupted, ray.exceptions.RayError) as error:
        message = str(error).strip() or type(error).__name__
        why = message.splitlines()[-1]
        return ChildProcessError(f"a worker of Ray was lost ({why}); {workers.LOST}")
