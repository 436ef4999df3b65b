"""Ranges of the datasets' options that are numbers."""

from collections.abc import Mapping
from typing import Any

from fairmargin.checks import SHARE, Range

# By option; of lists, of each number in them.
RANGES: dict[str, Range] = {
    "bias_bins": Range(2, 1000),
    "classes": Range(2, 8),
    "confusing": Range(1, 9),
    "core": Range(0, 1),
    "image_size": Range(1, 4096),
    "keep": Range(1, 1_000_000),
    "label_noise": SHARE,
    "largest_image": Range(0, 1_000_000, above=True),
    "level": Range(1, 5),
    "mean": Range(-1000, 1000),
    "memory_limit": Range(0, 1 << 50),
    "noise": Range(0, 1),
    "ratio": Range(0, 100),
    "rho": SHARE,
    "seed": Range(0, (1 << 32) - 1),
    "severity": Range(1, 5),
    "shortcut": Range(0, 1),
    "side": Range(1, 1024),
    "size": Range(1, 4096),
    "skew": SHARE,
    "std": Range(0, 1000, above=True),
    "strength": SHARE,
    "test": Range(1, 10_000_000),
    "test_fraction": Range(0, 1, below=True),
    "test_rho": SHARE,
    "train": Range(1, 10_000_000),
    "valid_fraction": Range(0, 1, below=True),
    "variance": Range(0, 1),
    "workers": Range(0, 256),
}


def check_ranges(options: Mapping[str, Any]) -> None:
    """Raise a ValueError if an option is a number, or has one, that is not in its range.

    Args:
        options: of a dataset.
    """
    for name, value in options.items():
        values = value if isinstance(value, list | tuple) else [value]
        numbers = [one for one in values if type(one) in (int, float)]
        for number in numbers if name in RANGES else []:
            problem = RANGES[name].problem(number)
            if problem:
                raise ValueError(f"{name} {problem}")
