"""What a run says at its end."""

from pathlib import Path

import pytest

from fairmargin.config import load
from fairmargin.runs.remarks import closing_remarks
from fairmargin.runs.remarks import said as said_of

PATH = Path("runs/my/ce/seed-0")


def result(own=0.8, probe=0.8, knn=0.8, valid=0.8, test=0.8, conflicting=0.8, reported="own"):
    judged = {"own": own, "probe": probe, "knn": knn}
    order = [reported, *(name for name in judged if name != reported)]
    return {
        "headline": {"classifier": reported, "accuracy": "cell-mean"},
        "test": {name: {"accuracy": {"cell-mean": {"value": judged[name]}}} for name in order},
        "records": {
            "last": {
                "valid": {"plain": valid},
                "test": {"plain": test, "conflicting": conflicting},
            }
        },
    }


def remarks(**values):
    return closing_remarks(result(**values), load(dataset="planted", method="ce"))


def test_nothing_is_said_of_a_run_that_is_as_it_seems():
    assert remarks(probe=0.82, knn=0.79, valid=0.85) == []


@pytest.mark.parametrize(
    ("values", "said", "option"),
    [
        ({"probe": 0.9}, "one fitted to the same features (90.0%)", "fitted"),
        ({"probe": 0.84, "knn": 0.86}, "nearest neighbours (86.0%)", "knn"),
    ],
)
def test_a_classifier_that_lags_is_said_and_the_other_offered(values, said, option):
    (remark,) = remarks(**values)
    assert "(cell-mean 80.0%) lags behind " + said in remark
    assert f"--set evaluate.report_classifier={option}" in remark


def test_who_reports_the_fitted_one_hears_nothing_of_a_lag():
    assert remarks(probe=0.9, reported="probe") == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"valid": 0.96, "conflicting": 0.3}, "what conflicting test samples show (30.0%)"),
        ({"valid": 0.96, "test": 0.7, "conflicting": 0.9}, "what the test set shows (70.0%)"),
    ],
)
def test_a_validation_that_flatters_is_said_with_the_next_command(values, said):
    (remark,) = remarks(**values)
    assert f"validation accuracy (96.0%) is far above {said}" in remark
    # The result is kept, and its folder may be moved.
    assert remark.endswith("Next: fairmargin audit RUN")
    assert said_of(remark, PATH).endswith(f"Next: fairmargin audit {PATH}")
