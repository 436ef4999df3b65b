"""Datasets by name, their splits, and the way from pixels to batches.

data = build("biased-mnist-mini", rho=0.95)     # Data(train, valid, test, info, …)
"""

from fairmargin.data.datasets import DATASETS, OWN, build, is_own, own_kind, own_path
from fairmargin.data.split import ArraySplit, Data, FileSplit, Split

__all__ = [
    "DATASETS",
    "OWN",
    "ArraySplit",
    "Data",
    "FileSplit",
    "Split",
    "build",
    "is_own",
    "own_kind",
    "own_path",
]
