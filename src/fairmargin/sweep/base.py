"""Where many runs run: in this process, in several processes, or on the workers of a Ray cluster.

for index, found in Local(jobs=4).map(function, tasks):
    ...  # what function(tasks[index]) returned or raised, in the order in which tasks finish

A worker that is killed harms no other: its task begins again, and a run continues from its own
checkpoint. Scheduling is left to the operating system, or to Ray.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from fairmargin.runs.folder import RunFolder

Task = TypeVar("Task")
Result = TypeVar("Result")


class Engine(Protocol):
    """Something that runs many tasks."""

    @property
    def alone(self) -> bool:
        """True if tasks run one after another in this process.

        They may then hold what cannot be sent to another process.
        """

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result | Exception]]:
        """Yield (index of a task, its result or the exception it raised) as tasks finish.

        `Interrupted` is raised, not yielded.

        Args:
            function: defined in a module, unless `alone`, because workers import it.
            tasks: each is taken when something is free to run it; Ray takes all at once.
        """


def run_tasks(
    engine: Engine,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    expected: tuple[type[Exception], ...] = (),
    say: Callable[[str], None] = lambda text: None,
    called: Callable[[int], str] = "task {}".format,
) -> Iterator[tuple[int, Result | Exception]]:
    """Yield as `engine.map` does, but raise exceptions that are not expected.

    An engine that works alone raises such an exception at once. With others, all remaining tasks
    still finish; then the exception of the first failed task is raised.

    Args:
        expected: kinds of exceptions that are yielded like results.
        say: told of each task that failed unexpectedly while others go on.
        called: the name of the task with this index, for `say`.
    """
    failed: dict[int, Exception] = {}
    for index, found in engine.map(function, tasks):
        if not isinstance(found, Exception) or isinstance(found, expected):
            yield index, found
        elif engine.alone:
            raise found
        else:
            failed[index] = found
            say(f"{called(index)} failed, the others go on: {found}")
    if failed:
        raise failed[min(failed)]


def prepare(engine: Engine, out: Path) -> Path:
    """Make the folder of many runs and return its path as workers need it.

    The path is absolute unless the engine works alone, because workers may have another working
    directory.

    Args:
        out: the folder of all runs; made if it does not exist.
    """
    folder = out if engine.alone else out.absolute()
    return RunFolder(folder).create().path


def check_shared(out: Path) -> None:
    """Raise ValueError if a worker does not see the folder that `prepare` made.

    Runs that are written into another folder would not be found.

    Args:
        out: what `prepare` returned, on the machine of a worker.
    """
    if not out.is_dir():
        raise ValueError(
            f"{out} does not exist on a worker's machine; "
            "with --engine ray choose an --out on storage that all machines share"
        )


def refuse_torchrun() -> None:
    """Raise ValueError under torchrun, which gives several processes to one run."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "torchrun gives several processes to each run, and here each process has a run of its "
            "own; leave one of the two out: torchrun, or --jobs and --engine"
        )
