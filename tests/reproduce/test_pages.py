import re
from dataclasses import replace
from pathlib import Path

import pytest

from fairmargin.reproduce import ledger, pages
from fairmargin.reproduce.cells import cells
from tests.reproduce.recorded import line

ROOT = Path(__file__).parents[2]


def test_the_page_shows_orderings_and_the_curves_of_long_runs() -> None:
    ran = [line("ce", 90.8, 17.0), line("eps-supinfonce+fairkl", 97.9, 95.6, reading="recommended")]
    ran = ledger.judged(ran)
    assert "## Orderings" in pages.markdown(ran)
    assert "curves.png" not in pages.markdown(ran)
    assert "## Orderings" not in pages.markdown(ran[:1])
    long = ledger.judged([line("ce", 90.8, 17.0, budget="paper", epochs="9 of 80")])
    assert "curves.png" in pages.markdown(long)


def test_the_page_says_what_was_not_run_and_why() -> None:
    page = pages.markdown(ledger.merged([], [line("ce", 90.8, 30.0, origin="quoted:hong2021")]))
    assert "| biased-mnist | ce | – | rho=0.99 | 90.8 ± 0.5 | laptop | 30.0 |" in page
    assert "ImageNet, whose licence you must accept" in page
    assert "## Table 12" in page


def test_the_readme_s_table_is_the_ledger_s() -> None:
    lines = ledger.read(ROOT / "docs" / "results" / "ledger.csv")
    assert lines, "docs/results/ledger.csv is missing"
    readme = (ROOT / "README.md").read_text("utf-8")
    page = (ROOT / "docs" / "results" / "ledger.md").read_text("utf-8")
    # Compared outside of the assertions: pytest would look for the differences for minutes.
    same_table = pages.into_readme(readme, lines) == readme
    same_page = pages.markdown(lines) == page
    renew = "run: fairmargin reproduce ledger --ledger docs/results --readme README.md"
    assert same_table, renew
    assert same_page, renew


@pytest.mark.parametrize(
    ("epochs", "shown"), [("4 of 4", True), ("1 of 4", False), ("2 of 4, 4 of 4", False)]
)
def test_the_readme_shows_finished_runs_only(epochs: str, shown: bool) -> None:
    ran = line("ce", 90.8, 16.9, epochs=epochs)
    assert ("16.9ʳ (90.80)" in pages.summary([ran])) is shown


def test_the_published_protocol_stands_in_the_readme_before_the_reduced_one() -> None:
    ran = [line("ce", 90.8, 90.1, budget="paper", epochs="80 of 80"), line("ce", 90.8, 16.9)]
    for lines in (ran, ran[::-1]):
        assert "| Cross-entropy | **90.10**, 16.9ʳ (90.80) |" in pages.summary(lines)


def test_the_readme_says_how_each_number_of_the_published_protocol_came_out() -> None:
    facts = {"budget": "paper", "epochs": "80 of 80", "reading": "authors"}
    reached = line("eps-supcon+fairkl", 96.72, 96.5, **facts)
    missed = line("eps-supinfonce+fairkl", 97.86, 95.86, best_on_test=96.0, **facts)
    sinking = line("ce+fairkl", 95.92, 93.0, best_on_test=95.5, **facts)
    said = pages.summary(ledger.judged([reached, missed, sinking]))
    assert "| ε-SupCon + FairKL | **96.50** ✓ (96.72) |" in said
    assert "| ε-SupInfoNCE + FairKL | **95.86** (97.86) |" in said
    assert "Published protocol: 1 of 3 finished numbers reproduced." in said
    assert "ε-SupInfoNCE + FairKL at ρ = 0.99: 2.00 points below." in said
    best = "(its best epoch on the test set has 95.50)."
    assert f"Cross-entropy + FairKL at ρ = 0.99: 2.92 points below {best}" in said
    assert "Reduced protocol" not in said


def test_the_readme_marks_reduced_numbers_that_come_near() -> None:
    near = line("ce", 90.8, 88.2)
    far = line("end", 94.8, 86.8)
    other = line("eps-supinfonce+fairkl", 97.86, 96.9, reading="recommended")
    said = pages.summary(ledger.judged([near, far, other]))
    assert "| Cross-entropy | 88.2ʳ ≈ (90.80) |" in said
    assert "| EnD | 86.8ʳ (94.80) |" in said
    assert "| ε-SupInfoNCE + FairKL, recommended | 96.9ʳ ≈ (97.86) |" in said
    assert "Reduced protocol: 2 of 3 numbers within three points" in said
    assert "Published protocol" not in said


def test_a_number_counts_once_by_its_best_verdict_and_only_if_it_can_be_run() -> None:
    ran = [
        line("ce", 90.8, 90.1, budget="paper", verdict="reproduced"),
        line("ce", 90.8, 16.9, verdict="not reproduced (0 of 1 orderings)"),
        line("end", 94.8, 44.6, verdict="order only (1 of 1 orderings)"),
        line("ce", 75.3, 70.0, dataset="cifar10", verdict="not run"),
    ]
    said = pages.counts(ran)
    assert said.startswith("Of the 2 published numbers")
    assert "licence: 1 reproduced, 0 within three points" in said
    assert "1 with the published order but another number" in said
    assert said.endswith("Others: 1.")


def test_what_the_published_protocol_gave_is_not_bettered_by_a_reduced_one() -> None:
    reduced = line("ce", 90.8, 90.1, verdict="near")
    published = line("ce", 90.8, 80.0, budget="paper", verdict="not reproduced")
    assert "1 within three points" in pages.counts([reduced])
    assert "0 within three points" in pages.counts([reduced, published])
    unfinished = replace(published, epochs="3 of 80", verdict="not judged (unfinished, 3 of 80)")
    assert "1 within three points" in pages.counts([unfinished, reduced])


def test_numbers_that_the_paper_s_convention_would_reproduce_are_counted_apart() -> None:
    facts = {"budget": "paper", "epochs": "80 of 80"}
    sinking = line("ce", 90.8, 85.0, best_on_test=90.5, **facts)
    said = pages.counts(ledger.judged([sinking]))
    assert "0 reproduced" in said
    assert "1 more would be reproduced by the best epoch on the test set" in said
    reached = line("end", 94.8, 94.7, best_on_test=94.9, **facts)
    assert "would be" not in pages.counts(ledger.judged([reached]))


def test_every_command_of_what_others_need_matches_cells() -> None:
    page = pages.markdown(ledger.merged([], []))
    commands = re.findall(r'`fairmargin reproduce (\S+) --cell "([^"]+)" --budget paper`', page)
    assert len(commands) == 12
    for what, pattern in commands:
        assert cells(what, pattern=pattern)


def test_a_readme_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="results: begin"):
        pages.into_readme("# Title\n", [])
