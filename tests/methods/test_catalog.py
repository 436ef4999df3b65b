"""The table of methods, and the page about them, say what the code says."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fairmargin.methods
from fairmargin.cli.app import app
from fairmargin.config import MethodConfig, toml
from fairmargin.methods import METHODS, catalog
from fairmargin.methods.catalog import FACTS
from fairmargin.methods.objective import FAIRKL_DEFAULTS
from tests.methods import tiny

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^### (.+?)\n(.+?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
COMMON = {
    "alpha",
    "last_activation",
    "head",
    "beta",
    "weighting",
    "log_bounds",
}  # of rows, explained once


def test_every_method_has_facts():
    assert FACTS.keys() == METHODS.keys()


def test_files_exist():
    folder = Path(fairmargin.methods.__file__).parent
    assert all((folder / x.file).is_file() for x in FACTS.values())


@pytest.mark.parametrize("name", sorted(METHODS))
def test_needs_are_what_the_builders_ask_for(name):
    """Without bias labels, exactly those that need them refuse."""
    if name == "sin":
        pytest.skip("refuses for want of stylised images")
    if "bias labels" in FACTS[name].needs:
        with pytest.raises(ValueError, match="needs to know the bias"):
            tiny.method(name, data_info=tiny.info(biased=False))
    else:
        tiny.method(name, data_info=tiny.info(biased=False))


def test_the_page_has_the_table():
    between = PAGE.partition("table() -->\n")[2].partition("<!-- end -->")[0]
    assert between == catalog.table(), (
        "write the output of fairmargin.methods.catalog.table() into docs/methods.md"
    )


def test_the_page_has_a_section_for_each_and_no_other():
    assert SECTIONS.keys() == {name for name in METHODS if not name.endswith("+fairkl")} | {
        "+fairkl"
    }


@pytest.mark.parametrize("name", sorted(SECTIONS.keys() - {"+fairkl"}))
def test_a_section_says_how_it_fails_and_what_its_options_are(name):
    text = SECTIONS[name]
    if "Options: those of [`" in text:
        other = re.search(r"Options: those of \[`([^`]+)`\]", text).group(1)
        text = SECTIONS[other].partition("Options:")[2] + text.partition("Options:")[2]
    for option in MethodConfig.known(name).values():
        if option.written in COMMON and FACTS[name].file == "objectives.py":
            continue
        assert f"`{option.written}`" in text, option.written
        if option.default is not None:
            assert f"`{option.written}` {toml.value(option.default)}" in re.sub(
                r"\s+", " ", text
            ), option.written


def test_the_section_of_fairkl_has_its_options():
    text = re.sub(r"\s+", " ", SECTIONS["+fairkl"])
    for name, default in {"lambda": 1.0, **FAIRKL_DEFAULTS}.items():
        assert f"`{name}` {toml.value(default)}" in text, name


def test_links_within_the_page_lead_somewhere():
    headings = {catalog.anchor(heading) for heading in SECTIONS}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings


def test_a_method_added_without_facts_is_listed_all_the_same(monkeypatch):
    monkeypatch.setitem(METHODS, "mine", METHODS["ce"])
    shown = CliRunner().invoke(app, ["list", "methods"])
    assert shown.exit_code == 0, shown.output
    assert "mine" in shown.output
