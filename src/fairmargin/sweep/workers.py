"""Processes of this machine that do tasks, some at a time. One that is killed is replaced, and its task begins again.

The standard library's pool cannot do this: when one of its processes dies it gives up the tasks of all.
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
from fairmargin.runtime import threads
from fairmargin.runtime.signals import Interrupted, stop_requests

POLL = 0.2  # seconds until a request to stop is heard
READY = object()  # a worker's first message
STOPPED = "stopped; what was under way is saved, and the same command goes on from there"
LOST = "what is done is kept, and the same command goes on from there"

Item = tuple[int, bytes]  # the number of a task, and how it is sent


class Ended(ChildProcessError):
    """A worker is no more. Killed: by a signal, such as the kernel's when memory runs out."""

    def __init__(self, message: str, killed: bool) -> None:
        super().__init__(message)
        self.killed = killed


def map_tasks(
    function: Callable[[Any], Any], tasks: Iterable[Any], jobs: int, retries: int
) -> Iterator[tuple[int, Any]]:
    """(number of a task, its result or its exception), as they finish; a task is taken when there is a worker for it.

    After Ctrl-C or SIGTERM all workers save and end, then `Interrupted` is raised. A second Ctrl-C does not wait for them.
    """
    new = ((number, _packed(function, task)) for number, task in enumerate(tasks))
    again: list[Item] = []  # begun and not finished
    attempts: Counter[int] = Counter()
    crew: list[_Worker] = []
    told = False
    with stop_requests() as stop:
        following = lambda: None if stop else again.pop() if again else next(new, None)
        try:
            while True:
                while len(crew) < jobs and (item := following()) is not None:
                    crew.append(_Worker.hire(item, max(1, torch.get_num_threads() // jobs)))
                if not crew:
                    break
                if stop and not told:
                    told = True
                    for worker in crew:
                        worker.process.terminate()
                for worker in _speaking(crew):
                    number, found = worker.item[0], worker.hear()
                    if found is READY and not stop:
                        worker.give(worker.item)
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
                            yield (
                                number,
                                ChildProcessError(f"{found} (attempt {attempts[number]}); {LOST}"),
                            )
                    else:
                        if (item := following()) is not None:
                            worker.give(item)
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
    """Whoever ends by itself would do so again. (Interrupted: by somebody else, who wanted the memory or the machine.)"""
    return isinstance(found, Interrupted) or found.killed


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Any  # connection.Connection, of other types on other systems
    item: Item
    ready: bool = False

    @staticmethod
    def hire(item: Item, threads_each: int) -> "_Worker":
        """Spawned, not forked: a copy of a process with threads of its own may hang."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, threads_each))
        with _ctrl_c_is_ours():
            process.start()
        theirs.close()  # with the worker's end closed too, it is known to be dead
        return _Worker(process, ours, item)

    def give(self, item: Item) -> None:
        self.item = item
        with suppress(
            BrokenPipeError, ConnectionResetError
        ):  # it has died, which is going to be heard
            self.pipe.send_bytes(item[1])

    def hear(self) -> Any:
        """`READY`, what came of its task, or how it ended."""
        try:
            found = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return self._end()
        first, self.ready = not self.ready, True
        return READY if first else found

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
            f"a worker ended before it began (exit code {code}), and said why above. Is this called by a script? What starts "
            'processes belongs under: if __name__ == "__main__":'
        )

    def dismiss(self, crew: list["_Worker"]) -> None:
        crew.remove(self)
        self.pipe.close()
        self.process.join()


def _packed(function: Callable[[Any], Any], task: Any) -> bytes:
    try:
        return pickle.dumps((function, task))
    except Exception as error:  # AttributeError, TypeError, PicklingError, …
        raise TypeError(
            f"this task cannot be sent to another process ({error}); give functions and classes of a module, not lambdas or "
            "local ones, or do it in this process: jobs=1"
        ) from error


def _speaking(crew: list[_Worker]) -> list[_Worker]:
    """Those with something to hear, after a moment at the latest."""
    pipes = connection.wait([worker.pipe for worker in crew], POLL)
    return [worker for worker in crew if worker.pipe in pipes]


@contextmanager
def _ctrl_c_is_ours() -> Iterator[None]:
    """What is started in here does not hear the terminal's Ctrl-C, which goes to all processes: we pass it on, once."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Any, threads_each: int) -> None:
    """What a worker does: one task after another, until there are no more."""
    progress.share_the_terminal()
    threads.use(threads_each)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with stop_requests(), suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send(None)
        while True:
            function, task = pipe.recv()
            pipe.send(answer(function, task))


def _end_with_parent() -> None:
    """Without its parent nobody would hear of the result: save and stop."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def answer(function: Callable[[Any], Any], task: Any) -> Any:
    """What came of it: the result, or an exception that can leave this process."""
    try:
        return function(task)
    except Exception as error:
        return portable(error)


def portable(error: Exception) -> Exception:
    """Itself if it survives the way to another process, else its nearest kind that does, with the same words."""
    told = "".join(traceback.format_exception(error))
    for kind in type(error).__mro__:
        try:
            sent = error if kind is type(error) else kind(str(error))
            pickle.loads(pickle.dumps(sent))
        except Exception:
            continue
        break
    sent.add_note(f"\nin the worker:\n{told}")
    return sent
