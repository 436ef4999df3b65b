"""Processes of this machine that run tasks, several at a time.

A process that is killed is replaced, and its task begins again. The standard library's pool cannot
do this: when one of its processes dies, it gives up the tasks of all.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from fairmargin.runs import progress
from fairmargin.runtime import terminal, threads
from fairmargin.runtime.safe_path import safe_path
from fairmargin.runtime.signals import Interrupted, stop_requests

# Seconds until a request to stop is noticed.
POLL = 0.2
# Stands for a worker's first message.
READY = object()
STOPPED = "stopped; what was under way is saved, and the same command goes on from there"
LOST = "what is done is kept, and the same command goes on from there"

# The number of a task, and the task with its function as bytes.
Item = tuple[int, bytes]


class Ended(ChildProcessError):
    """A worker has ended.

    Args:
        killed: by a signal, such as the kernel's when memory runs out; else it exited by itself.
    """

    def __init__(self, message: str, killed: bool) -> None:
        super().__init__(message)
        self.killed = killed


def map_tasks(
    function: Callable[[Any], Any], tasks: Iterable[Any], jobs: int, retries: int
) -> Iterator[tuple[int, Any]]:
    """Yield (number of a task, its result or its exception) as tasks finish.

    A task is taken when there is a worker for it. After Ctrl-C or SIGTERM all workers save and end,
    and then `Interrupted` is raised. A second Ctrl-C does not wait for them.

    Args:
        jobs: how many workers there are.
        retries: how often a task whose worker is killed begins again.
    """
    new = ((number, _packed(function, task)) for number, task in enumerate(tasks))
    # Begun and not finished.
    again: list[Item] = []
    attempts: Counter[int] = Counter()
    crew: list[_Worker] = []
    told = False
    with stop_requests() as stop:

        def next_item() -> Item | None:
            if stop:
                return None
            return again.pop() if again else next(new, None)

        try:
            while True:
                while len(crew) < jobs and (item := next_item()) is not None:
                    crew.append(_Worker.start(item, max(1, torch.get_num_threads() // jobs)))
                if not crew:
                    break
                if stop and not told:
                    told = True
                    for worker in crew:
                        worker.process.terminate()
                for worker in _with_news(crew):
                    number = worker.item[0]
                    found = worker.receive()
                    if found is READY and not stop:
                        worker.send(worker.item)
                    elif found is READY or (stop and isinstance(found, Ended | Interrupted)):
                        worker.dismiss(crew)
                        again.append(worker.item)
                    elif isinstance(found, Ended | Interrupted):
                        worker.dismiss(crew)
                        attempts[number] += 1
                        if _is_retried(found) and attempts[number] <= retries:
                            print(f"{found}; its task begins again", file=sys.stderr, flush=True)
                            again.append(worker.item)
                        else:
                            message = f"{found} (attempt {attempts[number]}); {LOST}"
                            yield number, ChildProcessError(message)
                    else:
                        item = next_item()
                        if item is not None:
                            worker.send(item)
                        else:
                            worker.dismiss(crew)
                        yield number, found
        finally:
            for worker in crew:
                worker.process.kill()
                worker.process.join()
        if again or (stop and next(new, None) is not None):
            raise Interrupted(STOPPED, stop.number)


def _is_retried(found: Ended | Interrupted) -> bool:
    """Whether another attempt may succeed.

    A worker that exits by itself would do so again. One that was killed or asked to stop had to
    make room for something else.
    """
    return isinstance(found, Interrupted) or found.killed


@dataclass
class _Worker:
    process: SpawnProcess
    # A connection.Connection, or another type on other systems.
    pipe: Any
    item: Item
    ready: bool = False

    @staticmethod
    def start(item: Item, threads_each: int) -> "_Worker":
        """Start a process for this item. It gets the item when it says that it is ready.

        It is spawned, not forked: a copy of a process that has threads may hang.
        """
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, threads_each))
        with _ctrl_c_blocked(), safe_path():
            process.start()
        # When the worker's own copy of its end is closed too, the worker is known to be dead.
        theirs.close()
        return _Worker(process, ours, item)

    def send(self, item: Item) -> None:
        """Give the worker a task."""
        self.item = item
        # If it has died, `receive` will notice.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send_bytes(item[1])

    def receive(self) -> Any:
        """Return `READY`, the result or exception of its task, or how the worker ended."""
        try:
            found = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return self._end()
        if not self.ready:
            self.ready = True
            return READY
        return found

    def _end(self) -> Ended:
        self.process.join()
        code = self.process.exitcode or 0
        if code < 0:
            hint = " (out of memory? Fewer jobs need less)" if code == -signal.SIGKILL else ""
            return Ended(f"a worker was ended by {signal.Signals(-code).name}{hint}", killed=True)
        if self.ready:
            return Ended(
                f"a worker ended by itself in the middle of its task, with exit code {code}",
                killed=False,
            )
        raise ChildProcessError(
            f"a worker ended before it began (exit code {code}) and printed why above. If a script "
            'calls this, the call must stand under: if __name__ == "__main__":'
        )

    def dismiss(self, crew: list["_Worker"]) -> None:
        """Remove the worker from the crew and wait until its process has ended."""
        crew.remove(self)
        self.pipe.close()
        self.process.join()


def _packed(function: Callable[[Any], Any], task: Any) -> bytes:
    try:
        return pickle.dumps((function, task))
    # AttributeError, TypeError, PicklingError, …
    except Exception as error:
        raise TypeError(
            f"this task cannot be sent to another process ({error}); give functions and classes "
            "of a module, not lambdas or local ones, or run it in this process: jobs=1"
        ) from error


def _with_news(crew: list[_Worker]) -> list[_Worker]:
    """Wait for a moment, and return the workers that sent something or ended."""
    pipes = connection.wait([worker.pipe for worker in crew], POLL)
    return [worker for worker in crew if worker.pipe in pipes]


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Processes started in here ignore the terminal's Ctrl-C, which goes to all processes.

    The main process asks its workers to stop instead, once.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Any, threads_each: int) -> None:
    """Run one task after another, in a worker, until there are no more."""
    terminal.guard()
    progress.share_the_terminal()
    threads.use(threads_each)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with stop_requests(), suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send(None)
        while True:
            function, task = pipe.recv()
            pipe.send(answer(function, task))


def _end_with_parent() -> None:
    """Save and stop when the parent is gone, since nothing would receive the result."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def answer(function: Callable[[Any], Any], task: Any) -> Any:
    """Return function(task), or the exception that it raised, as one that can be pickled.

    Args:
        function: run in this process.
        task: its one argument.
    """
    try:
        return function(task)
    except Exception as error:
        return portable(error)


def portable(error: Exception) -> Exception:
    """Return an exception that can be sent to another process, with the traceback as a note.

    It is the error itself if that can be pickled, else its nearest base class with the same
    message.
    """
    trace = "".join(traceback.format_exception(error))
    for kind in type(error).__mro__:
        try:
            sent = error if kind is type(error) else kind(str(error))
            pickle.loads(pickle.dumps(sent))
        except Exception:
            continue
        break
    sent.add_note(f"\nin the worker:\n{trace}")
    return sent
