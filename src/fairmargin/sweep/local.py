"""Run tasks on this machine: one after another in this process, or in several processes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fairmargin.runtime.signals import Interrupted, stop_requests
from fairmargin.sweep import workers
from fairmargin.sweep.base import Result, Task, refuse_torchrun


@dataclass(frozen=True)
class Local:
    """This machine.

    Args:
        jobs: how many tasks run at a time. One runs in this process; more run in processes of
            their own, each with its share of the threads.
        retries: how often a task whose process is killed begins again.
    """

    jobs: int = 1
    retries: int = 3

    def __post_init__(self) -> None:
        if self.jobs < 1 or self.retries < 0:
            raise ValueError(
                "jobs must be at least 1 and retries at least 0; "
                f"got {self.jobs} and {self.retries}"
            )

    @property
    def alone(self) -> bool:
        """True for one job."""
        return self.jobs == 1

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result | Exception]]:
        """See `Engine.map`."""
        if not self.alone:
            refuse_torchrun()
            yield from workers.map_tasks(function, tasks, self.jobs, self.retries)
            return
        with stop_requests() as stop:
            for index, task in enumerate(tasks):
                if stop:
                    # Requested while the run before was being evaluated.
                    raise Interrupted(workers.STOPPED, stop.number)
                found: Result | Exception
                try:
                    found = function(task)
                except Interrupted:
                    raise
                except Exception as error:
                    found = error
                yield index, found


# One task after another in this process.
HERE = Local()
