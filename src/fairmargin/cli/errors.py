"""End a command that cannot go on: one message, no traceback, an exit code for each kind."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairmargin.runtime.exhausted import Exhausted, advice, release

if TYPE_CHECKING:
    from fairmargin.data.problems import BadManifest

# Exit codes. A run that a signal stopped ends with SIGNAL plus the signal's number.
WRONG_INPUT = 2
DIVERGED = 3
# Something outside ended the command: no memory, a process that was killed or does not answer.
LOST = 4
SIGNAL = 128


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Turn errors that a person can put right into one message and an exit code.

    Other errors keep their traceback.
    """
    try:
        yield
    except (BrokenPipeError, typer.Exit):
        # A broken pipe, as with "| head", is not an error.
        raise
    except Exception as error:
        found = _explained(error)
        if found is None:
            raise
        message, code = found
        typer.echo(message, err=True)
        raise typer.Exit(code) from error


def _explained(error: Exception) -> tuple[str, int] | None:
    """Return (message, exit code) of an error that a person can put right; None for others."""
    # An error whose module was never loaded cannot be one of that module's, and loading them
    # takes seconds.
    interrupted = _loaded("fairmargin.runtime.signals", "Interrupted")
    diverged = _loaded("fairmargin.loop", "Diverged")
    bad_manifest = _loaded("fairmargin.data.problems", "BadManifest")
    rank_lost = _loaded("fairmargin.runtime.waiting", "RankLostError")
    if isinstance(error, interrupted):
        return str(error), SIGNAL + error.number
    if isinstance(error, diverged):
        return f"training diverged. {error}", DIVERGED
    if isinstance(error, (Exhausted, rank_lost)):
        return str(error), LOST
    if shortage := advice(error):
        release(error)
        return shortage, LOST
    if isinstance(error, bad_manifest):
        return _listed(error), WRONG_INPUT
    if isinstance(error, OSError):
        return _plain(error), WRONG_INPUT
    if isinstance(error, ValueError):
        return str(error), WRONG_INPUT
    return None


def _plain(error: OSError) -> str:
    """Return what the system says without its number, after the file that it is about."""
    said = str(error)
    if not said.startswith("[Errno"):
        return said
    # Of a rename, the second name is the one that people know.
    file = error.filename2 or error.filename
    return f"{error.strerror}" if file is None else f"{_text(file)}: {error.strerror}"


def _text(file: Any) -> str:
    return file.decode("utf-8", "backslashreplace") if isinstance(file, bytes) else str(file)


def _loaded(module: str, name: str) -> Any:
    """Return a class of a module, or () if the module was not imported: nothing is of it."""
    return getattr(sys.modules.get(module), name, ())


def _listed(error: "BadManifest") -> str:
    """Return the message; if it cannot show every problem, write all into a file and name it."""
    if not error.shortened:
        return error.report()
    file = Path(f"{Path(error.source).stem}-problems.csv")
    try:
        error.write_problems(file)
    except OSError as failure:
        return f"{error.report()}\n  (the whole list cannot be written here: {failure})"
    return error.report(file)
