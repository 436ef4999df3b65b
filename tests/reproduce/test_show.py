import json
from pathlib import Path

from fairmargin.reproduce import show
from fairmargin.reproduce.cells import cells
from tests.reproduce.recorded import run_folder


def test_what_is_printed_counts_finished_runs_as_the_ledger_does(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    run_folder(cell, tmp_path, 0, 0.5)
    run_folder(cell, tmp_path, 1, None, epochs=1)
    (ours, seeds) = (
        list(column.cells) for column in show.table([cell], tmp_path, "laptop").columns[2:]
    )
    assert (ours, seeds) == (["50.0"], ["1"])


def test_the_study_is_ordered_by_validation_and_shows_intervals(tmp_path: Path) -> None:
    for name, values in {"moments": (0.9, 0.8), "divergence=kl": (0.95, 0.93)}.items():
        (cell,) = cells("fairkl", pattern=f"*:{name}")
        for seed, value in enumerate(values):
            run_folder(cell, tmp_path, seed, value)
            folder = cell.folder(tmp_path, "laptop", seed)
            test = {"cell-mean": 1 - value, "conflicting": 0.1, "worst-group": 0.0}
            last = {"valid": {"cell-mean": value}, "test": test}
            alike = {
                "positive-aligned": {"mean": 0.9, "pairs": 10},
                "positive-conflicting": {"mean": 0.8, "pairs": 90},
                "negative-aligned": {"mean": 0.5, "pairs": 100},
            }
            result = json.loads((folder / "result.json").read_text())
            result |= {"records": {"last": last}, "similarity": {"sets": alike}}
            (folder / "result.json").write_text(json.dumps(result))
    rows = show.study(tmp_path, "laptop").splitlines()[2:]
    # Student's t is 12.7 with two seeds.
    assert rows[0].startswith("| divergence=kl | 94.0 (81.3–100.0) | 6.0 (")
    assert rows[1].startswith("| moments | 85.0 (")
    assert rows[1].endswith("| 0.81 | 0.50 | 2 |")
    assert show.study(tmp_path / "empty", "laptop") == ""
