"""Datasets by name, their splits, and the way from pixels to batches.

data = build("biased-mnist-mini", rho=0.95)     # Data(train, valid, test, info, …)
"""

from fairmargin.data.datasets import DATASETS, build, is_own
from fairmargin.data.split import ArraySplit, Data, FileSplit, Split

__all__ = ["DATASETS", "ArraySplit", "Data", "FileSplit", "Split", "build", "is_own"]
