"""bFFHQ (Lee et al., NeurIPS 2021): young and old faces.

Nearly all young ones are women and nearly all old ones are men.
"""

from pathlib import Path

from fairmargin.data.datasets import align_conflict
from fairmargin.data.split import Data, ValidFrom
from fairmargin.data.views import CIFAR10, crop_flip, plain

# 10 to 29 years, 40 to 59 years.
AGES = ("young", "old")
GENDERS = ("female", "male")
SIZE = 224


def build(
    root: Path,
    *,
    ratio: float = 0.5,
    test_subset: align_conflict.TestSubset = "conflict",
    valid: ValidFrom = "from-train",
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Build the archive under `<root>/bffhq`; images are stretched from 128×128 to 224×224.

    Args:
        ratio: per cent of conflicting training samples: 0.5 in the paper's archive; a later release
            adds 1, 2 and 5.
        test_subset: "conflict" (the paper: old women and young men only) or "all" four groups.
        valid: "from-train", or "own" for the archive's folder. Its known copies hold aligned
            samples only, so choosing by it favours the biased model; hence the default.
        valid_fraction: share of every (age, gender) cell of the training samples to hold out.
        seed: of the validation split.
    """
    return align_conflict.build(
        root / "bffhq",
        f"{ratio:g}pct",
        "bffhq",
        AGES,
        GENDERS,
        SIZE,
        # The statistics of CIFAR-10, as in the public codes.
        crop_flip(SIZE, 4, *CIFAR10),
        plain(*CIFAR10),
        test_subset=test_subset,
        valid=valid,
        valid_fraction=valid_fraction,
        seed=seed,
    )
