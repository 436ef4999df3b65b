"""Drawings and the page: every number in its place, texts escaped, nothing loaded."""

import json

import numpy as np
import pytest
from markupsafe import Markup

from fairmargin.audit import drawings
from fairmargin.audit.page import render, write
from fairmargin.audit.section import Figure, Found, Section, Table

FOUND = Found(
    title="Audit of <b>",
    verdict="Nothing & everything.",
    json={"kind": "test", "π": None},
    sections=[
        Section(
            "one",
            "First",
            "Lead.",
            [Figure("A figure", Markup("<svg class='chart' aria-label='x'></svg>"), "A caption")],
            [Table(["name", "number"], [["<i>", "1"], [Markup("<b>bold</b>"), "2"]], (1,))],
        ),
        Section("two", "Second", "Lead."),
    ],
    warnings=["careful"],
)


def test_page_says_everything_and_escapes_it():
    page = render(FOUND)
    assert "Audit of &lt;b&gt;" in page
    assert "Nothing &amp; everything." in page
    assert '<th scope="row">&lt;i&gt;</th><td class="num">1</td>' in page
    assert '<th scope="row"><b>bold</b></th>' in page
    assert "A caption" in page
    assert "careful" in page
    assert '<a href="#two">Second</a>' in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "--h10:" in page  # the report's colours


def test_write_makes_the_folder_and_both_files(tmp_path):
    page, numbers = write(FOUND, tmp_path / "deep" / "audit")
    assert page.read_text("utf-8") == render(FOUND)
    assert json.loads(numbers.read_text("utf-8")) == FOUND.json
    assert sorted(file.name for file in page.parent.iterdir()) == ["audit.html", "audit.json"]


def test_write_refuses(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="which is a file; give a folder with --out"):
        write(FOUND, tmp_path / "file")
    with pytest.raises(ValueError, match="Out of range float"):
        write(Found("t", "v", {"x": float("nan")}), tmp_path)


def test_sections_with_one_id_are_refused():
    with pytest.raises(ValueError, match="ids of their own; got a, a"):
        render(Found("t", "v", {}, [Section("a", "", ""), Section("a", "", "")]))


def test_colour_bars_are_shares():
    colours = np.array([[1, 0, 0]] * 3 + [[0, 0, 1]] + [[0, 1, 0]])
    body = drawings.colour_bars(colours, np.array([0, 0, 0, 0, 1]), ["a", "b"], "label")
    assert body.count("<rect") == 3
    assert "a: #ff0000, 75 %" in body
    assert "a: #0000ff, 25 %" in body
    assert "b: #00ff00, 100 %" in body


def test_colour_bars_of_many_colours_end_in_the_others():
    colours = np.random.default_rng(0).random((500, 3))
    body = drawings.colour_bars(colours, np.zeros(500, int), ["a", "empty"], "label")
    assert body.count("<rect") == drawings.COLOURS + 1
    assert "other colours" in body


def test_boxes_tell_the_middle():
    values = np.concatenate([np.arange(101.0), np.arange(101.0) + 1000])
    body = drawings.boxes(values, np.repeat([0, 1], 101), ["low", "high"], "label")
    assert "low: middle 50, half from 25 to 75" in body
    assert "high: middle 1.05e+03" in body
    assert (
        drawings.boxes(np.ones(4), np.zeros(4, int), ["a", "b"], "label").count("<circle") == 1
    )  # all alike, one empty


def test_share_map():
    body = drawings.share_map(
        np.array([[0.75, 0.25], [0.0, 1.0]]), ["a", "b"], ["x", "y<"], "label"
    )
    assert "a: 75.0 % x" in body
    assert "b: 100.0 % y&lt;" in body
    assert body.count('class="aligned"') == 2


def test_contrasts_show_pictures_and_what_they_are_taken_for():
    shown = drawings.Shown(np.zeros((3, 8, 8), np.uint8), "cat <3")
    body = drawings.contrasts([drawings.Contrast("dog", [shown], [shown, shown], 0.25)], "hue")
    assert body.count("<img") == 3
    assert body.count("data:image/png") == 3
    assert "dog, which the hue takes for cat &lt;3" in body
    assert "25 % contradict" in body
    assert "none seen" in drawings.contrasts([drawings.Contrast("dog", [], [shown], 1.0)], "hue")
