import json
from pathlib import Path

import pytest

from fairmargin.reproduce import ledger, measures
from fairmargin.reproduce.cells import cells
from tests.reproduce.recorded import run_folder


def test_the_best_epoch_is_the_best_of_what_is_reported(tmp_path: Path) -> None:
    """For bFFHQ that is the accuracy on conflicting samples."""
    (cell,) = cells("4", pattern="bffhq/vanilla*")
    run_folder(cell, tmp_path, 0, 0.5)
    folder = cell.folder(tmp_path, "laptop", 0)
    course = [
        {"plain": 0.9, "conflicting": 0.3},
        {"plain": 0.7, "conflicting": 0.45},
        {"plain": 0.8, "conflicting": 0.4},
    ]
    events = [
        {"event": "evaluation", "epoch": i, "step": 10, "valid": {}, "test": test}
        for i, test in enumerate(course, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    accuracy = {"plain": {"value": 0.8}, "conflicting": {"value": 0.4}}
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(
        json.dumps(result | {"test": {"own": {"accuracy": accuracy}}})
    )
    (one,) = ledger.finished_or_all(ledger.runs_of(cell, tmp_path, "laptop"))
    assert (one.last, one.best_on_test) == (40.0, 45.0)


@pytest.mark.parametrize(
    ("classifiers", "expected"),
    [(["own"], (50.0, 51.0)), (["own", "probe"], (60.0, None)), (["own", "linear"], (70.0, 75.0))],
)
def test_the_classifier_of_the_cell_is_reported_with_its_own_best_epoch(
    classifiers: list[str], expected: tuple[float, float | None], tmp_path: Path
) -> None:
    (cell,) = cells("2", pattern="cifar10/supcon")
    run_folder(cell, tmp_path, 0, 0.5, epochs=10, extra=[f"evaluate.classifiers={classifiers}"])
    file = cell.folder(tmp_path, "laptop", 0) / "result.json"
    result = json.loads(file.read_text())
    judged = {
        "own": result["test"]["own"],
        "probe": {"accuracy": {"plain": {"value": 0.6}}},
        "linear": {
            "accuracy": {"plain": {"value": 0.7}},
            "best-on-test": {"epoch": 2, "plain": 0.75},
        },
    }
    file.write_text(json.dumps(result | {"test": {name: judged[name] for name in classifiers}}))
    (one,) = ledger.finished_or_all(ledger.runs_of(cell, tmp_path, "laptop"))
    assert (one.last, one.best_on_test) == expected


def test_another_classifier_is_no_substitute_for_the_cell_s(tmp_path: Path) -> None:
    """Linear evaluation of features that are not finite has no result."""
    (cell,) = cells("2", pattern="cifar10/supcon")
    run_folder(cell, tmp_path, 0, 0.5, epochs=10)
    (record,) = ledger.runs_of(cell, tmp_path, "laptop")
    assert record.result is not None
    assert list(record.result["test"]) == ["own"]
    assert measures.measured(record) is None


@pytest.mark.parametrize("finished", [True, False])
def test_the_best_epoch_is_of_the_final_stage(tmp_path: Path, finished: bool) -> None:
    """A first stage that follows the shortcut may have a higher accuracy, but is not the method."""
    (cell,) = cells("4", pattern="corrupted-cifar10/dfa:ratio_pct=5.0")
    run_folder(cell, tmp_path, 0, 0.4 if finished else None)
    folder = cell.folder(tmp_path, "laptop", 0)
    events = [
        {
            "event": "evaluation",
            "epoch": i,
            "step": 10 * i,
            "valid": {},
            "test": {"plain": value},
            "final_stage": final,
        }
        for i, (value, final) in enumerate([(0.9, False), (0.45, True), (0.4, True)], 1)
    ]
    for known, best in ((3, 45.0), (1, None)):
        (folder / "metrics.jsonl").write_text(
            "".join(json.dumps(event) + "\n" for event in events[:known])
        )
        (one,) = ledger.finished_or_all(ledger.runs_of(cell, tmp_path, "laptop"))
        assert one.best_on_test == best


def test_a_run_that_ends_by_its_steps_is_whole(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    limit = ["train.epochs=400", "train.steps=100"]
    run_folder(cell, tmp_path, 0, 0.5, epochs=4, extra=limit)
    run_folder(cell, tmp_path, 1, None, epochs=2, extra=limit)  # 10 steps
    one, other = (measures.measured(record) for record in ledger.runs_of(cell, tmp_path, "laptop"))
    assert one is not None
    assert other is not None
    assert (one.epochs, one.of_epochs) == (4, 4)
    assert (other.epochs, other.of_epochs) == (2, 20)
