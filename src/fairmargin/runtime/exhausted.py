"""Recognize that memory ran out, or that the system killed a process that helps this one.

Libraries say it in many ways. Needs no PyTorch.
"""

import errno
import re
import shlex
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Classes by name: importing them takes seconds, and one that was never imported was never raised.
OF_MEMORY = {"MemoryError", "OutOfMemoryError"}
OF_KILLED = {"BrokenProcessPool", "WorkerKilled"}
# What errors of other classes say when memory ran out.
NO_MEMORY = re.compile(
    r"can't allocate memory|Cannot allocate memory|out of memory|ALLOC_FAILED"
    r"|unable to allocate shared memory|MemoryError",
)
KILLED = re.compile(
    r"DataLoader worker \(pid.{1,200}?\) "
    r"(?:is killed by signal: ([A-Z][\w ]*)|exited unexpectedly)"
)
# How much was asked for: as a number of bytes, or in words.
BYTES = re.compile(r"tried to allocate (\d+) bytes")
SIZE = re.compile(r"(?:Tried|Unable) to allocate ([\d.]+ [KMGTPE]i?B)")
GIB = 1 << 30


class Exhausted(RuntimeError):
    """Memory ran out, or a process was killed; the message says what to do."""


class WorkerKilled(RuntimeError):
    """A process that reads images is gone; nothing is known about why."""


def cause(error: BaseException) -> str | None:
    """Return what ran out or was killed, as the beginning of a sentence; None for other errors.

    Args:
        error: of any kind, also one that a worker process sent.
    """
    text = str(error)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    killed = KILLED.search(text)
    if killed or kinds & OF_KILLED:
        how = f"was ended by the system ({killed[1].strip()})" if killed and killed[1] else "ended"
        return f"a process that reads images {how}, most often because memory ran out"
    no_room = isinstance(error, OSError) and error.errno == errno.ENOMEM
    said = isinstance(error, RuntimeError) and NO_MEMORY.search(text)
    if not (kinds & OF_MEMORY or no_room or said):
        return None
    asked = _asked(text)
    return f"there is not enough memory{f' ({asked} more were needed)' if asked else ''}"


def is_shortage(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, or that a process was killed.

    Args:
        error: of any kind.
    """
    return cause(error) is not None


def advice(error: BaseException) -> str | None:
    """Return a message for a command that trains nothing; None for other errors.

    Args:
        error: of any kind.
    """
    what = cause(error)
    if what is None:
        return None
    return (
        f"{what}. Free some memory or take fewer images at a time; where the command takes --set, "
        "lower train.workers, data.workers, data.memory_limit or evaluate.batch_size"
    )


def release(error: BaseException) -> None:
    """Forget what the functions held in which an error was raised.

    Their memory is free then, and processes that read images for them end. Otherwise another one
    that is killed could raise an error at any place, also after this one was said.

    Args:
        error: that is about to be said.
    """
    seen: BaseException | None = error
    with _deaf_to_children():
        while seen is not None:
            traceback.clear_frames(seen.__traceback__)
            seen = seen.__cause__ or seen.__context__


@contextmanager
def _deaf_to_children() -> Iterator[None]:
    """Let no process that ends raise an error inside, as PyTorch's handler of its signal does."""
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "SIGCHLD"):
        yield
        return
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)


def _asked(text: str) -> str:
    """How much memory was asked for, such as "4.0 GiB"; "" if the error does not say."""
    if found := BYTES.search(text):
        return f"{int(found[1]) / GIB:,.1f} GiB"
    found = SIZE.search(text)
    return found[1] if found else ""


def resume_advice(error: BaseException, folder: Path, step: int, settings: dict[str, int]) -> str:
    """Return the message of a run that ended: what happened, and how it goes on.

    Args:
        error: for which `cause` is not None.
        folder: of the run.
        step: of its newest checkpoint; 0 without one.
        settings: those that need memory, with their values.
    """
    held = ", ".join(f"{name}={value}" for name, value in settings.items())
    again = "give the same command again: nothing was saved yet"
    if step:
        fewer = " --set train.workers=0" if settings.get("train.workers") else ""
        where = shlex.quote(str(folder))
        again = f"continue from step {step} with: fairmargin train --resume {where}{fewer}"
    return (
        f"{cause(error)}, with {held}. Free some memory, and {again}. If that is not enough, begin "
        "in another folder with a smaller train.batch_size"
    )
