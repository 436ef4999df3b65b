"""The workers of a Ray cluster as the place where runs run."""

import importlib
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
from fairmargin.runtime import threads
from fairmargin.runtime.signals import Interrupted, stop_requests
from fairmargin.sweep import workers
from fairmargin.sweep.base import Result, Task, refuse_torchrun

LEASE = (
    120.0  # seconds for which a network file system may hold the locks of a machine that is gone
)


@dataclass(frozen=True)
class Ray:
    """A cluster: the one at `address` (or in $RAY_ADDRESS), one this process is connected to, or else a new one on this
    machine, which ends with the tasks.

    Args:
        cpus: that each task declares; as many threads as it uses.
        gpus: likewise, and a task sees no others. 0.5: two tasks share one.
        retries: of a task whose worker or machine is lost.
    """

    address: str | None = None
    cpus: int = 1
    gpus: float = 0
    retries: int = 3

    def __post_init__(self) -> None:
        if self.cpus < 1 or self.gpus < 0 or self.retries < 0:
            raise ValueError(
                f"cpus must be at least 1, gpus and retries at least 0; got {self.cpus}, {self.gpus} and {self.retries}"
            )

    @property
    def alone(self) -> bool:
        return False

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result | Exception]]:
        refuse_torchrun()
        ray = import_ray()
        with (
            self._cluster(ray),
            stop_requests() as stop,
        ):  # in this order: Ray has a handler of its own for SIGTERM
            begin = ray.remote(
                num_cpus=self.cpus,
                num_gpus=self.gpus,
                max_retries=self.retries,
                retry_exceptions=[
                    Interrupted
                ],  # a machine that is taken away asks its workers to stop
                runtime_env={"env_vars": _variables()},
            )(_serve).options(name="run")
            here = Path.cwd()
            pending = {
                begin.remote(function, task, here, self.cpus, self.gpus): i
                for i, task in enumerate(tasks)
            }
            told = unfinished = False
            while pending:
                if stop and not told:
                    told = True
                    for reference in pending:
                        ray.cancel(reference)  # as Ctrl-C: the run saves and stops
                for reference in ray.wait(list(pending), timeout=workers.POLL)[0]:
                    index, found = pending.pop(reference), _fetched(ray, reference)
                    if stop and isinstance(found, ChildProcessError):
                        unfinished = True
                    else:
                        yield index, found
            if unfinished:
                raise Interrupted(workers.STOPPED, stop.number)

    @contextmanager
    def _cluster(self, ray: Any) -> Iterator[None]:
        """Leave a connection that was there as it is; end one that was not."""
        if ray.is_initialized():
            yield
            return
        address = self.address or os.environ.get("RAY_ADDRESS")
        options = {} if address else {"include_dashboard": False}
        handler = signal.getsignal(signal.SIGTERM)
        try:
            _knock(address or "")
            ray.init(address or "local", logging_level=logging.WARNING, **options)
        except OSError as error:
            if not address:
                raise
            raise ValueError(
                f'there is no Ray cluster at {address} that takes us in ({error}); start one with "ray start --head", set '
                "RAY_AUTH_MODE=token if it asks for a token, or leave --address out to use this machine"
            ) from error
        try:
            if not address:
                self._check_resources(ray.cluster_resources())
            yield
        finally:
            ray.shutdown()
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)

    def _check_resources(self, there: dict[str, float]) -> None:
        """Ray would wait for more machines, and there will be none."""
        cpus, gpus = there.get("CPU", 0), there.get("GPU", 0)
        if self.cpus > cpus or self.gpus > gpus:
            raise ValueError(
                f"each run declares {self.cpus} CPUs and {self.gpus:g} GPUs, and this machine has {cpus:g} and {gpus:g}; "
                "lower --cpus or --gpus, or give the --address of a cluster"
            )


def import_ray() -> Any:
    # Lines of different runs differ in their numbers alone, which Ray would count as repetitions. And runs are private.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ValueError(
            '--engine ray needs an extra package: pip install "fairmargin[ray]"'
        ) from error


def _knock(address: str) -> None:
    """Ray itself would try for many minutes to reach a machine where nobody answers."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if port.isdecimal():  # unlike "auto"
        socket.create_connection((host, int(port)), timeout=10).close()


def _variables() -> dict[str, str]:
    """Of the environment, what a worker on another machine has to know."""
    return (
        {VARIABLE: str(Path(root).expanduser().absolute())}
        if (root := os.environ.get(VARIABLE))
        else {}
    )


def _serve(function: Callable[[Any], Any], task: Any, here: Path, cpus: int, gpus: float) -> Any:
    """One task in a worker of Ray."""
    if here.is_dir():
        os.chdir(here)  # so that relative paths mean what they mean to whoever gave them
    if gpus == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
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
            time.sleep(1)  # a retry may come before the lock of the lost worker is gone


def _fetched(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except (Interrupted, ray.exceptions.RayError) as error:
        why = str(error).strip().splitlines()
        return ChildProcessError(
            f"a worker of Ray was lost ({why[-1] if why else type(error).__name__}); {workers.LOST}"
        )
