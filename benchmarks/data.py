"""Images per second of the input pipeline alone, ours against Pillow's, image by image.

    python -m benchmarks.data                about a minute
    python -m benchmarks.data --rounds 3     quicker
    python -m benchmarks.data --threads 1    one thread on both sides; Pillow's always has one

Random uint8 images, batches of 256, no worker processes. Both sides of a case take turns, so that a
busy moment of the machine does not fall on one of them; the figures are medians over rounds. Images
are counted once however many views they give. Run it on an idle machine: an operation on several
threads lasts as long as its slowest core.
"""

import argparse
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from fairmargin.batch import Batch
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import Shuffled
from fairmargin.data.split import ArraySplit
from fairmargin.data.views import CIFAR10, HALF, Channels, Views, plain, supcon

BATCH = 256


def to_normalized(image: Image.Image, mean: Tensor, std: Tensor) -> Tensor:
    """Return an image as a normalized tensor."""
    array = np.asarray(image)
    return (torch.from_numpy(array.transpose(2, 0, 1).copy()).float() / 255 - mean) / std


def pil_supcon(image: Image.Image) -> Image.Image:
    """Crop, flip, jitter and turn one image grey, by the definitions of `fairmargin.data.views`."""
    image = pil_resized_crop(image, 32, (0.2, 1.0), (3 / 4, 4 / 3))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if random.random() < 0.8:
        image = pil_jitter(image)
    if random.random() < 0.2:
        image = image.convert("L").convert("RGB")
    return image


def pil_resized_crop(
    image: Image.Image, size: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> Image.Image:
    """Return a random part of an image, resized to `size` × `size` pixels.

    Args:
        scale: range of the part's share of the area.
        ratio: range of its width/height.
    """
    width, height = image.size
    for _ in range(10):
        area = random.uniform(*scale) * width * height
        shape = math.exp(random.uniform(*map(math.log, ratio)))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            break
    else:
        left, top, w, h = 0, 0, width, height
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + w, top + h))


def pil_jitter(image: Image.Image) -> Image.Image:
    """Return an image with random brightness, contrast, saturation and hue."""
    operations: list[Callable[[Image.Image], Image.Image]] = [
        lambda x: ImageEnhance.Brightness(x).enhance(random.uniform(0.6, 1.4)),
        lambda x: ImageEnhance.Contrast(x).enhance(random.uniform(0.6, 1.4)),
        lambda x: ImageEnhance.Color(x).enhance(random.uniform(0.6, 1.4)),
        lambda x: pil_hue(x, random.uniform(-0.1, 0.1)),
    ]
    random.shuffle(operations)
    for operation in operations:
        image = operation(image)
    return image


def pil_hue(image: Image.Image, shift: float) -> Image.Image:
    """Return an image with its hue turned by a share of the circle."""
    hue, saturation, value = image.convert("HSV").split()
    turned = (np.asarray(hue).astype(np.int16) + round(shift * 255)) % 256
    new_hue = Image.fromarray(turned.astype(np.uint8))
    return Image.merge("HSV", (new_hue, saturation, value)).convert("RGB")


def per_image(
    pixels: np.ndarray,
    labels: np.ndarray,
    statistics: tuple[Channels, Channels],
    transform: Callable[[Image.Image], Image.Image] | None,
    views: int,
) -> Iterator[Batch]:
    """Batches assembled the usual way: array → Pillow image → transforms → tensor, then stacked."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in statistics)
    order = np.random.default_rng(0).permutation(len(pixels))
    for start in range(0, len(order), BATCH):
        index = order[start : start + BATCH]
        samples = []
        for i in index:
            image = Image.fromarray(pixels[i])
            drawn = [transform(image) if transform else image for _ in range(views)]
            draws = [to_normalized(view, mean, std) for view in drawn]
            samples.append((draws[0] if views == 1 else torch.stack(draws), int(labels[i])))
        images = torch.stack([image for image, _ in samples])
        targets = torch.tensor([label for _, label in samples])
        yield Batch(images, targets, None, torch.from_numpy(index))


def rate(run: Callable[[], Iterator[Batch]]) -> float:
    """Return the images per second of one pass."""
    start = time.perf_counter()
    images = sum(len(batch) for batch in run())
    return images / (time.perf_counter() - start)


def compare(
    name: str,
    side: int,
    views: Views,
    transform: Callable[[Image.Image], Image.Image] | None,
    batches: int,
    rounds: int,
    target: float,
) -> None:
    """Print the images per second of both pipelines, and their ratio."""
    random.seed(0)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (batches * BATCH, side, side, 3), np.uint8)
    labels = rng.integers(0, 10, len(pixels))
    split = ArraySplit(
        torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels)
    )
    loader = Loader(split, views, Shuffled(len(split)), BATCH)
    ours: Callable[[], Iterator[Batch]] = lambda: iter(loader)
    theirs: Callable[[], Iterator[Batch]] = lambda: per_image(
        pixels, labels, (views.mean, views.std), transform, views.number
    )
    rate(ours)  # once without counting: allocator, thread pool
    fast, slow = zip(*((rate(ours), rate(theirs)) for _ in range(rounds)), strict=True)
    a, b = statistics.median(fast), statistics.median(slow)
    print(f"{name:<44}{a:>14,.0f}{b:>14,.0f}{a / b:>9.1f}×   target ≥ {target:g}×")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    rounds = arguments.rounds
    torch.set_num_threads(arguments.threads)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores, "
        "CPU\n"
    )
    print(f"{'images/s, batch 256':<44}{'ours':>14}{'per image':>14}{'ratio':>10}")
    compare("Biased-MNIST 28×28, normalize", 28, plain(*HALF), None, 20, rounds, 20)
    compare("CIFAR 32×32, two SupCon views", 32, supcon(32, *CIFAR10), pil_supcon, 8, rounds, 3)


if __name__ == "__main__":
    main()
