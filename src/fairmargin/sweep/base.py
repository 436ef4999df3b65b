"""Where many runs run: one after another in this process, several processes at a time, or the workers of a Ray cluster.

for index, found in Local(jobs=4).map(function, tasks):
    ...  # what function(tasks[index]) returned, or the exception that it raised; in the order in which they finish

A worker that is killed takes nothing else with it: its task begins again, and a run goes on from its own checkpoint.
Who may run when is the business of the operating system, or of Ray.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from fairmargin.runs.folder import RunFolder

Task = TypeVar("Task")
Result = TypeVar("Result")


class Engine(Protocol):
    @property
    def alone(self) -> bool:
        """Whether tasks follow one another in this process; they may then hold what cannot be sent to another."""

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result | Exception]]:
        """(which task, its result or the exception it raised), as they finish. `Interrupted` is raised, not yielded.

        Args:
            function: of a module, unless `alone`: workers import it.
            tasks: each taken when there is somebody to do it; Ray takes all at once.
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
    """As `engine.map`, but only exceptions of the expected kinds are yielded.

    Another is raised: at once by an engine that works alone; else `say` is told what became of the task `called(index)`, the
    rest still finishes, and the one of the first task is raised.
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
    """The folder of many runs, made here, as their workers are to be told of it: wherever they stand."""
    return RunFolder(out if engine.alone else out.absolute()).create().path


def check_shared(out: Path) -> None:
    """Where a run runs: refuse a folder that is not the one `prepare` made, since nobody would find the run in it."""
    if not out.is_dir():
        raise ValueError(
            f"{out} is not there on a worker's machine; with --engine ray choose an --out on storage that all machines share"
        )


def refuse_torchrun() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "torchrun gives several processes to each run, and here each process has a run of its own; leave one of the two "
            "out: torchrun, or --jobs and --engine"
        )
