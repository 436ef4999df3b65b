"""Checksums of a finished run's files, and whether they are still what they were.

result.json names the SHA-256 of every file that was there when it was written. One changed bit in
weights gives other answers and no error, so whoever uses them looks at the checksum first. Folders
of versions before 0.2 have none. Needs no PyTorch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fairmargin.runs import record as files
from fairmargin.runs.record import RunError, RunRecord
from fairmargin.runtime.whole import digest

# Entry of result.json.
CHECKSUMS = "sha256"
# What is written before the result, and not changed afterwards.
COVERED = (
    files.CONFIG,
    files.DATA,
    files.NETWORK,
    files.ENVIRONMENT,
    files.METRICS,
    files.WEIGHTS,
    files.BEST,
    files.HEAD,
    f"{files.BIAS}.npz",
    f"{files.TEST}.npz",
    f"{files.EXAMPLES}.npz",
)

Verdict = Literal["whole", "changed", "missing", "unknown", "damaged"]


@dataclass(frozen=True)
class Verified:
    """What became of one file."""

    name: str
    verdict: Verdict
    said: str = ""

    @property
    def bad(self) -> bool:
        """True if the file is not what the run wrote."""
        return self.verdict in ("changed", "missing", "damaged")


def checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a run that is there.

    Args:
        folder: of the run.
    """
    return {name: digest(folder / name) for name in COVERED if (folder / name).is_file()}


def check_file(file: Path, result: Mapping[str, Any] | None) -> None:
    """Raise a RunError if a file of a run has changed since the run was finished.

    Args:
        file: of the run folder; it exists.
        result: the run's result.json; None, and one without checksums, accept anything.
    """
    wanted = ((result or {}).get(CHECKSUMS) or {}).get(file.name)
    if wanted is not None and digest(file) != wanted:
        raise RunError(
            f"{file} has changed since the run was finished: its SHA-256 is not the one in "
            f"{files.RESULT}. Copy the run folder again, or train it again",
            run=file.parent,
        )


def verify(folder: Path) -> Iterator[Verified]:
    """Compare every file of a finished run with its checksum, and read what can be read.

    Args:
        folder: of the run.
    """
    record = RunRecord.read(folder)
    recorded = record.outcome.get(CHECKSUMS) or {}
    for name in COVERED:
        file = folder / name
        if not file.is_file():
            if name in recorded:
                yield Verified(name, "missing", "it was there when the run was finished")
        elif name not in recorded:
            yield Verified(name, "unknown", "no checksum was recorded")
        elif digest(file) == recorded[name]:
            yield Verified(name, "whole")
        else:
            yield Verified(name, "changed", "its SHA-256 is another one")
    yield from _arrays(record)


def _arrays(record: RunRecord) -> Iterator[Verified]:
    """Arrays that cannot be read; checksums alone would not notice what was damaged before them."""
    for name in (files.TEST, files.EXAMPLES):
        if record.has_arrays(name):
            try:
                record.arrays(name)
            except RunError as error:
                yield Verified(f"{name}.npz", "damaged", str(error))
