"""`make fuzz`: new cases of every kind until the time is up.

Cases run in a process of their own, which is watched: one that dies or does not end is a failure
of the case it was at. Every failure has its kind and seed, which replay it alone.
"""

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import count, cycle

from tests.fuzz.worker import Worker


def main() -> int:
    """Run cases for some minutes; return 1 if any of them failed."""
    from tests.fuzz.cases import KINDS

    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--first", type=int, help="seed of the first case; by the clock")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind")
    parser.add_argument("--replay", metavar="KIND:SEED", help="run this one case and show it")
    chosen = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as around:
        worker = Worker(around)
        if chosen.replay:
            kind, _, seed = chosen.replay.rpartition(":")
            word, failure, details = worker.run(kind, int(seed))
            print(f"{chosen.replay}: {word}\n{failure}\n{details}")
            return int(bool(failure))
        first = int(time.time()) if chosen.first is None else chosen.first
        return many(worker, chosen.kind or list(KINDS), first, chosen.minutes)


def many(
    worker: Worker,
    kinds: list[str],
    first: int,
    minutes: float,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Run cases of these kinds in turn until the time is up; return 1 if any failed.

    Args:
        worker: runs them.
        kinds: some of `cases.KINDS`.
        first: seed of the first case of each kind; the next ones follow.
        minutes: how long.
        clock: seconds since some moment.
    """
    print(f"fuzzing for {minutes:g} minutes, first seed {first}", flush=True)
    ends: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    failures: list[tuple[str, str]] = []
    until = clock() + 60 * minutes
    seeds = (seed for seed in count(first) for _ in kinds)
    for kind, seed in zip(cycle(kinds), seeds, strict=False):
        if clock() > until:
            break
        word, failure, details = worker.run(kind, seed)
        ends[kind][word] += 1
        if failure:
            failures.append((f"{kind}:{seed}", failure))
            print(f"FAILED {kind}:{seed} {failure}\n{details}\n", flush=True)
    worker.end()
    total = sum(counter.total() for counter in ends.values())
    for kind, counter in ends.items():
        said = ", ".join(f"{number:,} {word}" for word, number in counter.most_common())
        print(f"{kind:14} {counter.total():6,} cases: {said}")
    print(f"{total:,} cases, {len(failures)} failed")
    for name, failure in failures:
        print(f'  {name}: {failure}\n    python -m tests.fuzz --replay "{name}"')
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main())
