"""The cards, and the page about the methods, say what the code says."""

import inspect
import re
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

import fairmargin.methods
from fairmargin import losses
from fairmargin.cli.app import app
from fairmargin.cli.catalog import allowed_values, methods
from fairmargin.config import MethodConfig, toml
from fairmargin.losses import _fairkl, contrastive
from fairmargin.methods import METHODS, catalog, row_options
from fairmargin.methods.card import ABOVE_ZERO, SHARE, Between, OptionCard, Range
from fairmargin.methods.catalog import CARDS
from fairmargin.report.runs import method_name
from tests.methods import tiny

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^### (.+?)\n(.+?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
# Options of rows, which the page explains once.
COMMON = {"alpha", "last_activation", "head", "beta", "weighting", "log_bounds"}


def listed(*words, columns=80):
    shown = CliRunner().invoke(app, ["list", "methods", *words], env={"COLUMNS": str(columns)})
    assert shown.exit_code == 0, shown.output
    return shown.output


class TestCards:
    def test_cover_exactly_the_methods(self):
        assert CARDS.keys() == METHODS.keys()

    def test_explain_every_option_and_no_other(self):
        assert catalog.mismatches() == []

    def test_a_mismatch_is_found(self, monkeypatch):
        monkeypatch.setitem(METHODS, "jtt", lambda make_encoder, info, *, up_weight=1, mine=2: None)
        assert catalog.mismatches() == [
            "jtt: the card says nothing about mine",
            "jtt: has no option first_epochs",
        ]

    def test_name_files_that_exist(self):
        folder = Path(fairmargin.methods.__file__).parent
        assert all((folder / card.file).is_file() for card in CARDS.values())

    def test_have_facts(self):
        for name, card in CARDS.items():
            assert all((card.title, card.paper, card.venue, card.networks)), name

    def test_have_the_measured_costs(self):
        measured = {name: card.cost for name, card in CARDS.items() if card.cost is not None}
        assert measured == catalog.COSTS

    @pytest.mark.parametrize("name", sorted(METHODS))
    def test_every_option_has_choices_or_a_range_that_its_default_and_its_search_are_in(self, name):
        for key, option in MethodConfig.known(name).items():
            explained = CARDS[name].options[key]
            assert allowed_values(option.kind, explained), key
            if isinstance(explained.range, Range):
                if option.default is not None:
                    assert option.default in explained.range, key
                if isinstance(explained.search, Between):
                    assert explained.search.low in explained.range, key
                    assert explained.search.high in explained.range, key

    @pytest.mark.parametrize("name", sorted(METHODS))
    def test_needs_are_what_the_builders_ask_for(self, name):
        """Without bias labels, exactly those that need them refuse."""
        if name == "sin":
            pytest.skip("refuses for want of stylised images")
        if CARDS[name].needs_bias_labels:
            with pytest.raises(ValueError, match="needs to know the bias"):
                tiny.method(name, data_info=tiny.info(biased=False))
        else:
            tiny.method(name, data_info=tiny.info(biased=False))


def test_titles_are_those_of_reports():
    assert {name: method_name(name) for name in CARDS} == {
        name: card.title for name, card in CARDS.items()
    }


def test_ranges():
    assert [str(r) for r in (ABOVE_ZERO, Range(2), SHARE, Range(0, 1, below=True))] == [
        "> 0", "≥ 2", "[0, 1]", "[0, 1)",
    ]  # fmt: skip
    assert 0 not in ABOVE_ZERO
    assert float("inf") not in ABOVE_ZERO
    assert 1e9 in ABOVE_ZERO
    assert 1 in SHARE
    assert 1 not in Range(0, 1, below=True)
    assert -1 not in SHARE


def test_choices_of_the_losses_are_those_that_the_losses_take():
    assert get_args(row_options.Divergence) == tuple(_fairkl.DIVERGENCES)
    form = options("eps-supinfonce")["form"].kind
    assert get_args(form) == tuple(contrastive.FORMS)


def test_defaults_of_fairkl_are_those_of_the_loss():
    parameters = inspect.signature(losses.fairkl).parameters
    for name, option in row_options.FAIRKL.items():
        assert option.default == parameters[name].default, name


def options(name):
    return MethodConfig.known(name)


class TestList:
    def test_fits_80_columns_and_cuts_no_name_and_no_cost(self):
        lines = listed().splitlines()
        assert max(map(len, lines)) <= 80
        first = {line.split()[0]: line.split()[-1] for line in lines if line.strip()}
        for name, card in CARDS.items():
            assert first[name] == card.cost_text, name

    @pytest.mark.parametrize("name", sorted(METHODS))
    def test_of_one_method_has_all_of_its_card(self, name):
        shown = listed(name, columns=300)
        card = CARDS[name]
        for fact in (card.title, card.paper, card.needs, card.networks, card.cost_text):
            assert fact in " ".join(shown.split())
        for key, option in options(name).items():
            (line,) = (line for line in shown.splitlines() if line.split()[:1] == [key])
            assert card.options[key].meaning in line
            assert allowed_values(option.kind, card.options[key]) in line

    def test_of_one_method_fits_80_columns(self):
        assert max(map(len, listed("eps-supinfonce+fairkl").splitlines())) <= 80

    def test_choices_and_ranges(self):
        explained = OptionCard("width of the kernels", ABOVE_ZERO)
        assert allowed_values(options("rebias")["sigma"].kind, explained) == "> 0, median"
        assert allowed_values(options("lff")["surrogate"].kind, OptionCard("")) == "true, false"
        assert allowed_values(options("dfr")["source"].kind, OptionCard("")) == "valid, train"

    def test_has_a_method_that_was_added_without_a_card(self, monkeypatch):
        monkeypatch.setitem(METHODS, "mine", METHODS["ce"])
        assert ["mine", "–", "–", "–", "–"] in methods()
        assert "last_activation" in listed("mine")


class TestPage:
    def test_has_the_table(self):
        between = PAGE.partition("table() -->\n")[2].partition("<!-- end -->")[0]
        assert between == catalog.table(), (
            "write the output of fairmargin.methods.catalog.table() into docs/methods.md"
        )

    def test_has_a_section_for_each_and_no_other(self):
        rows = {name for name in METHODS if not name.endswith("+fairkl")}
        assert SECTIONS.keys() == rows | {"+fairkl"}

    @pytest.mark.parametrize("name", sorted(SECTIONS.keys() - {"+fairkl"}))
    def test_says_how_each_fails_and_what_its_options_are(self, name):
        text = SECTIONS[name]
        if "Options: those of [`" in text:
            other = re.search(r"Options: those of \[`([^`]+)`\]", text).group(1)
            text = SECTIONS[other].partition("Options:")[2] + text.partition("Options:")[2]
        text = re.sub(r"\s+", " ", text)
        for option in options(name).values():
            if option.written in COMMON and CARDS[name].file == "objectives.py":
                continue
            assert f"`{option.written}`" in text, option.written
            if option.default is not None:
                assert f"`{option.written}` {toml.value(option.default)}" in text, option.written

    def test_has_the_options_of_fairkl(self):
        text = re.sub(r"\s+", " ", SECTIONS["+fairkl"])
        fairkl = {"lambda": row_options.LAMBDA, **row_options.FAIRKL}
        for name, option in fairkl.items():
            assert f"`{name}` {toml.value(option.default)}" in text, name

    def test_has_links_that_lead_somewhere(self):
        headings = {catalog.anchor(heading) for heading in SECTIONS}
        assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings
