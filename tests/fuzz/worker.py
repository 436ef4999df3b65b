"""A process that runs cases and is watched: it may die or never end."""

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

# Seconds after which a case that computes nothing counts as hanging.
WAIT = 600.0
CODES = {0: "accepted", 1: "check failed", 2: "refused", 3: "diverged"}


def _work(pipe: Connection, around: str) -> None:
    """Run the cases that come through the pipe, and send how they ended."""
    import torch

    from tests.fuzz import cases, sandbox

    torch.set_num_threads(1)
    cases.finished_run()
    sandbox.limit_memory()
    while True:
        kind, seed = pipe.recv()
        if not kind:
            return
        trial, ended = cases.run(kind, seed, Path(around))
        words = trial if isinstance(trial, list) else ["(a function)"]
        pipe.send((words, ended))


class Worker:
    """A process that runs cases, started anew when it died or was ended.

    Args:
        around: folder for the cases' own.
    """

    def __init__(self, around: str) -> None:
        self.around = around
        self.process: multiprocessing.process.BaseProcess | None = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.around), daemon=True)
        self.process.start()
        theirs.close()

    def run(self, kind: str, seed: int) -> tuple[str, str, str]:
        """Run one case; return its end in a word, what is wrong with it, and details."""
        if self.process is None:
            self._start()
        try:
            self.pipe.send((kind, seed))
            if not self.pipe.poll(WAIT):
                self.end()
                return "hang", f"no end after {WAIT:g} s", ""
            words, ended = self.pipe.recv()
        except (EOFError, OSError):
            code = None
            if self.process is not None:
                self.process.join(10)
                code = self.process.exitcode
            self.end()
            return "died", f"the process died, exit code {code}", ""
        details = "\n".join([" ".join(words)[:3000], ended.output[-1500:], ended.trace[-6000:]])
        word = ended.failure.partition(":")[0] or CODES.get(ended.code, "interrupted")
        return word, ended.failure, details

    def end(self) -> None:
        """End the process, whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None
