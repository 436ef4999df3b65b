"""What it costs to notice changed images and ranks that differ, as shares of what it goes with.

    python -m benchmarks.integrity reading           10,000 images, read with and without digests
    python -m benchmarks.integrity ranks             a comparison of ranks, a step, a checkpoint
    torchrun --nproc-per-node 2 -m benchmarks.integrity ranks

Both sides take turns, a few files or steps at a time, so that a busy moment of the machine does not
fall on one of them. Shares are of processor time, which other processes change little.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.training import CASES, random_data
from fairmargin import config as configuration
from fairmargin.data import contents
from fairmargin.data.contents import VARIABLE, Seen, contents_hash
from fairmargin.data.datasets.folder import images_hash
from fairmargin.data.decode import Decoder
from fairmargin.data.drafts import Draft, Sample
from fairmargin.data.manifest import look_at_files
from fairmargin.loop import fit
from fairmargin.runs import build, checkpoint
from fairmargin.runtime import distributed
from fairmargin.runtime.agreement import check_agreement, state_facts

# Images read in one turn.
TURN = 250
# Different pictures; the files are copies of them.
PICTURES = 50


def pictures(folder: Path, number: int, side: int) -> list[Path]:
    """Write JPEG files with as much detail as photographs have, and return their paths."""
    random = np.random.default_rng(0)
    made = []
    for k in range(PICTURES):
        coarse = random.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
        noise = random.normal(0, 8, (side, side, 3))
        pixels = (np.asarray(smooth) + noise).clip(0, 255).astype(np.uint8)
        file = folder / f"picture-{k}.jpg"
        Image.fromarray(pixels).save(file, quality=85)
        made.append(file.read_bytes())
        file.unlink()
    paths = []
    for i in range(number):
        split, label = ("test" if i % 10 == 0 else "train"), i % 2
        paths.append(folder / split / str(label) / f"{i}.jpg")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        paths[-1].write_bytes(made[i % PICTURES])
    return paths


def seconds_of(act: Callable[[], object]) -> float:
    """Return the processor time of a call in seconds."""
    start = time.process_time()
    act()
    return time.process_time() - start


def reading(number: int, side: int) -> None:
    """Print how much longer reading takes with digests, the first time and again."""
    with tempfile.TemporaryDirectory() as place:
        os.environ[VARIABLE] = str(Path(place) / "cache")
        # The files were written just now, and would not be kept.
        contents.SETTLED_NS = -(10**18)
        source = Path(place) / "photos"
        source.mkdir()
        paths = pictures(source, number, side)
        size = sum(path.stat().st_size for path in paths) / number
        decoder = Decoder(64)

        def read(part: list[Path], seen: dict[Path, Seen] | None) -> None:
            drafts = [Draft(Sample(None, p.name, p, "a", "", "train")) for p in part]
            look_at_files(drafts, "decode", workers=0, decoder=decoder, seen=seen)

        read(paths[:TURN], {})  # once without counting
        print(f"{number:,} JPEG files of {side}×{side} pixels, {size / 1000:.0f} kB each\n")
        for title in ("first", "again"):
            plain = hashed = 0.0
            seen: dict[Path, Seen] = {}
            for i in range(0, number, TURN):
                part = paths[i : i + TURN]
                sides = [(part, None), (part, seen)]
                for files, known in sides if i % (2 * TURN) else sides[::-1]:
                    took = seconds_of(partial(read, files, known))
                    plain, hashed = plain + took * (known is None), hashed + took * (known is seen)
            hashed += seconds_of(partial(contents_hash, paths, source, seen))
            print(f"{title}: {plain:.1f} s without digests, {hashed / plain - 1:+.1%} with them")
        took = seconds_of(partial(images_hash, source, {}))
        print(f"unchanged files looked at, none read: {took:.2f} s, {took / plain:.1%} of reading")


def ranks(name: str, batch: int, rounds: int) -> None:
    """Print what a comparison of ranks takes beside a step and a checkpoint."""
    case = CASES[name]
    data = random_data(case.side)
    settings = configuration.load(
        dataset="biased-mnist",
        network=case.network,
        method="eps-supinfonce+fairkl",
        overrides=[f"train.batch_size={batch}"],
    )
    times: dict[str, list[float]] = {"step": [], "comparison": [], "checkpoint": []}
    with tempfile.TemporaryDirectory() as folder:
        training = build.training(settings, build.method(settings, data), data, torch.device("cpu"))

        def step() -> None:
            fit(training, 1 << 30, steps=training.step + 1)

        def comparison() -> None:
            check_agreement(state_facts(training.state_dict()), "in a benchmark")

        def saved() -> None:
            checkpoint.save(Path(folder), training.step, {"training": training.state_dict()})

        step()
        for _ in range(rounds):
            for title, act in (("step", step), ("comparison", comparison), ("checkpoint", saved)):
                times[title].append(seconds_of(act))
        medians = {title: statistics.median(values) for title, values in times.items()}
        if not distributed.is_first():
            return
        every = settings.train.checkpoint_seconds
        processes = distributed.world_size()
        print(f"{name}, batch {batch}, {processes} process{'es' if processes > 1 else ''}:")
        for title, value in medians.items():
            print(f"  {title}: {1000 * value:.1f} ms, {value / medians['step']:.3f} of a step")
        print(
            f"  one comparison every {every:g} s is {medians['comparison'] / every:.3%} of the time"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("reading", "ranks"))
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", choices=CASES, help="one of them; both by default")
    options = parser.parse_args()
    if options.what == "reading":
        reading(options.images, options.side)
        return
    with distributed.processes(torch.device("cpu")):
        for name in [options.case] if options.case else list(CASES):
            ranks(name, options.batch, options.rounds)


if __name__ == "__main__":
    main()
