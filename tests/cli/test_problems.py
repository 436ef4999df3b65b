"""What the command line says of a table that cannot be used."""

import csv
import os
import subprocess
import sys

from PIL import Image
from typer.testing import CliRunner

from fairmargin.cli.app import app

HEADER = ["path", "label", "split"]


def table(path, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    return path


def pictures(folder, number=12):
    rows = []
    for k in range(number):
        Image.new("RGB", (8, 8), (20 * k, 0, 0)).save(folder / f"{k}.png")
        rows.append([f"{k}.png", "cat" if k % 2 else "dog", "test" if k > 7 else "train"])
    return rows


def show(*words):
    return CliRunner().invoke(app, ["data", "show", *map(str, words)])


def test_many_problems_are_in_a_file_that_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = [[f"gone/{k}.png", "cat", "train"] for k in range(200)]
    result = show(table(tmp_path / "my.csv", pictures(tmp_path) + missing))
    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 4
    assert "no such file: 200 rows, such as row 14, gone/0.png; row 15, " in result.output
    assert "all 200 are listed in my-problems.csv" in result.output
    assert "data.skip_bad=true" in result.output
    with open(tmp_path / "my-problems.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 200


def test_few_problems_need_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [*pictures(tmp_path), ["gone.png", "cat", "train"]]
    result = show(table(tmp_path / "my.csv", rows))
    assert result.exit_code == 2
    assert "row 14, gone.png: no such file" in result.output
    assert not (tmp_path / "my-problems.csv").exists()


def test_a_folder_that_takes_no_file_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A folder in the place of the file.
    (tmp_path / "my-problems.csv").mkdir()
    rows = [[f"gone/{k}.png", "cat", "train"] for k in range(9)]
    result = show(table(tmp_path / "my.csv", pictures(tmp_path) + rows))
    assert result.exit_code == 2
    assert "the whole list cannot be written here" in result.output


def test_rows_left_out_are_counted_and_grouped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = [[f"gone/{k}.png", "cat", "train"] for k in range(40)]
    result = show(table(tmp_path / "my.csv", pictures(tmp_path) + missing), "--skip-bad")
    assert result.exit_code == 0, result.output
    assert "skipped: 40\n  no such file: 40 rows, such as row 14, gone/0.png" in result.output


def test_help_flows(tmp_path):
    shown = CliRunner().invoke(app, ["reproduce", "--help"], env={"COLUMNS": "80"}).output
    lines = [line.rstrip() for line in shown.splitlines()]
    assert " interrupted. See docs/reproduce.md." in lines


def test_commands_of_many_runs_have_the_options_of_engines():
    for command in ("compare", "tune", "reproduce"):
        shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).output
        for option in ("--engine", "--jobs", "--address", "--cpus", "--gpus"):
            assert option in shown
    wrong = CliRunner().invoke(app, ["tune", "--engine", "lcal"])
    assert wrong.exit_code == 2
    assert "did you mean 'local'" in wrong.output


def test_a_folder_of_data_that_cannot_be_looked_at_is_said():
    result = CliRunner().invoke(app, ["data", "list", "--root", "[" * 3000])
    assert result.exit_code == 2
    assert "File name too long" in result.output


def test_names_that_are_no_text_are_printed_with_escapes(tmp_path):
    """A name of bytes that are not UTF-8, printed to a stdout that takes UTF-8 alone."""
    words = ["data", "list", "--root", os.fsdecode(b"\xff")]
    command = [sys.executable, "-m", "fairmargin", *words]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict", "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert rb"\udcff" in done.stdout
