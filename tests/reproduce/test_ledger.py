import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fairmargin import config as configuration
from fairmargin.reproduce import ledger, measures, orderings, pages, show
from fairmargin.reproduce.cells import Cell, cells
from fairmargin.reproduce.figures import drawing
from fairmargin.reproduce.ledger import Line

ROOT = Path(__file__).parents[2]


def line(method: str, published: float, ours: float, **others: object) -> Line:
    facts = {
        "reading": "",
        "budget": "laptop",
        "epochs": "6 of 6",
        "seeds": 1,
        "published_std": 0.5,
    } | others
    made = Line(
        "3", "biased-mnist", method, "rho=0.99", str(facts.pop("reading")), published, None, "paper"
    )
    return replace(made, ours=ours, gap=round(ours - published, 2), **facts)  # type: ignore[arg-type]


def verdicts(*lines: Line) -> list[str]:
    return [one.verdict.partition(" (")[0] for one in ledger.judged(lines)]


def test_only_the_published_protocol_reproduces_a_number() -> None:
    assert verdicts(line("ce", 90.8, 90.1, budget="paper")) == ["reproduced"]
    assert verdicts(line("ce", 90.8, 88.0, budget="paper")) == ["not reproduced"]
    assert verdicts(line("ce", 90.8, 90.8)) == [
        "not judged"
    ]  # by accident, and nothing to order it by
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


def test_a_trend_is_every_clear_ordering() -> None:
    baseline, ours = (
        line("ce", 90.8, 30.0),
        line("eps-supinfonce+fairkl", 97.9, 88.0, reading="authors"),
    )
    assert verdicts(baseline, ours) == ["trend reproduced", "trend reproduced"]
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
    assert verdicts(*near, below) == ["trend reproduced"] * 3


def test_readings_and_budgets_are_not_compared_with_each_other() -> None:
    one = line("ce+fairkl", 95.9, 50.0, reading="paper")
    assert (
        verdicts(one, line("eps-supcon+fairkl", 99.0, 40.0, reading="authors"))[0] == "not judged"
    )
    assert (
        "nothing to compare"
        in ledger.judged([one, line("ce", 90.8, 60.0, budget="paper")])[0].verdict
    )


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


def test_fairkl_is_held_against_the_best_method_without_it() -> None:
    lines = [
        line("ce", 90.8, 17.0),
        line("biasbal", 96.3, 90.8),
        line("lnl", 86.0, 99.0, epochs="1 of 6"),  # not finished: no result
        line("ce", 90.8, 99.0, budget="paper"),
        line("eps-supinfonce+fairkl", 97.9, 95.6, reading="recommended"),
        line("ce+fairkl", 95.9, 60.0, reading="paper"),
    ]
    found = {one.above.method: one for one in orderings.found(lines)}
    assert found["eps-supinfonce+fairkl"].below == found["ce+fairkl"].below == lines[1]
    assert found["eps-supinfonce+fairkl"].here
    assert not found["ce+fairkl"].here
    assert not found["ce+fairkl"].in_the_paper  # 95.9 is below BiasBal's 96.3
    page = orderings.markdown(orderings.found(lines))
    assert (
        "| eps-supinfonce+fairkl (recommended) > biasbal | biased-mnist, rho=0.99, laptop | 97.9 / 96.3 | 95.6 / 90.8 | yes |"
        in page
    )
    assert "| 95.9 / 96.3 (no) | 60.0 / 90.8 | **no** |" in page


def test_the_two_losses_are_compared_like_with_like() -> None:
    lines = [
        line("eps-supcon", 32.2, 25.0),
        line("eps-supinfonce", 33.2, 25.0),
        line("eps-supcon+fairkl", 97.9, 90.0, reading="paper"),
        line("eps-supinfonce+fairkl", 97.9, 80.0, reading="paper"),
        line("eps-supinfonce+fairkl", 97.9, 95.0, reading="authors"),
    ]
    found = [one for one in orderings.found(lines) if one.ties]
    assert [(one.above, one.below) for one in found] == [(lines[1], lines[0]), (lines[3], lines[2])]
    assert [one.here for one in found] == [True, False]


def test_the_page_shows_orderings_and_the_curves_of_long_runs() -> None:
    ran = [line("ce", 90.8, 17.0), line("eps-supinfonce+fairkl", 97.9, 95.6, reading="recommended")]
    assert "## Orderings" in pages.markdown(ran)
    assert "curves.png" not in pages.markdown(ran)
    assert "## Orderings" not in pages.markdown(ran[:1])
    assert "curves.png" in pages.markdown(
        [line("ce", 90.8, 17.0, budget="paper", epochs="9 of 80")]
    )


def test_a_csv_gives_the_same_lines(tmp_path: Path) -> None:
    lines = ledger.merged([], [])
    assert len(lines) == sum(len(cell.published) for cell in cells("all"))
    ran = ledger.judged([line("ce", 90.8, 30.0, note='a "note", with a comma', commit="abc")])
    for wanted in (lines, ran):
        file = tmp_path / "ledger.csv"
        file.write_text(ledger.text(wanted), "utf-8")
        assert ledger.read(file) == wanted


def run_folder(
    cell: Cell,
    out: Path,
    seed: int,
    accuracy: float | None,
    epochs: int = 4,
    extra: Sequence[str] = (),
) -> None:
    """What a run leaves that the ledger reads."""
    folder = cell.folder(out, "laptop", seed)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(configuration.dump(cell.config("laptop", seed, extra)))
    (folder / "environment.json").write_text(json.dumps({"git": {"commit": "0123456789abcdef"}}))
    course = [0.25] if accuracy is None else [accuracy + 0.01, accuracy]
    evaluated = {"event": "evaluation", "epoch": epochs, "step": 10, "valid": {}}
    events = [evaluated | {"test": {"plain": value}} for value in course]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if accuracy is not None:
        records: dict[str, object] = {"last": {}}
        test = {"own": {"accuracy": {"plain": {"value": accuracy}}}}
        result = {
            "epochs": epochs,
            "steps": 100,
            "records": records,
            "test": test,
            "extra_tests": {},
        }
        (folder / "result.json").write_text(json.dumps(result))


def test_runs_become_lines(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    run_folder(cell, tmp_path, 0, 0.5)
    run_folder(cell, tmp_path, 1, 0.6)
    run_folder(
        cell, tmp_path, 2, None, epochs=3
    )  # not finished: does not count beside finished ones
    (found,) = ledger.collect(tmp_path)
    assert (found.ours, found.ours_std, found.best_on_test, found.seeds) == (55.0, 7.07, 56.0, 2)
    assert (found.gap, found.commit, found.epochs) == (-35.8, "012345678", "4 of 4")
    assert (
        found.command
        == 'fairmargin reproduce 3 --cell "biased-mnist/ce:rho=0.99" --budget laptop --seeds 2'
    )
    assert cell.command("laptop", [0]).endswith(" --seeds 1")
    assert cell.command("laptop", [5]).endswith(" --seeds 5,")
    assert cell.command("laptop", [0, 2]).endswith(" --seeds 0,2")


def test_a_run_that_goes_on_is_shown_with_the_epochs_done(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    run_folder(cell, tmp_path, 0, None, epochs=3)
    (found,) = ledger.collect(tmp_path)
    assert (found.ours, found.epochs) == (25.0, "3 of 4")


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


def test_what_is_printed_counts_finished_runs_as_the_ledger_does(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    run_folder(cell, tmp_path, 0, 0.5)
    run_folder(cell, tmp_path, 1, None, epochs=1)
    (ours, seeds) = (
        list(column.cells) for column in show.table([cell], tmp_path, "laptop").columns[2:]
    )
    assert (ours, seeds) == (["50.0"], ["1"])


def test_the_best_epoch_is_the_best_of_what_is_reported(tmp_path: Path) -> None:
    """Of bFFHQ the conflicting samples, though another accuracy chose the record of the best epoch."""
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
    """Linear evaluation of features that are not finite gives nothing."""
    (cell,) = cells("2", pattern="cifar10/supcon")
    run_folder(cell, tmp_path, 0, 0.5, epochs=10)
    (record,) = ledger.runs_of(cell, tmp_path, "laptop")
    assert record.result is not None
    assert list(record.result["test"]) == ["own"]
    assert measures.measured(record) is None


@pytest.mark.parametrize("finished", [True, False])
def test_the_best_epoch_is_of_the_final_stage(tmp_path: Path, finished: bool) -> None:
    """A first stage that follows the shortcut may be right more often; it is not the method."""
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


def test_a_figure_is_drawn_from_finished_runs_made_as_planned(tmp_path: Path) -> None:
    planned, changed, begun = cells("figure2", pattern="eps-supcon:rho=0.99;eps=0*")[:3]
    run_folder(changed, tmp_path, 0, 0.9, extra=["train.epochs=2"])
    run_folder(begun, tmp_path, 0, None, epochs=1)
    said: list[str] = []
    with pytest.raises(ValueError, match="Figure 2 has no finished run to draw"):
        drawing.draw("figure2", tmp_path, "laptop", said.append)
    assert "train.epochs" in said[0]
    run_folder(planned, tmp_path, 0, 0.5, epochs=24)
    drawn = json.loads(drawing.draw("figure2", tmp_path, "laptop").numbers.read_text())
    assert [point["accuracies"] for point in drawn["points"] if point["accuracies"]] == [[50.0]]
    assert "1 seed" in drawn["budget"]


def test_a_run_that_ends_by_its_steps_is_whole(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    limit = ["train.epochs=400", "train.steps=100"]
    run_folder(cell, tmp_path, 0, 0.5, extra=limit)
    run_folder(cell, tmp_path, 1, None, epochs=2, extra=limit)  # 10 steps
    one, other = (measures.measured(record) for record in ledger.runs_of(cell, tmp_path, "laptop"))
    assert one is not None
    assert other is not None
    assert (one.epochs, one.of_epochs) == (4, 4)
    assert (other.epochs, other.of_epochs) == (2, 20)


def test_lines_stay_when_their_runs_are_elsewhere(tmp_path: Path) -> None:
    (cell,) = cells("3", pattern="ce:rho=0.99")
    run_folder(cell, tmp_path / "a", 0, 0.5)
    first = ledger.merged([], ledger.collect(tmp_path / "a"))
    again = ledger.merged(first, ledger.collect(tmp_path / "b"))
    assert [one for one in again if one.budget] == [one for one in first if one.budget] != []
    run_folder(cell, tmp_path / "c", 0, 0.7)
    (newer,) = [one for one in ledger.merged(again, ledger.collect(tmp_path / "c")) if one.budget]
    assert newer.ours == 70.0


def test_the_page_says_what_was_not_run_and_why() -> None:
    page = pages.markdown(ledger.merged([], [line("ce", 90.8, 30.0, origin="quoted:hong2021")]))
    assert "| biased-mnist | ce | – | rho=0.99 | 90.8 ± 0.5 | laptop | 30.0 |" in page
    assert "ImageNet requires accepting its licence" in page
    assert "## Table 12" in page


def test_the_readme_s_table_is_the_ledger_s() -> None:
    """Renewed by: fairmargin reproduce ledger --ledger docs/results --readme README.md"""
    lines = ledger.read(ROOT / "docs" / "results" / "ledger.csv")
    assert lines, "docs/results/ledger.csv is missing"
    readme = (ROOT / "README.md").read_text("utf-8")
    assert pages.into_readme(readme, lines) == readme
    assert (ROOT / "docs" / "results" / "ledger.md").read_text("utf-8") == pages.markdown(lines)


@pytest.mark.parametrize(
    ("epochs", "shown"), [("4 of 4", True), ("1 of 4", False), ("2 of 4, 4 of 4", False)]
)
def test_the_readme_shows_finished_runs_only(epochs: str, shown: bool) -> None:
    line = ledger.Line(
        "3",
        "biased-mnist",
        "ce",
        "rho=0.99",
        "",
        90.8,
        0.3,
        "",
        budget="laptop",
        ours=16.9,
        epochs=epochs,
    )
    assert ("**16.9**" in pages.summary([line])) is shown


def test_a_readme_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="results: begin"):
        pages.into_readme("# Title\n", [])


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
    assert rows[0].startswith(
        "| divergence=kl | 94.0 (81.3–100.0) | 6.0 ("
    )  # t = 12.7 with two seeds
    assert rows[1].startswith("| moments | 85.0 (")
    assert rows[1].endswith("| 0.81 | 0.50 | 2 |")
    assert show.study(tmp_path / "empty", "laptop") == ""
