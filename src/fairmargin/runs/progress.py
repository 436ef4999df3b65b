"""Show a run while it trains: a live panel on a terminal, plain lines elsewhere."""

import math
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fairmargin.config import Config
from fairmargin.loop import Training
from fairmargin.runtime import distributed, terminal

# Seconds between two updates of the panel.
REFRESH = 0.25
# Columns of the bar, and fewer than which it is left out.
BAR = 24
LEAST_BAR = 4
# Where the counts of FairKL's pairs begin in `Now.pairs`.
SIGNS = (("same label", 0), ("other label", 2))
# True if other processes write to the same terminal.
_shared = False


def share_the_terminal() -> None:
    """Make later runs of this process brief, because others write to the same terminal.

    They say when they begin and end, and what is wrong.
    """
    global _shared
    _shared = True


@dataclass
class Now:
    """How far a run is, and its latest numbers."""

    # Epochs done.
    epoch: int = 0
    step: int = 0
    # Images per second.
    rate: float = 0.0
    terms: dict[str, float] = field(default_factory=dict)
    pairs: list[int] | None = None
    accuracy: str = ""


class Display:
    """The display of one run, used as a context manager.

    Args:
        config: of the run.
        training: whose steps are counted.
        console: where to write; the terminal by default. Ranks other than 0 write nothing.
    """

    def __init__(self, config: Config, training: Training, console: Console | None = None) -> None:
        self.title = f"{config.method.name}, seed {config.seed}"
        of_epoch = len(training.loader)
        self.steps = min(config.train.epochs * of_epoch, config.train.steps or sys.maxsize)
        self.epochs = math.ceil(self.steps / max(of_epoch, 1))
        speaks = distributed.rank() == 0
        self.console = (console or terminal.Console()) if speaks else Console(quiet=True)
        self.brief = _shared
        live = self.console.is_terminal and speaks and not self.brief
        self.live = self._made_live() if live else None
        self.above = ExitStack()
        self.started = self.drawn = time.monotonic()
        self.first_step = 0
        self.now = Now()

    def __enter__(self) -> "Display":
        if self.live is not None:
            self.live.start()
            self.above.enter_context(terminal.lines_above(self.console))
        return self

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        self.above.close()
        if self.live is not None:
            self.live.stop()
        if self.brief and error is None:
            took = f"done in {_clock(time.monotonic() - self.started)}"
            self.say(", ".join(part for part in (took, self.now.accuracy) if part))

    def _made_live(self) -> Live:
        return Live(
            console=self.console,
            auto_refresh=False,
            transient=True,
            # `terminal.lines_above` does it.
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def due(self) -> bool:
        """True if the panel should be drawn again; reading a loss earlier makes a GPU wait."""
        return self.live is not None and time.monotonic() - self.drawn >= REFRESH

    def begin(self, step: int) -> None:
        """Start the clock at this step."""
        self.first_step = step
        self.started = time.monotonic()
        if step or self.brief:
            self.say(f"continuing after step {step}" if step else "begins")

    def show(self, now: Now) -> None:
        """Show these numbers; may be called at every step, because it draws only when due."""
        self.now = now
        if self.live is not None and self.due():
            self.drawn = time.monotonic()
            self.live.update(self._panel(), refresh=True)

    def say(self, text: str) -> None:
        """Print a line that stays; it names the run if other processes write here too."""
        text = f"{self.title}: {text}" if self.brief else text
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        """Print a line, unless other processes write here too."""
        if not self.brief:
            self.say(text)

    def stage(self, what: str, done: int, of: int) -> None:
        """Show how far a long evaluation is: below the panel, or as a line at each tenth.

        Args:
            what: the name of what is being done.
            done: batches done.
            of: batches in all.
        """
        if self.live is None:
            if at_a_tenth(done, of):
                self.detail(f"{what}: {done / of:.0%}")
        elif self.due():
            self.drawn = time.monotonic()
            line = Text(f"{what}: {done:,} of {of:,} batches", style="dim")
            self.live.update(Group(self._panel(), line), refresh=True)

    def epoch_done(self) -> None:
        """Print a line about an evaluated epoch that stays: short above the panel, full in logs."""
        if self.live is None:
            self.detail(f"{self.line()}  {self.now.accuracy}")
            return
        terms = [f"{name} {value:.4g}" for name, value in self.now.terms.items()]
        parts = [f"epoch {self.now.epoch}/{self.epochs}", self.now.accuracy, *terms]
        self.say("  ".join(part for part in parts if part))

    def line(self) -> str:
        """Return everything in one line, for logs."""
        now = self.now
        parts = [f"epoch {now.epoch}/{self.epochs} step {now.step}/{self.steps}"]
        parts += [f"{name} {value:.4g}" for name, value in now.terms.items()]
        parts += [self._pairs()] if now.pairs else []
        return "  ".join([*parts, f"{now.rate:,.0f} images/s", f"{_clock(self._left())} left"])

    def _panel(self) -> Group:
        now = self.now
        parts = [
            f"epoch {min(now.epoch + 1, self.epochs)}/{self.epochs}",
            f"step {now.step:,}/{self.steps:,}",
            f"{now.rate:,.0f} images/s",
            f"{_clock(self._left())} left",
        ]
        facts = "  ".join(parts)
        room = self.console.width - len(facts) - 2
        bar = ProgressBar(total=max(self.steps, 1), completed=now.step, width=min(BAR, room))
        head = Table.grid(padding=(0, 2))
        # Without room for a bar, the numbers alone wrap.
        head.add_row(*([bar, facts] if room >= LEAST_BAR else [facts]))
        numbers = [f"{name} {value:.4g}" for name, value in now.terms.items()]
        terms = Text("  ".join(numbers), style="dim")
        more = [Text(text, style="dim") for text in (self._pairs(), now.accuracy) if text]
        # The name has a line of its own: beside the bar, 80 columns would cut it.
        return Group(Text(self.title, style="bold"), head, terms, *more)

    def _pairs(self) -> str:
        if not self.now.pairs:
            return ""
        sets = [
            f"{sign} {self.now.pairs[at]:,} aligned {self.now.pairs[at + 1]:,} conflicting"
            for sign, at in SIGNS
            if at + 1 < len(self.now.pairs)
        ]
        return "FairKL pairs: " + ", ".join(sets)

    def _left(self) -> float:
        done = self.now.step - self.first_step
        if done <= 0:
            return math.nan
        return (self.steps - self.now.step) * (time.monotonic() - self.started) / done


def at_a_tenth(done: int, of: int) -> bool:
    """Return True if this step completes another tenth of the whole.

    Args:
        done: steps done.
        of: steps in all.
    """
    return 10 * done // of > 10 * (done - 1) // of


def _clock(seconds: float) -> str:
    if math.isnan(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
