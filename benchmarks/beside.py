"""The losses of two commits side by side.

    python -m benchmarks.losses --beside REV

In a round two processes, one for each commit, take turns of a fraction of a second, so that a busy
moment of the machine falls on both. Processes differ by luck too (where the allocator finds its
pages): every round starts new ones, and the result is the median of the rounds. `--beside HEAD`
without changes shows what luck does: ratios of 1.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Server = subprocess.Popen[str]
# Turns of each process in a round, for each loss and size.
TURNS = 6


@dataclass
class Comparison:
    """One loss at one size.

    Args:
        here: seconds of each round, with the losses of the working tree.
        there: seconds of each round, with those of the other commit.
        ratios: here / there, of each round.
        difference: the largest relative difference of a value or gradient.
    """

    name: str
    n: int
    here: list[float] = field(default_factory=list)
    there: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    difference: float = 0.0

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return statistics.median(self.ratios)

    def __str__(self) -> str:
        here, there = (statistics.median(times) * 1e3 for times in (self.here, self.there))
        spread = f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"
        return (
            f"{self.name}, N={self.n}: {here:.4g} ms here, {there:.4g} ms there, "
            f"ratio {self.ratio:.3f} ({spread}), "
            f"results differ by {self.difference:.1e}"
        )


def compare(
    rev: str, names: list[str], sizes: list[int], device: str, rounds: int, seconds: float
) -> list[Comparison]:
    """Measure the losses of the working tree (here) and of the commit `rev` (there).

    Args:
        rev: checked out for the time.
        names: of the losses.
        sizes: batch sizes.
        seconds: of each loss in each process of a round.
    """
    found = [Comparison(name, n) for n in sizes for name in names]
    with worktree(rev) as other:
        sources = [ROOT / "src", other / "src"]
        for number in range(rounds):
            with _server(sources[number % 2]) as first, _server(sources[1 - number % 2]) as second:
                here, there = (first, second) if number % 2 == 0 else (second, first)
                for comparison in found:
                    _take_turns(comparison, here, there, device, seconds)
            print(f"round {number + 1} of {rounds} measured", file=sys.stderr)
    return found


def _take_turns(
    comparison: Comparison, here: Server, there: Server, device: str, seconds: float
) -> None:
    task = {"name": comparison.name, "n": comparison.n}
    task |= {"device": device, "seconds": seconds / TURNS}
    mine, others = _ask(here, task), _ask(there, task)  # warms up
    for a, b in zip(mine["results"], others["results"], strict=True):
        comparison.difference = max(comparison.difference, abs(a - b) / max(abs(b), 1e-30))
    times = []
    for turn in range(TURNS):
        order = (here, there) if turn % 2 == 0 else (there, here)
        taken = [_ask(server, task)["seconds"] for server in order]
        times.append(taken if turn % 2 == 0 else taken[::-1])
    comparison.here.append(statistics.median(a for a, _ in times))
    comparison.there.append(statistics.median(b for _, b in times))
    comparison.ratios.append(statistics.median(a / b for a, b in times))


@contextmanager
def worktree(rev: str) -> Iterator[Path]:
    """Check out another commit of this repository in a folder of its own, for the `with` block."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "there"
        add = [*git, "add", "--detach", "--quiet", str(path), rev]
        done = subprocess.run(add, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"--beside {rev} cannot be checked out: {done.stderr.strip()}")
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


@contextmanager
def _server(source: Path) -> Iterator[Server]:
    """This benchmark, waiting for tasks, with the package of another folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])}
    command = [sys.executable, "-m", "benchmarks.losses", "--serve"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        used = Path(_ask(process, {})["package"])
        if not used.is_relative_to(source):
            raise SystemExit(
                f"the losses came from {used} and not from {source}; is PYTHONPATH overridden?"
            )
        yield process
    finally:
        process.kill()
        process.wait()


def _ask(server: Server, task: dict[str, Any]) -> dict[str, Any]:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(task) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    if not answer:
        raise SystemExit(f"a process of --beside ended at {task}; its message is above")
    result: dict[str, Any] = json.loads(answer)
    return result
