"""This machine as the place where runs run: one after another in this process, or several processes at a time."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fairmargin.runtime.signals import Interrupted, stop_requests
from fairmargin.sweep import workers
from fairmargin.sweep.base import Result, Task, refuse_torchrun


@dataclass(frozen=True)
class Local:
    """This machine. One job: in this process. More: so many processes, each with its share of the threads.

    Args:
        retries: of a task whose process is killed.
    """

    jobs: int = 1
    retries: int = 3

    def __post_init__(self) -> None:
        if self.jobs < 1 or self.retries < 0:
            raise ValueError(
                f"jobs must be at least 1 and retries at least 0; got {self.jobs} and {self.retries}"
            )

    @property
    def alone(self) -> bool:
        return self.jobs == 1

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result | Exception]]:
        if not self.alone:
            refuse_torchrun()
            yield from workers.map_tasks(function, tasks, self.jobs, self.retries)
            return
        with stop_requests() as stop:
            for index, task in enumerate(tasks):
                if stop:  # while the one before was being evaluated
                    raise Interrupted(workers.STOPPED, stop.number)
                found: Result | Exception
                try:
                    found = function(task)
                except Interrupted:
                    raise
                except Exception as error:
                    found = error
                yield index, found


HERE = Local()
