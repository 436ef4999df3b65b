"""Ctrl-C and SIGTERM during training: finish the step, save, then leave."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """Training was asked to stop and its state is saved. `number` is the signal's."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[str, int]]:
        # The way to another process: by default the number would be lost.
        return Interrupted, (str(self), self.number)


class Request:
    """Whether a signal asked to stop: true once one has come. Its `number` is 0 until then."""

    def __init__(self) -> None:
        self.number = 0

    def __bool__(self) -> bool:
        return self.number != 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT:  # the second Ctrl-C does not wait
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def stop_requests() -> Iterator[Request]:
    """Listen for SIGINT and SIGTERM; outside the main thread no signal arrives.

    Inside another such context the request is the same one: a worker that was asked to stop passes
    this on to each of its runs.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    listening = signal.getsignal(signal.SIGTERM)
    if isinstance(listening, Request):
        yield listening
        return
    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
