from pathlib import Path

import pytest

from fairmargin.reproduce import ledger, pages
from tests.reproduce.recorded import line

ROOT = Path(__file__).parents[2]


def test_the_page_shows_orderings_and_the_curves_of_long_runs() -> None:
    ran = [line("ce", 90.8, 17.0), line("eps-supinfonce+fairkl", 97.9, 95.6, reading="recommended")]
    assert "## Orderings" in pages.markdown(ran)
    assert "curves.png" not in pages.markdown(ran)
    assert "## Orderings" not in pages.markdown(ran[:1])
    assert "curves.png" in pages.markdown(
        [line("ce", 90.8, 17.0, budget="paper", epochs="9 of 80")]
    )


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
    ran = line("ce", 90.8, 16.9, epochs=epochs)
    assert ("**16.9**" in pages.summary([ran])) is shown


def test_a_readme_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="results: begin"):
        pages.into_readme("# Title\n", [])
