"""Keep the weights of finished runs at the published protocol, so that anyone can check them.

    fairmargin reproduce weights --out RUNS --weights results/weights
    fairmargin evaluate results/weights/biased-mnist-ce-rho=0.99-seed-0

A kept run is a small run folder: configuration, facts, metrics, last weights, result and a model
card. Evaluating it takes a minute and gives the number in the ledger.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from fairmargin.export.card import model_card
from fairmargin.reproduce import ledger
from fairmargin.reproduce.budgets import Budget
from fairmargin.reproduce.cells import Cell, cells
from fairmargin.reproduce.ledger import Say
from fairmargin.runs.folder import RunRecord
from fairmargin.runs.integrity import CHECKSUMS, check_file
from fairmargin.runs.record import CONFIG, DATA, ENVIRONMENT, METRICS, NETWORK, RESULT, WEIGHTS
from fairmargin.runtime.whole import write_atomically, write_text

# What is kept as it is.
COPIED = (CONFIG, DATA, NETWORK, ENVIRONMENT, METRICS, WEIGHTS)
CARD = "README.md"


def keep(out: Path, folder: Path, say: Say, budget: Budget = "paper") -> list[Path]:
    """Copy what belongs to finished runs at the published protocol; return the kept folders.

    A run that is kept already is copied anew.

    Args:
        out: the folder of all runs.
        folder: of the kept runs; made if it does not exist.
        say: gets a line for each kept run, and for each that was not made as its cell says.
        budget: of the runs.
    """
    kept = []
    for cell, record in _finished(out, budget, say):
        place = folder / name(cell, int(record.config["seed"]))
        _copy(record, place)
        write_text(place / CARD, model_card(place, name=cell.name))
        say(f"kept: {place}")
        kept.append(place)
    return kept


def name(cell: Cell, seed: int) -> str:
    """Return the name of a kept run's folder, without characters that file systems refuse."""
    parts = (cell.dataset, cell.row, cell.setting.replace(";", ","), cell.reading, f"seed-{seed}")
    return "-".join(part for part in parts if part)


def _finished(out: Path, budget: Budget, say: Say) -> Iterator[tuple[Cell, RunRecord]]:
    """Finished runs, each with the first cell that it belongs to."""
    known: set[Path] = set()
    for cell in cells("all"):
        for record in ledger.runs_as_planned(cell, out, budget, say) if cell.published else ():
            if record.finished and record.path not in known:
                known.add(record.path)
                yield cell, record


def _copy(record: RunRecord, place: Path) -> None:
    """Copy a run's files; its result names the checksums of those that are kept."""
    place.mkdir(parents=True, exist_ok=True)
    for file in (record.path / one for one in COPIED):
        if file.is_file():
            check_file(file, record.result)
            write_atomically(place / file.name, file.read_bytes())
    result = dict(record.outcome)
    sums = result.get(CHECKSUMS) or {}
    result[CHECKSUMS] = {key: value for key, value in sums.items() if key in COPIED}
    write_text(place / RESULT, json.dumps(result, indent=1))


__all__ = ["keep", "name"]
