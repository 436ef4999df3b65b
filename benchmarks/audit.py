"""Measure what the audit of a dataset finds, misses and costs: the tables of docs/audit.md.

python -m benchmarks.audit power          # biased-mnist-mini as the shortcut gets stronger
python -m benchmarks.audit unbiased       # twenty seeds without a shortcut
python -m benchmarks.audit injected NAME  # each kind of planted shortcut in a dataset
python -m benchmarks.audit cost NAME      # seconds and memory
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairmargin.audit._dataset import audit_data
from fairmargin.data import Data, build
from fairmargin.data.inject import INJECTIONS, inject

RHO = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


def first(data: Data) -> dict[str, Any]:
    """The attribute ranked first, and what else is worth a line."""
    found = audit_data(data).json
    single = [
        one for one in found["attributes"] if one["family"] not in ("blind model", "clusters")
    ]
    return found | {
        "top": found["attributes"][0],
        "strongest": max(single, key=lambda one: one["strength"]),
    }


def named(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in found["attributes"] if one["name"] == name)


def power() -> None:
    print(
        "| ρ | first | background colour: strength | corrected p | verdict | shortcuts |\n"
        "|---|---|---|---|---|---|"
    )
    for rho in RHO:
        found = first(build("biased-mnist-mini", rho=rho))
        colour = named(found, "background colour")
        numbers = f"{colour['strength']:.2f} | {colour['p_corrected']:.3g} | {colour['verdict']}"
        print(
            f"| {rho:g} | {found['top']['name']} | {numbers} | {len(found['shortcuts'])} |",
            flush=True,
        )


def unbiased() -> None:
    print(
        "| seed | shortcuts | strongest | strength | blind model | background colour: "
        "corrected p |\n|---|---|---|---|---|---|"
    )
    for seed in range(20):
        found = first(build("biased-mnist-mini", rho=0.1, seed=seed))
        most, blind, colour = (
            found["strongest"],
            named(found, "blind model"),
            named(found, "background colour"),
        )
        numbers = f"{most['strength']:.2f} | {blind['strength']:.2f} | {colour['p_corrected']:.3g}"
        print(f"| {seed} | {len(found['shortcuts'])} | {most['name']} | {numbers} |", flush=True)


def injected(name: str) -> None:
    plain = build(name)
    print(
        "| planted | found by | rank | corrected p | strongest: strength | blind model |\n"
        "|---|---|---|---|---|---|"
    )
    for text in [f"{kind}:{rho}" for kind in INJECTIONS for rho in (0.95, 0.1)]:
        found = first(inject(plain, text))
        planted, most = (
            found["planted"],
            f"{found['strongest']['name']}: {found['strongest']['strength']:.2f}",
        )
        place = (
            f"{planted['by'] or '–'} | {planted['rank'] or '–'} | {planted['p_corrected'] or '–'}"
        )
        print(
            f"| {text} | {place} | {most} | {named(found, 'blind model')['strength']:.2f} |",
            flush=True,
        )


def cost(name: str) -> None:
    data = build(name, valid_fraction=0.0)
    with peak() as memory:
        started = time.perf_counter(), time.process_time()
        audit_data(data)
        wall, processor = time.perf_counter() - started[0], time.process_time() - started[1]
    print(
        f"{name}: {len(data.train):,} images, {wall:.1f} s ({processor:.1f} s of one core), "
        f"{memory[0]:.0f} MB beside the data"
    )


@contextmanager
def peak() -> Iterator[list[float]]:
    """The largest growth of this process's resident memory, in MB; Linux."""
    resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
    start, most, over = resident(), [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            most[0] = max(most[0], resident() - start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()


if __name__ == "__main__":
    {"power": power, "unbiased": unbiased, "injected": injected, "cost": cost}[sys.argv[1]](
        *sys.argv[2:]
    )
