"""Notice a process of a run that does not come, say who is waited for, and end the wait.

A collective blocks inside PyTorch until every process has arrived, and hears no signal meanwhile.
So each process has two threads. One tells the others through the group's store that the process
lives (a beat), how far it is (marks) and whether it may take its time (free). The other counts how
long this process has been waiting for whom, says so, and ends the process after the timeout. No
collective is added, and a step costs a few additions.

What counts, and why, is in docs/decisions.md under "Training".
"""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

# Exit code of a run that ended because of something outside it, and can be resumed.
LOST = 4
# Who is late is said after this part of the timeout.
NOTICE = 0.2
# Seconds between two looks at the others, at most: less than the notice of the least timeout.
INTERVAL = 1.0
PREFIX = "fairmargin/waiting/"


class RankLostError(RuntimeError):
    """Another process of the run ended, or cannot be reached."""


class Store(Protocol):
    """What is used of `torch.distributed.Store`."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""

    def get(self, key: str, /) -> bytes:
        """Read a value; waits until there is one."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys have a value."""


@dataclass(frozen=True)
class State:
    """What a process tells the others.

    Args:
        beat: changes as long as the process runs; −1 once it has left the run.
        marks: how many places it has come to at which processes wait for each other.
        free: whether it may take its time now.
    """

    beat: int = 0
    marks: int = 0
    free: bool = True

    def text(self) -> str:
        """Return it as `parse` reads it."""
        return f"{self.beat} {self.marks} {int(self.free)}"

    @staticmethod
    def parse(text: bytes) -> "State":
        """Return the state that another process wrote.

        Args:
            text: of `text`, in ASCII.
        """
        beat, marks, free = map(int, text.split())
        return State(beat, marks, bool(free))


class Arrival:
    """How far this process is. The training moves it, and the threads read it."""

    def __init__(self) -> None:
        self.marks = 0
        self.step = 0
        # True until the first step is done: reading data and compiling may take long.
        self.preparing = True
        self.stretches = 0
        self.inside = 0

    def __enter__(self) -> "Arrival":
        self.marks += 1
        self.inside += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.inside -= 1

    @property
    def free(self) -> bool:
        """Whether this process may take its time; not while it waits for others itself."""
        return not self.inside and (self.preparing or self.stretches > 0)


# Of this process. As a context it marks a place where processes wait for each other:
#     with arrival: dist.all_reduce(…)
arrival = Arrival()


def at_step(step: int) -> None:
    """Note that a step begins.

    Args:
        step: its number, from 1.
    """
    arrival.step = step
    arrival.marks += 1


def prepared() -> None:
    """Note that nothing more has to be prepared: from now on steps are limited."""
    arrival.preparing = False


@contextmanager
def unlimited() -> Iterator[None]:
    """Let this process take its time inside: others wait for it as long as it lives."""
    arrival.stretches += 1
    try:
        yield
    finally:
        arrival.stretches -= 1


@dataclass
class Seen:
    """What is known of another process: its last state, and for how long nothing has changed."""

    state: State | None = None
    # Seconds without a beat, and without a mark.
    silent: float = 0.0
    still: float = 0.0

    def update(self, state: State | None, seconds: float) -> None:
        """Take in a state that was read after so many seconds."""
        before = self.state
        moved = state is not None and (before is None or state.marks != before.marks)
        beaten = state is not None and (before is None or state.beat != before.beat)
        left = state is not None and state.beat < 0
        self.still = 0.0 if moved else self.still + seconds
        self.silent = 0.0 if beaten or left else self.silent + seconds
        self.state = state or before


@dataclass
class Lookout:
    """Counts how long this process has waited for which others.

    Args:
        rank: of this process.
        size: number of processes.
        timeout: seconds after which a wait ends.
        host: the rank through which processes reach each other; None if that is no rank.
    """

    rank: int
    size: int
    timeout: float
    host: int | None = None
    waited: float = 0.0
    marks: int = -1
    others: dict[int, Seen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.others = {other: Seen() for other in range(self.size) if other != self.rank}

    @property
    def notice(self) -> float:
        """Seconds after which who is late is said."""
        return NOTICE * self.timeout

    def look(self, seconds: float, mine: State, read: Mapping[int, State], heard: bool) -> None:
        """Take in what was read.

        Args:
            seconds: since the last look.
            mine: the state of this process.
            read: the states of others, those that were ever read.
            heard: whether the store answered since the last look.
        """
        for other, seen in self.others.items():
            if heard or other == self.host:
                seen.update(read.get(other), seconds)
        held = heard and any(self._takes_its_time(seen) for seen in self.others.values())
        if mine.free or held or mine.marks != self.marks:
            self.waited = 0.0
        else:
            self.waited += seconds
        self.marks = mine.marks

    def late(self, seconds: float) -> dict[int, bool]:
        """Return who has been waited for so long, and whether each of them still lives.

        Args:
            seconds: how long.
        """
        waits = {other: self._absent(seen) for other, seen in self.others.items()}
        return {
            other: self.others[other].silent < self.notice
            for other, absent in waits.items()
            if min(self.waited, absent) >= seconds
        }

    @property
    def stuck(self) -> bool:
        """True if nobody is late and still nobody has gone on for the whole timeout."""
        return self.waited >= self.timeout and not self.late(self.notice)

    def _takes_its_time(self, seen: Seen) -> bool:
        return seen.state is not None and seen.state.free and seen.silent < self.notice

    def _absent(self, seen: Seen) -> float:
        """Seconds for which a process has been missing where this one is."""
        if seen.silent >= self.notice:
            return seen.silent
        behind = seen.state is None or seen.state.marks < self.marks
        return seen.still if behind else 0.0


class Watch:
    """The two threads of a process; `lookout.timeout` may be changed while they run.

    Args:
        store: of the process group, or a connection of its own to the same store.
        lookout: what counts.
        say: prints a line.
        end: ends the process with a sentence.
    """

    def __init__(
        self, store: Store, lookout: Lookout, say: Callable[[str], None], end: Callable[[str], None]
    ) -> None:
        self.store = store
        self.lookout = lookout
        self.say = say
        self.end = end
        self.read: dict[int, State] = {}
        self.rounds = 0
        self._left = threading.Event()
        self._said: set[int] = set()
        # Daemons: a store that never answers must not keep the process from ending.
        self._threads = [
            threading.Thread(target=target, name=f"fairmargin-{target.__name__}", daemon=True)
            for target in (self._talk, self._count)
        ]

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return min(INTERVAL, self.lookout.timeout / 50)

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, *, orderly: bool) -> None:
        """Stop both threads.

        Args:
            orderly: tell the others that this process has left. After an error it is missing.
        """
        self._left.set()
        # A store that hangs is left to itself.
        self._threads[0].join(timeout=self.interval if orderly else 0)
        if orderly and not self._threads[0].is_alive():
            with _no_network_errors():
                self._write(State(-1, arrival.marks, True))

    def _talk(self) -> None:
        """Tell the others how far this process is, and read how far they are."""
        beat = 0
        with _no_network_errors():
            while True:
                beat += 1
                self._write(State(beat, arrival.marks, arrival.free))
                for other in self.lookout.others:
                    key = f"{PREFIX}{other}"
                    if self.store.check([key]):
                        self.read[other] = State.parse(self.store.get(key))
                self.rounds += 1
                if self._left.wait(self.interval):
                    return

    def _write(self, state: State) -> None:
        self.store.set(f"{PREFIX}{self.lookout.rank}", state.text())

    def _count(self) -> None:
        """Look at what was read, say who is late, and end the process after the timeout."""
        before, rounds = time.monotonic(), -1
        while not self._left.wait(self.interval):
            now = time.monotonic()
            # A process that was stopped itself, or got no processor, has not waited meanwhile.
            seconds = min(now - before, 2 * self.interval)
            mine = State(0, arrival.marks, arrival.free)
            self.lookout.look(seconds, mine, dict(self.read), heard=self.rounds != rounds)
            before, rounds = now, self.rounds
            self._judge(arrival.step)

    def _judge(self, step: int) -> None:
        lookout, where = self.lookout, f"step {step}" if step else "the start"
        gone = lookout.late(lookout.timeout)
        if gone:
            self.end(_farewell(gone, where, lookout.timeout))
        elif lookout.stuck:
            self.end(_standstill(where, lookout.timeout))
        late = lookout.late(lookout.notice)
        speaks = lookout.rank == min(set(range(lookout.size)) - late.keys())
        if late.keys() - self._said and speaks:
            has = "has" if len(late) == 1 else "have"
            self.say(
                f"{_names(late)} {has} not arrived at {where}; waited {lookout.waited:.0f} s, "
                f"giving up after {lookout.timeout:g} s"
            )
        elif self._said and not late and not lookout.waited and speaks:
            has = "has" if len(self._said) == 1 else "have"
            self.say(f"{_names(self._said)} {has} arrived")
        if late or not lookout.waited:
            self._said = set(late)


# The watch of this process, while it is in a run with others.
_watch: Watch | None = None


@contextmanager
def watched(
    store: Store, rank: int, size: int, timeout: float, host: int | None
) -> Iterator[Watch]:
    """Watch over the processes of a run while inside; inside another such context, go on with it.

    Args:
        store: of the process group.
        rank: of this process.
        size: number of processes.
        timeout: seconds after which a wait for a process ends.
        host: the rank that holds the store; None if that is no rank.
    """
    global _watch
    outer = _watch
    watch = outer or Watch(_own_connection(store), Lookout(rank, size, timeout, host), _say, _end)
    before = watch.lookout.timeout
    watch.lookout.timeout = timeout
    arrival.preparing, arrival.step = True, 0
    if outer is None:
        _watch = watch
        watch.start()
    orderly = False
    try:
        yield watch
        orderly = True
    finally:
        arrival.preparing, arrival.step = True, 0
        watch.lookout.timeout = before
        if outer is None:
            watch.stop(orderly=orderly)
            _watch = None


def current() -> Watch | None:
    """Return the watch of this process; None if it is in no run with others."""
    return _watch


def _own_connection(store: Store) -> Store:
    """A second connection to a store: a blocked call holds the first one for itself."""
    clone: Callable[[], Store] | None = getattr(store, "clone", None)
    return store if clone is None else clone()


@contextmanager
def _no_network_errors() -> Iterator[None]:
    """Leave quietly if the store is gone: whoever waits then is told by the counting thread."""
    try:
        yield
    except (RuntimeError, OSError):
        return


def _names(ranks: Mapping[int, bool] | set[int]) -> str:
    """Return "rank 2" or "ranks 1, 2"."""
    numbers = ", ".join(map(str, sorted(ranks)))
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"


AGAIN = (
    "End what is left of the run and start all ranks with the same command: it goes on from its "
    "last checkpoint"
)


def _farewell(gone: Mapping[int, bool], where: str, timeout: float) -> str:
    why = "stopped, or its machine cannot be reached"
    if any(gone.values()):
        why = "alive but does not go on: it may hang in reading a file, or on its device"
    subject = "it is" if len(gone) == 1 else "one is"
    return (
        f"{_names(gone)} did not arrive at {where} within {timeout:g} s; {subject} {why}. {AGAIN}"
    )


def _standstill(where: str, timeout: float) -> str:
    return (
        f"no rank has gone on from {where} for {timeout:g} s though all have arrived; the network "
        f"between them or a device hangs. {AGAIN}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _end(text: str) -> NoReturn:
    """End this process, whose main thread is blocked; its files are whole, and its lock ends."""
    try:
        # Processes that load images hold the folder's lock, too.
        for child in multiprocessing.active_children():
            child.kill()
        _say(text)
        sys.stdout.flush()
        terminal = sys.__stdout__
        if terminal is not None and terminal.isatty():
            # The panel of a run hides the cursor.
            terminal.write("\x1b[?25h")
            terminal.flush()
    finally:
        os._exit(LOST)
