"""How a command ends when it cannot go on."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

WRONG_INPUT, DIVERGED, SIGNAL = (
    2,
    3,
    128,
)  # exit codes; SIGNAL plus the number of the one that stopped a run


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """What a person can put right is said in one message, without a traceback, with an exit code of its own kind."""
    from fairmargin.data.table import BadManifest
    from fairmargin.loop import Diverged
    from fairmargin.runtime.signals import Interrupted

    try:
        yield
    except Interrupted as stop:
        typer.echo(str(stop), err=True)
        raise typer.Exit(SIGNAL + stop.number) from stop
    except Diverged as error:
        typer.echo(f"training diverged. {error}", err=True)
        raise typer.Exit(DIVERGED) from error
    except BadManifest as error:
        typer.echo(error.report(), err=True)
        raise typer.Exit(WRONG_INPUT) from error
    except (
        BrokenPipeError
    ):  # whoever read our output has had enough of it: no mistake, and nobody to tell
        raise
    except (OSError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(WRONG_INPUT) from error
