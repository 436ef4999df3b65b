"""Damaged run folders: one message, never a traceback, never a limit that holds by accident."""

import contextlib
import copy
import json
import math
import random

import numpy as np
import pytest
from typer.testing import CliRunner

from fairmargin.audit.check import CannotCheckError, Limit, check
from fairmargin.cli.app import app
from fairmargin.report.page import write_report
from fairmargin.runs.record import RunError, RunRecord
from tests.report.fake_runs import write_run

# Left out of the inner loop.
pytestmark = pytest.mark.slow

FILES = ("result.json", "data.json", "environment.json")
BAD = (None, math.nan, math.inf, -1, 1e300, "x", [], {}, [None], {"a": None}, True, 10**400)


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", "ce", n=120)


def places(value, path=()):
    """Where the values of nested dicts and lists are; of a list, its first entry stands for all."""
    yield path
    if isinstance(value, dict):
        for name, item in value.items():
            yield from places(item, (*path, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def changed(value, path, new):
    """The same with another value at a place; `...` removes what is there."""
    if not path:
        return new
    value = copy.deepcopy(value)
    inner = value
    for name in path[:-1]:
        inner = inner[name]
    if new is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return value


def damages(content, seed):
    """Every value removed, and some bad value in every place."""
    generator = random.Random(seed)
    for path in places(content):
        if path:
            yield path, changed(content, path, ...)
        yield path, changed(content, path, generator.choice(BAD))


@pytest.mark.parametrize("name", FILES)
def test_any_damage_is_a_message_or_does_no_harm(name, run, tmp_path):
    content = json.loads((run / name).read_text())
    said = {}
    for path, damaged in damages(content, seed=name):
        (run / name).write_text(json.dumps(damaged))
        try:
            check(run, [Limit("plain", 0.1), Limit("worst-group", 0.0)])
        except (RunError, CannotCheckError) as error:
            said[path] = str(error)
    assert len(said) >= 8
    assert all(str(run) in text for text in said.values())


@pytest.mark.parametrize("name", FILES)
def test_what_reading_lets_through_a_report_can_show(name, run, tmp_path):
    content = json.loads((run / name).read_text())
    passed = []
    for path, damaged in damages(content, seed=name):
        (run / name).write_text(json.dumps(damaged))
        try:
            _ = RunRecord.read(run).outcome
        except RunError:
            continue
        passed.append((path, damaged))
    assert passed
    # A page takes a while, so some of them stand for all.
    for _, damaged in random.Random(0).sample(passed, min(6, len(passed))):
        (run / name).write_text(json.dumps(damaged))
        with contextlib.suppress(RunError):
            write_report([run], tmp_path / "report.html")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "null", "-0.5", '"high"', "1e999"])
def test_a_check_does_not_hold_by_accident(value, run):
    text = json.loads((run / "result.json").read_text())
    text["test"]["own"]["accuracy"]["worst-group"]["value"] = "HERE"
    (run / "result.json").write_text(json.dumps(text).replace('"HERE"', value))
    done = CliRunner().invoke(app, ["check", str(run), "--min-worst-group", "0.0"])
    assert done.exit_code == 2
    assert "holds" not in done.output
    assert str(run) in done.output
    assert not isinstance(done.exception, ValueError | TypeError)


def test_a_report_leaves_out_what_cannot_be_read_and_says_so(tmp_path):
    good = write_run(tmp_path / "good", "ce", n=120)
    broken = write_run(tmp_path / "broken", "lff", n=120)
    (broken / "result.json").write_text('{"test": {}}')
    half = write_run(tmp_path / "half", "end", n=120)
    (half / "test.npz").write_bytes((half / "test.npz").read_bytes()[:1000])
    said = []
    page = write_report([good, broken, half], tmp_path / "report.html", say=said.append)
    assert page.is_file()
    assert len(said) == 2
    assert "broken" in said[0]
    assert "headline is missing" in said[0]
    assert "half" in said[1]
    with pytest.raises(RunError, match="headline is missing"):
        write_report([broken], tmp_path / "report.html")


def test_arrays_of_different_lengths(run):
    arrays = dict(np.load(run / "test.npz"))
    arrays["labels"] = arrays["labels"][:-1]
    np.savez(run / "test.npz", **arrays)
    with pytest.raises(RunError, match="different lengths: labels 119"):
        _ = RunRecord.read(run).test


def test_deep_nesting_is_a_message(run):
    (run / "data.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(RunError, match="nested too deeply"):
        RunRecord.read(run)


@pytest.mark.parametrize("name", ["config.toml", "data.json", "environment.json"])
def test_a_number_of_thousands_of_digits_names_its_file(name, run):
    digits = "9" * 5000
    (run / name).write_text(f"seed = {digits}" if name == "config.toml" else f'{{"a": {digits}}}')
    with pytest.raises(RunError, match=rf"{name} is not valid"):
        RunRecord.read(run)


def test_damaged_events(run):
    (run / "metrics.jsonl").write_text('{"event": "train", "step": "one"}\n')
    with pytest.raises(RunError, match="line 1 is damaged: step is 'one', not a whole number"):
        RunRecord.read(run)


@pytest.mark.parametrize(
    ("pairs", "readable"), [([7, 5], True), ([7, 5, 9, 3], True), ([7], False)]
)
def test_fairkl_counts_pairs_with_and_without_negatives(pairs, readable, run):
    event = {"event": "train", "step": 1, "pairs": pairs}
    (run / "metrics.jsonl").write_text(json.dumps(event) + "\n")
    if readable:
        assert RunRecord.read(run).steps()[0]["pairs"] == pairs
        return
    with pytest.raises(RunError, match="pairs has 1 entries, not 2 or 4"):
        RunRecord.read(run)
