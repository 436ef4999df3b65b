"""A run's numbers in TensorBoard, with `train.tensorboard = true`."""

from collections.abc import Mapping
from pathlib import Path

from fairmargin.runs.folder import RunFolder


class Board:
    """Writes numbers under the folder's tensorboard/.

    Args:
        folder: the run folder.
        step: the step from which the run goes on; what was written after it is hidden.
    """

    def __init__(self, folder: RunFolder, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                'train.tensorboard needs an extra package: pip install "fairmargin[tensorboard]"'
            ) from error
        path = Path(folder.path) / "tensorboard"
        self._writer = SummaryWriter(str(path), purge_step=step)

    def add(self, group: str, numbers: Mapping[str, float], step: int) -> None:
        """Write each number as "group/name" at this step.

        Args:
            group: "train", "valid" or "test".
            numbers: by name.
            step: of the training.
        """
        for name, value in numbers.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)

    def close(self) -> None:
        """Write what is still in memory."""
        self._writer.close()
