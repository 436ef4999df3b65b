"""Measure what the audit says about single images: copies, label errors, problems.

    python -m benchmarks.images copies cifar10       # docs/audit.md, "Copies and leaks"
    python -m benchmarks.images labels digits 1797   # docs/audit.md, "Images to look at"
    python -m benchmarks.images problems mnist 20000

NAME is a dataset whose training images are taken, "digits" for those of scikit-learn, or an .npz
file with uint8 images x [N, C, H, W] and labels y [N]; a number after it takes the first so many.
"""

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from fairmargin.audit import copies, problems
from fairmargin.audit.sight import Sight, look
from fairmargin.batch import DataInfo
from fairmargin.data import build
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import plain

# Images that are changed in each way.
CHANGED = 100
# Images with each planted problem.
PLANTED = 20

Change = Callable[[Image.Image], Image.Image]


def _jpeg(quality: int) -> Change:
    def change(image: Image.Image) -> Image.Image:
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=quality)
        return Image.open(stream).convert("RGB")

    return change


def _reduced(image: Image.Image) -> Image.Image:
    width, height = image.size
    small = image.resize((width * 3 // 4, height * 3 // 4), Image.Resampling.BILINEAR)
    return small.resize((width, height), Image.Resampling.BILINEAR)


def _cropped(image: Image.Image) -> Image.Image:
    width, height = image.size
    inner = image.crop((1, 1, width - 1, height - 1))
    return inner.resize((width, height), Image.Resampling.BILINEAR)


def _noisy(image: Image.Image) -> Image.Image:
    pixels = np.asarray(image)
    noise = np.random.default_rng(int(pixels.sum())).normal(0, 6, pixels.shape)
    return Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))


CHANGES: dict[str, Change] = {
    "same pixels": lambda image: image,
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "brightness": lambda image: image.point(lambda v: v * 0.9 + 15),
    "noise": _noisy,
    "JPEG 75": _jpeg(75),
    "JPEG 50": _jpeg(50),
    "reduced": _reduced,
    "cropped": _cropped,
    "shifted": lambda image: Image.fromarray(np.roll(np.asarray(image), 1, 1)),
}


def _changed(images: Tensor, change: Change) -> Tensor:
    made = []
    for image in images:
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        made.append(torch.from_numpy(np.array(change(picture))).permute(2, 0, 1))
    return torch.stack(made)


def load(name: str, most: int | None) -> tuple[Tensor, Tensor]:
    """Return (uint8 images [N, 3, H, W], labels [N])."""
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        x = torch.from_numpy((digits.images * 15.9).astype(np.uint8))[:, None]
        y = torch.from_numpy(digits.target).long()
    elif name.endswith(".npz"):
        with np.load(Path(name)) as stored:
            x, y = torch.from_numpy(stored["x"]), torch.from_numpy(stored["y"]).long()
    else:
        train = build(name).train
        x, y = train.images(torch.arange(len(train))), train.labels
    x = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x
    return x[:most].clone(), y[:most]


def seen(train: ArraySplit, test: ArraySplit) -> tuple[Data, Sight]:
    """Return a dataset of these splits, and what is known of its images."""
    names = tuple(map(str, range(int(train.labels.max()) + 1)))
    info = DataInfo("images", names, (), tuple(train.pixels.shape[1:]), torch.zeros(len(names), 0))
    views = plain((0.5,) * 3, (0.5,) * 3)
    empty = ArraySplit(train.pixels[:0], train.labels[:0])
    data = Data(train, empty, test, info, views, views)
    splits = {"train": train, "valid": empty, "test": test}
    return data, look(data, {name: np.arange(len(split)) for name, split in splits.items()})


def measure_copies(x: Tensor, y: Tensor) -> None:
    """Change training images in every way, put them into the test split, and look for them."""
    random = np.random.default_rng(1)
    source, tests = [], []
    for change in CHANGES.values():
        index = random.choice(len(x), CHANGED, replace=False)
        source.append(index)
        tests.append(_changed(x[index], change))
    where = np.concatenate(source)
    started = time.process_time()
    data, sight = seen(ArraySplit(x, y), ArraySplit(torch.cat(tests), y[where]))
    middle = time.process_time()
    pairs = copies.find(data, sight)
    print(f"looking: {middle - started:.1f} s, comparing: {time.process_time() - middle:.1f} s")
    found = {pair.second - len(x): pair.first for pair in pairs if sight.split[pair.second] == 2}
    for k, name in enumerate(CHANGES):
        rows = range(k * CHANGED, (k + 1) * CHANGED)
        print(f"{name}: {sum(found.get(i) == where[i] for i in rows)} of {CHANGED}")
    inside = [pair for pair in pairs if sight.split[pair.second] == 0]
    for kind in ("exact", "near", "mirrored"):
        print(f"plain training set, {kind}: {sum(pair.kind == kind for pair in inside)}")


def measure_labels(x: Tensor, y: Tensor) -> None:
    """Change a share of the labels at random, and look for them."""
    _, sight = seen(ArraySplit(x, y), ArraySplit(x[:0], y[:0]))
    features = problems.features(sight)
    labels, classes = y.numpy(), int(y.max()) + 1
    for share in (0.0, 0.01, 0.03, 0.1):
        random = np.random.default_rng(7)
        flipped = random.choice(len(x), int(share * len(x)), replace=False)
        given = labels.copy()
        given[flipped] = (given[flipped] + random.integers(1, classes, len(flipped))) % classes
        found = problems.doubtful_labels(features, given)
        right = int(found.flagged[flipped].sum())
        number = int(found.flagged.sum())
        print(
            f"{share:.0%} changed: {number} in doubt ({number / len(x):.2%}), "
            f"precision {right / max(number, 1):.2f}, recall {right / max(len(flipped), 1):.2f}, "
            f"classifier {found.accuracy:.1%}"
        )


def measure_problems(x: Tensor, y: Tensor) -> None:
    """Count problems in plain images, and in the same with some planted."""
    planted: list[Change] = [
        lambda image: image.point(lambda v: v * 0.15),
        lambda image: image.point(lambda v: 220 + v * 0.13),
        lambda image: image.filter(ImageFilter.GaussianBlur(3)),
    ]
    for title in ("plain", "planted"):
        if title == "planted":
            for k, change in enumerate(planted):
                rows = slice(k * PLANTED, (k + 1) * PLANTED)
                x[rows] = _changed(x[rows], change)
        _, sight = seen(ArraySplit(x, y), ArraySplit(x[:0], y[:0]))
        far = problems.isolation(problems.features(sight))
        counts = [f"{name} {int(flags.sum())}" for name, flags in problems.flags(sight, far, None)]
        print(f"{title}: {', '.join(counts)}")


MEASURES = {"copies": measure_copies, "labels": measure_labels, "problems": measure_problems}


if __name__ == "__main__":
    what, name, *number = sys.argv[1:]
    MEASURES[what](*load(name, int(number[0]) if number else None))
