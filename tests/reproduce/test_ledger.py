import json
from dataclasses import replace
from pathlib import Path

from fairmargin.reproduce import ledger
from fairmargin.reproduce.budgets import EPOCHS
from fairmargin.reproduce.cells import cells
from fairmargin.reproduce.ledger import Line
from tests.reproduce.recorded import line, run_folder


def verdicts(*lines: Line) -> list[str]:
    return [one.verdict.partition(" (")[0] for one in ledger.judged(lines)]


def test_only_the_published_protocol_reproduces_a_number() -> None:
    assert verdicts(line("ce", 90.8, 90.1, budget="paper")) == ["reproduced"]
    assert verdicts(line("ce", 90.8, 88.0, budget="paper")) == ["not reproduced"]
    assert verdicts(line("ce", 90.8, 90.8)) == ["near"]
    assert verdicts(line("ce", 90.8, 90.8, budget="paper", epochs="20 of 80")) == ["not judged"]
    (unfinished,) = ledger.judged([line("ce", 90.8, 90.8, budget="paper", epochs="20 of 80")])
    assert unfinished.verdict == "not judged (unfinished, 20 of 80 epochs)"
    above = line(
        "eps-supinfonce+fairkl", 97.9, 20.0, budget="paper", epochs="20 of 80", reading="authors"
    )
    assert verdicts(line("ce", 90.8, 50.0, budget="paper"), above) == [
        "not reproduced",
        "not judged",
    ]
    assert (
        "against" not in ledger.judged([line("ce", 90.8, 50.0, budget="paper"), above])[0].verdict
    )


def test_the_band_is_two_deviations_and_wider_where_the_bias_is_stronger() -> None:
    near = line("ce", 62.5, 65.4, budget="paper", published_std=0.1)
    assert verdicts(near) == ["not reproduced"]
    assert verdicts(replace(near, setting="rho=0.997")) == ["reproduced"]
    assert verdicts(replace(near, published_std=1.5)) == ["reproduced"]


def test_the_best_epoch_on_test_is_named_and_changes_no_verdict() -> None:
    fell = line("ce", 90.8, 84.7, budget="paper", published_std=1.0)
    aside = " (its best epoch on test, as the authors' code counts, is within the band)"
    (judged,) = ledger.judged([replace(fell, best_on_test=89.2)])
    assert judged.verdict == "not reproduced" + aside
    for other in (
        replace(fell, best_on_test=88.7),
        replace(fell, best_on_test=89.2, budget="laptop"),
    ):
        assert ledger.judged([other])[0].verdict == "not reproduced"


def test_a_reduced_protocol_is_near_within_three_points() -> None:
    assert verdicts(line("ce", 90.8, 87.9)) == verdicts(line("ce", 90.8, 93.7)) == ["near"]
    assert verdicts(line("ce", 90.8, 87.7)) == ["not reproduced"]
    # Two published deviations may be more.
    assert verdicts(line("ce", 62.5, 57.0, published_std=2.9)) == ["near"]
    # An order that does not hold is named and does not make it less near.
    two = [line("biascon+ce", 97.67, 97.7), line("biasbal", 96.3, 97.8)]
    near, above = ledger.judged([replace(one, published_std=0.1) for one in two])
    assert near.verdict == "near (0 of 1 orderings; not against biasbal)"
    assert above.verdict == "near (0 of 1 orderings; not against biascon+ce)"


def test_order_only_is_every_clear_ordering() -> None:
    baseline, ours = (
        line("ce", 90.8, 30.0),
        line("eps-supinfonce+fairkl", 97.9, 88.0, reading="authors"),
    )
    assert verdicts(baseline, ours) == ["order only", "order only"]
    worse = replace(ours, ours=20.0)
    assert verdicts(baseline, worse) == ["not reproduced", "not reproduced"]
    verdict_of_baseline, verdict = (one.verdict for one in ledger.judged([baseline, worse]))
    assert "not against ce)" in verdict
    assert "not against eps-supinfonce+fairkl (authors))" in verdict_of_baseline


def test_what_the_paper_does_not_tell_apart_is_not_held_against_us() -> None:
    near = (
        line("eps-supcon", 91.1, 40.0, published_std=0.4),
        line("eps-supinfonce", 91.2, 35.0, published_std=0.5),
    )
    below = line("lnl", 86.0, 20.0)
    assert verdicts(*near, below) == ["order only"] * 3


def test_readings_and_budgets_are_not_compared_with_each_other() -> None:
    one = line("ce+fairkl", 95.9, 50.0, reading="paper")
    other_reading = line("eps-supcon+fairkl", 99.0, 60.0, reading="authors")
    other_budget = line("ce", 90.8, 40.0, budget="paper")
    for other in (other_reading, other_budget):
        # Without an ordering that could hold there is no "order only", and none to name.
        assert ledger.judged([one, other])[0].verdict == "not reproduced"


def test_a_setting_that_is_out_of_order_is_named_by_what_differs() -> None:
    best, worst = (
        replace(
            line("ours+fairkl", published, ours, reading="paper"),
            table="12",
            setting=f"rho=0.99;lambda=1;alpha={alpha}",
        )
        for published, ours, alpha in ((97.0, 40.0, 0.1), (90.0, 50.0, 1.0))
    )
    assert ledger.judged([best, worst])[0].verdict.endswith("not against alpha=1.0)")


def test_a_csv_gives_the_same_lines(tmp_path: Path) -> None:
    lines = ledger.merged([], [])
    assert len(lines) == sum(len(cell.published) for cell in cells("all"))
    ran = ledger.judged([line("ce", 90.8, 30.0, note='a "note", with a comma', commit="abc")])
    for wanted in (lines, ran):
        file = tmp_path / "ledger.csv"
        file.write_text(ledger.text(wanted), "utf-8")
        assert ledger.read(file) == wanted


def test_runs_become_lines(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    run_folder(cell, tmp_path, 0, 0.5)
    run_folder(cell, tmp_path, 1, 0.6)
    # Not finished: does not count when others are.
    run_folder(cell, tmp_path, 2, None, epochs=3)
    (found,) = ledger.collect(tmp_path)
    assert (found.ours, found.ours_std, found.best_on_test, found.seeds) == (55.0, 7.07, 56.0, 2)
    assert (found.gap, found.commit, found.epochs) == (-35.8, "012345678", f"{EPOCHS} of {EPOCHS}")
    command = 'fairmargin reproduce 3 --cell "biased-mnist/ce:rho=0.99" --budget laptop'
    assert found.command == f"{command} --seeds 2"
    assert cell.command("laptop", [0]).endswith(" --seeds 1")
    assert cell.command("laptop", [5]).endswith(" --seeds 5,")
    assert cell.command("laptop", [0, 2]).endswith(" --seeds 0,2")


def test_a_run_that_was_resumed_with_other_code_names_all_of_it(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    run_folder(cell, tmp_path, 0, 0.5)
    commits = ["0123456789abcdef", "fedcba9876543210", "fedcba9876543210", None]
    parts = [{"git": {"commit": commit}} if commit else {"git": None} for commit in commits]
    facts = {"git": {"commit": commits[0]}, "parts": parts}
    (cell.folder(tmp_path, "laptop", 0) / "environment.json").write_text(json.dumps(facts))
    (found,) = ledger.collect(tmp_path)
    assert found.commit == "012345678, fedcba987"


def test_a_run_that_goes_on_is_shown_with_the_epochs_done(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    run_folder(cell, tmp_path, 0, None, epochs=3)
    (found,) = ledger.collect(tmp_path)
    assert (found.ours, found.epochs) == (25.0, f"3 of {EPOCHS}")


def test_a_run_with_other_settings_is_not_taken_for_its_cell(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    run_folder(cell, tmp_path, 0, 0.5, extra=["evaluate.every=2", "data.root=/elsewhere"])
    run_folder(cell, tmp_path, 1, 0.9, extra=["data.sampler=group-balanced"])
    said: list[str] = []
    (found,) = ledger.collect(tmp_path, said.append)
    assert (found.ours, found.seeds) == (50.0, 1)
    (message,) = said
    assert (
        'seed-1 is not biased-mnist/ce:rho=0.99 (data.sampler "auto" → "group-balanced")' in message
    )


def test_a_run_on_drawn_data_is_no_result_and_other_folders_are_left_alone(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    run_folder(cell, tmp_path, 0, 0.5)
    run_folder(cell, tmp_path, 1, 0.9)
    folder = cell.folder(tmp_path, "laptop", 1)
    (folder / "data.json").write_text(
        json.dumps({"notes": {"stand-in": "generated stand-in data"}})
    )
    cell.folder(tmp_path, "laptop", 0).with_name("seed-0-old").mkdir()
    said: list[str] = []
    (found,) = ledger.collect(tmp_path, said.append)
    assert (found.ours, found.seeds) == (50.0, 1)
    assert "seed-1 is not biased-mnist/ce:rho=0.99 (generated stand-in data)" in said[0]


def test_lines_stay_when_their_runs_are_elsewhere(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    run_folder(cell, tmp_path / "a", 0, 0.5)
    first = ledger.merged([], ledger.collect(tmp_path / "a"))
    again = ledger.merged(first, ledger.collect(tmp_path / "b"))
    assert [one for one in again if one.budget] == [one for one in first if one.budget] != []
    run_folder(cell, tmp_path / "c", 0, 0.7)
    (newer,) = [one for one in ledger.merged(again, ledger.collect(tmp_path / "c")) if one.budget]
    assert newer.ours == 70.0


def test_lines_of_a_protocol_that_is_no_longer_the_budgets_are_dropped(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    run_folder(cell, tmp_path, 0, 0.5)
    (today,) = ledger.collect(tmp_path)
    before = replace(today, ours=15.2, note="SimpleConvNet(7) with stride 2, four epochs")
    assert not [one for one in ledger.merged([before], []) if one.budget]
    (kept,) = [one for one in ledger.merged([before], [today]) if one.budget]
    assert kept.ours == 50.0
