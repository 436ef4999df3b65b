"""The one way to the terminal: control characters that are not ours are shown, not sent.

Class names, file names, columns of a table and results of somebody else's run may hold escape
sequences, which move the cursor, hide lines, change the clipboard or draw links. Two things pass
text on to the terminal, and both write `\\u001b` where such a text has an escape character:

- `Console`: Rich's, with colours and live displays of our own. Texts are escaped before it adds
  colours, and nothing in them is markup.
- `Guard`: what commands put in the place of standard output and standard error, for everything that
  is printed, warned or logged, and for tracebacks.

Files keep the true names.
"""

import io
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.file_proxy import FileProxy
from rich.segment import Segment
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

# C0 without tab and line feed, delete, C1, line separators, bidirectional embeddings, overrides and
# isolates, and surrogates, which stand for bytes of file names that are no UTF-8.
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return a text with every control character but tab and line feed as `\\u001b`.

    The escapes are those of JSON, so that JSON stays what it is.

    Args:
        text: from anywhere.
    """
    return CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


class Guard(io.TextIOBase):
    """A stream that writes to another one, with control characters escaped.

    It has no `buffer`, around which bytes could pass.

    Args:
        stream: where to write.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.plain = False

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        self.stream.write(visible(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self.stream.flush()

    def close(self) -> None:
        """Do nothing: the stream belongs to somebody else."""

    def isatty(self) -> bool:
        """Return whether the stream is a terminal that may be sent colours."""
        return not self.plain and self.stream.isatty()

    def fileno(self) -> int:
        """Return the stream's file descriptor."""
        return self.stream.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's encoding."""
        return self.stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What the stream does with characters that its encoding lacks."""
        return self.stream.errors


class Console(rich.console.Console):
    """Rich's console for texts from anywhere: no markup, no emoji codes, no control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False} | options)

    @property
    def file(self) -> IO[str]:
        """The stream under all guards: what this console writes is escaped already."""
        found: Any = self._file or (sys.stderr if self.stderr else sys.stdout)
        while isinstance(found, Guard | FileProxy):
            found = found.stream if isinstance(found, Guard) else found.rich_proxied_file
        return cast(IO[str], found if found is not None else io.StringIO())

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as Rich's text. Escaped here, it counts with its true width."""
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of anything that Rich can draw, escaped."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


def guard() -> None:
    """Put guards in the place of this process's standard output and standard error, for good."""
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


@contextmanager
def guarded() -> Iterator[None]:
    """Guard standard output and standard error inside a `with` block.

    After an error that nobody handled they stay guarded, and look like files: its traceback is
    still to come, and is printed by code that knows no `Console`.
    """
    before = sys.stdout, sys.stderr
    guard()
    try:
        yield
    except Exception as error:
        if _has_traceback(error):
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, Guard):
                    stream.plain = True
        else:
            sys.stdout, sys.stderr = before
        raise
    except BaseException:
        sys.stdout, sys.stderr = before
        raise
    sys.stdout, sys.stderr = before


@contextmanager
def lines_above(console: rich.console.Console) -> Iterator[None]:
    """Print lines above a live display on this console, escaped as all others.

    Rich's own way of doing so reads escape sequences in them as colours and links. Give its
    displays `redirect_stdout=False` and `redirect_stderr=False`.

    Args:
        console: that shows the display. Nothing is done if it is no terminal.
    """
    if not console.is_terminal:
        yield
        return
    before = sys.stdout, sys.stderr
    proxies = [FileProxy(console, stream) for stream in before]
    sys.stdout, sys.stderr = (_guarded(cast(TextIO, proxy)) for proxy in proxies)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for proxy in proxies:
            proxy.flush()


@contextmanager
def progress_bars(
    console: rich.console.Console, *columns: "str | ProgressColumn", transient: bool = False
) -> Iterator["Progress"]:
    """Show progress bars on a console if it is a terminal, with other lines above them.

    Args:
        console: where to.
        columns: of a bar; Rich's usual ones by default.
        transient: remove the bars at the end.
    """
    from rich.progress import Progress

    bars = Progress(
        *columns,
        console=console,
        transient=transient,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not console.is_terminal,
    )
    with bars, lines_above(console):
        yield bars


def _guarded(stream: TextIO) -> TextIO:
    """The stream behind a guard; itself if it has one, or if there is none."""
    if stream is None or isinstance(stream, Guard):
        return stream
    return cast(TextIO, Guard(stream))


def _has_traceback(error: Exception) -> bool:
    """Whether an error ends in a traceback: those of Typer, such as Exit, do not."""
    return not type(error).__module__.startswith(("typer", "click")) and not isinstance(
        error, BrokenPipeError
    )
