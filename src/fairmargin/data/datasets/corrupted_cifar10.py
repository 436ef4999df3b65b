"""Corrupted CIFAR-10: every class is tied to an image corruption.

It is made here from CIFAR-10, or read from the published archive. The bias of each image is
assigned without randomness (`bias.assign_by_milestones`, Nam et al., NeurIPS 2020); the noise
inside a corruption comes from a stream of its own for each image. So a dataset is a function of its
settings, and cached by them.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data import corruptions, raw, sources
from fairmargin.data.bias import assign_by_milestones, count_cells
from fairmargin.data.datasets import align_conflict
from fairmargin.data.datasets.cifar import CLASSES, in_memory
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import CIFAR10, crop_flip, plain

Mapping = Literal["dfa", "lff0", "lff1"]
Origin = Literal["generate", "archive"]
MAPPINGS: dict[Mapping, tuple[str, ...]] = {
    "dfa": (
        "brightness", "contrast", "gaussian-noise", "frost", "elastic",
        "gaussian-blur", "defocus-blur", "impulse-noise", "saturate", "pixelate",
    ),
    "lff0": (
        "snow", "frost", "fog", "brightness", "contrast",
        "spatter", "elastic", "jpeg", "pixelate", "saturate",
    ),
    "lff1": (
        "gaussian-noise", "shot-noise", "impulse-noise", "speckle-noise", "gaussian-blur",
        "defocus-blur", "glass-blur", "motion-blur", "zoom-blur", "original",
    ),
}  # fmt: skip
TEST_ALIGNED = 0.1
# No training and test image share their noise.
FIRST_STREAM = {"train": 0, "test": 1_000_000}
# Raise it when the same settings make other pixels.
CACHE_VERSION = 1


def build(
    root: Path,
    *,
    ratio: float = 5.0,
    mapping: Mapping = "dfa",
    level: int = 5,
    seed: int = 0,
    valid_fraction: float = 0.1,
    source: Origin = "generate",
    frost_dir: Path | None = None,
) -> Data:
    """Build corrupted CIFAR-10.

    Args:
        ratio: per cent of the training images whose corruption is not their class's own: 0.5, 1, 2
            and 5 in the paper.
        mapping: which corruption belongs to which class: "dfa" (the paper's archive), "lff0" or
            "lff1".
        level: of the corruption, 1 to 5.
        seed: of the corruptions' noise and of the validation split.
        source: "generate" from CIFAR-10, or "archive" to read the published `cifar10c/` tree, of
            which the seed draws only the validation split.
        frost_dir: folder with the frost photographs; without it a procedural frost is used, and
            noted.
    """
    check_choice(mapping, "mapping", MAPPINGS)
    check_choice(source, "source", get_args(Origin))
    if not 0 <= ratio <= 100:
        raise ValueError(f"ratio is the percentage of conflicting samples, 0 to 100; got {ratio}")
    train_views, eval_views = crop_flip(32, 4, *CIFAR10), plain(*CIFAR10)
    if source == "archive":
        if (mapping, level, frost_dir) != ("dfa", 5, None):
            raise ValueError(
                "the archive's images are corrupted already, as mapping=dfa at level 5 with its "
                "own frost; leave mapping, level and frost_dir alone, or make the images with "
                "source=generate"
            )
        return align_conflict.build(
            root / "cifar10c",
            f"{ratio:g}pct",
            "corrupted-cifar10",
            CLASSES,
            MAPPINGS["dfa"],
            32,
            train_views,
            eval_views,
            valid_fraction=valid_fraction,
            seed=seed,
        )
    images, labels, test_images, test_labels = raw.cifar10(sources.locate("cifar10", root))
    frost = corruptions.frost_source(frost_dir)
    settings = {
        "mapping": mapping,
        "level": level,
        "seed": seed,
        "version": CACHE_VERSION,
        "frost": frost if frost_dir is None else str(Path(frost_dir).resolve()),
    }

    def split(name: str, pixels: np.ndarray, y: np.ndarray, aligned: float) -> ArraySplit:
        bias = assign_by_milestones(y, aligned)
        stream = np.arange(len(y)) + FIRST_STREAM[name]
        make = partial(_corrupt, pixels, bias, stream, mapping, level, seed, frost_dir)
        folder = root / "cache" / "corrupted-cifar10"
        corrupted = _cached(folder, {**settings, "split": name, "aligned": aligned}, make)
        return in_memory(corrupted, y, bias)

    whole = split("train", images, labels, 1 - ratio / 100)
    test = split("test", test_images, test_labels, TEST_ALIGNED)
    train, valid = whole.hold_out(valid_fraction, seed=seed)
    notes = {
        "source": "CIFAR-10",
        "ratio": f"{ratio:g} %",
        "mapping": mapping,
        "level": str(level),
        "frost": frost,
    }
    counts = count_cells(train.labels, train.bias, 10, 10)
    info = DataInfo("corrupted-cifar10", CLASSES, MAPPINGS[mapping], (3, 32, 32), counts, notes)
    return Data(train, valid, test, info, train_views, eval_views)


def _corrupt(
    images: np.ndarray,
    bias: np.ndarray,
    stream: np.ndarray,
    mapping: Mapping,
    level: int,
    seed: int,
    frost_dir: Path | None,
) -> np.ndarray:
    out = np.empty_like(images)
    for b, name in enumerate(MAPPINGS[mapping]):
        index = np.flatnonzero(bias == b)
        if len(index):
            out[index] = corruptions.corrupt(
                images[index], name, level, seed=seed, index=stream[index], frost_dir=frost_dir
            )
    return out


def _cached(
    folder: Path, settings: dict[str, object], make: Callable[[], np.ndarray]
) -> np.ndarray:
    """Return the array for these settings, from disk if it is there and whole.

    Otherwise it is made, and kept where the root is writable.
    """
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    path = folder / f"{key}.npy"
    try:
        cached: np.ndarray = np.load(path, allow_pickle=False)
        return cached
    except (OSError, ValueError):
        pass
    made = make()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as part:
            np.save(part, made)
        os.replace(part.name, path)
        path.with_suffix(".json").write_text(json.dumps(settings, indent=1, sort_keys=True))
    # A read-only data root: the next run makes it again.
    except OSError:
        pass
    return made
