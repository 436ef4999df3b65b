"""Run one command inside this process, and tell how it ended.

A case must end by itself: with exit code 0, or with one of the documented codes and a message.
A traceback, more processor time than a case may take, and a write outside of the case's folder
are failures.
"""

import io
import os
import resource
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

# Seconds of processor time: the slowest good case takes about a tenth of it.
CASE_SECONDS = 40.0
# Bytes of addresses that a fuzzing process may use beyond what it has at the start.
ADDRESSES = 6 << 30
# 1: a check that does not hold, 3: training diverged.
EXIT_CODES = (0, 1, 2, 3)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of sys.addaudithook, and which of their arguments are paths that change.
CHANGES = {
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.symlink": (1,),
    "os.link": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "shutil.rmtree": (0,),
}


class Hang(BaseException):
    """A case took more processor time than any case should; no handler of errors catches it."""


@dataclass(frozen=True)
class Outcome:
    """How a case ended.

    Args:
        code: its exit code; None if it has none.
        output: what it printed.
        failure: what is wrong, on one line; empty if nothing is.
        trace: the traceback, if there is one.
    """

    code: int | None
    output: str = ""
    failure: str = ""
    trace: str = ""


@dataclass
class _Watch:
    """The folder that may be written to now, and what was written elsewhere."""

    inside: str = ""
    outside: list[str] = field(default_factory=list)


_watch = _Watch()
_hooked = False


def prepare() -> None:
    """Limit this process: no network, bounded addresses, and writes are watched."""
    global _hooked
    if _hooked:
        return
    _hooked = True
    sys.addaudithook(_see)


def limit_memory() -> None:
    """Let a process that runs nothing but cases fail where it would otherwise take all memory."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESSES, used + ADDRESSES))


def _see(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watch.inside:
        return
    paths: list[Any] = []
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
        paths = [arguments[0]]
    elif event in CHANGES:
        paths = [arguments[place] for place in CHANGES[event]]
    for path in paths:
        if isinstance(path, str | bytes | os.PathLike) and not _allowed(os.fsdecode(path)):
            _watch.outside.append(f"{event} {os.fsdecode(path)}")


def _allowed(path: str) -> bool:
    real = os.path.realpath(path)
    within = real == _watch.inside or real.startswith(_watch.inside + os.sep)
    return within or real.startswith("/dev/") or "__pycache__" in real


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder, with home, caches and temporary files in it, and without a network."""
    before = dict(os.environ)
    here = os.getcwd()
    connect, temporary = socket.socket.connect, tempfile.tempdir
    homes = {"HOME": folder, "XDG_CACHE_HOME": folder / "cache", "TMPDIR": folder / "tmp"}
    (folder / "tmp").mkdir(exist_ok=True)
    os.environ.update({name: str(path) for name, path in homes.items()})
    os.environ["FAIRMARGIN_DATA"] = str(folder / "data")
    tempfile.tempdir = str(folder / "tmp")
    os.chdir(folder)

    def refuse(*arguments: Any) -> None:
        raise OSError("no network here")

    socket.socket.connect = refuse  # type: ignore[method-assign, assignment]
    _watch.inside, _watch.outside = str(folder.resolve()), []
    try:
        yield
    finally:
        _watch.inside = ""
        socket.socket.connect = connect  # type: ignore[method-assign]
        tempfile.tempdir = temporary
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def end(number: int, frame: Any) -> None:
        raise Hang

    old = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def run(trial: Sequence[str] | Callable[[], None], folder: Path) -> Outcome:
    """Run a command, or a function that may raise what a command turns into a message.

    Args:
        trial: words after "fairmargin", or a function.
        folder: the only place where anything may be written; it is the working folder.
    """
    prepare()
    # As Python opens them: what stdout cannot encode is an error, stderr writes it with escapes.
    buffer = io.BytesIO()
    printed = io.TextIOWrapper(buffer, "utf-8", write_through=True)
    said = io.TextIOWrapper(buffer, "utf-8", errors="backslashreplace", write_through=True)
    code, failure, trace = 0, "", ""
    with _inside(folder), redirect_stdout(printed), redirect_stderr(said):
        try:
            with _time_limit(CASE_SECONDS):
                code = _called(trial)
        except Hang:
            code, failure, trace = -1, "hang", traceback.format_exc()
        # Also what is no Exception: nothing may leave a command but its exit code.
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            code, trace = -1, traceback.format_exc()
            failure = f"traceback: {type(error).__name__}: {str(error)[:200]}"
        outside = list(_watch.outside)
    output = buffer.getvalue().decode("utf-8", "replace")
    if not failure and outside:
        failure = f"wrote outside of its folder: {outside[0]}"
    if not failure and "Traceback (most recent call last)" in output:
        failure, trace = "traceback in the output", output
    if not failure and code not in EXIT_CODES and code < 128:
        failure = f"exit code {code}"
    if not failure and code == 2 and not output.strip():
        failure = "exit code 2 without a message"
    return Outcome(code, output, failure, trace)


def _called(trial: Sequence[str] | Callable[[], None]) -> int:
    from fairmargin.cli.app import app
    from fairmargin.cli.errors import exit_on_user_error

    try:
        if callable(trial):
            try:
                with exit_on_user_error():
                    trial()
            except typer.Exit as end:
                return end.exit_code
            return 0
        sys.argv[1:], before = list(trial), sys.argv[1:]
        try:
            # As a command, but errors that are not turned to a message come out here.
            command = typer.main.get_command(app)
            command(list(trial), prog_name="fairmargin")
        finally:
            sys.argv[1:] = before
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0
