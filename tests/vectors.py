"""A small file of embeddings with a shortcut, for tests."""

from pathlib import Path

import numpy as np

LENGTH = 8


def embeddings(file: Path, seed: int = 0, **changes) -> Path:
    """90 vectors of three classes: 60 to train, 12 to validate, 18 to test.

    Args:
        changes: arrays to replace; None leaves one out.
    """
    random = np.random.default_rng(seed)
    y = np.arange(90) % 3
    b = np.where(random.random(90) < 0.8, y, random.integers(0, 3, 90))
    x = random.normal(size=(90, LENGTH))
    x[np.arange(90), y] += 2
    x[np.arange(90), 3 + b] += 4
    x[:, 6] = 100 + 50 * x[:, 6]
    x[:, 7] = 5
    arrays = {
        "embeddings": x,
        "labels": np.array(["ant", "bee", "cat"])[y],
        "bias": np.array(["red", "green", "blue"])[b],
        "split": np.array(["train"] * 60 + ["val"] * 12 + ["test"] * 18),
    }
    arrays |= changes
    np.savez(file, **{name: value for name, value in arrays.items() if value is not None})
    return file
