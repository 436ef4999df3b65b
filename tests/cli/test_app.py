import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fairmargin import config as configuration
from fairmargin.cli.app import app
from fairmargin.cli.errors import exit_on_user_error
from fairmargin.version import __version__

runner = CliRunner()


SHORTER = ["train.epochs=4"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_demo_shows_the_problem_and_the_cure(tmp_path, monkeypatch):
    """With a sixth of its epochs; `make demo` takes two minutes."""
    load = configuration.load
    monkeypatch.setattr(
        configuration, "load", lambda *words, **named: load(*words, **named, overrides=SHORTER)
    )
    out = tmp_path / "deep" / "demo"
    result = runner.invoke(app, ["demo", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "fairmargin" in result.output
    assert f"report: {out / 'report.html'}" in result.output.replace("\n", "")
    accuracy = {
        method: json.loads((out / "runs" / method / "seed-0" / "result.json").read_text("utf-8"))[
            "test"
        ]["own"]["accuracy"]
        for method in ("ce", "fairmargin")
    }
    gap = accuracy["fairmargin"]["cell-mean"]["value"] - accuracy["ce"]["cell-mean"]["value"]
    assert gap > 0.25
    page = (out / "report.html").read_text("utf-8")
    assert "FairMargin" in page
    assert "is right" in page


def test_demo_into_a_file_says_so(tmp_path):
    (tmp_path / "taken").write_text("")
    result = runner.invoke(app, ["demo", "--out", str(tmp_path / "taken")])
    assert result.exit_code == 2
    assert "cannot write into" in result.output
    assert "--out" in result.output


def test_version_and_module():
    assert runner.invoke(app, ["--version"]).output.strip() == f"fairmargin {__version__}"
    done = subprocess.run(
        [sys.executable, "-m", "fairmargin", "--help"], capture_output=True, text=True, check=True
    )
    assert "demo" in done.stdout


def test_the_command_line_starts_without_torch():
    heavy = (
        "import sys, fairmargin.cli.app; "
        "print([name for name in ('torch', 'scipy', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (
            ["methods"],
            ["eps-supinfonce+fairkl", "max-margin", "Sagawa et al., ICLR 2020", "bias labels"],
        ),
        (["methods", "eps-supinfonce+fairkl"], ["variance_floor", "lambda ", "0.25"]),
        (["datasets"], ["biased-mnist-mini", "corrupted-cifar10"]),
        (["datasets", "biased-mnist"], ["rho", "0.99"]),
        (["networks"], ["simple-conv-7", "resnet50-cifar", "bagnet18"]),
        (["networks", "simple-conv-7"], ["stride", "kernel_size"]),
        (["accuracies"], ["cell-mean", "worst-group", "over-represents"]),
    ],
)
def test_list_shows_what_there_is(what, expected):
    result = runner.invoke(app, ["list", *what], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert all(word in result.output for word in expected)


def test_list_of_something_else_gets_the_nearest():
    for words, near in (
        (["method"], "methods"),
        (["methods", "supcom"], "supcon"),
        (["accuracies", "x"], "methods"),
    ):
        result = runner.invoke(app, ["list", *words])
        assert result.exit_code == 2
        assert f"'{near}'" in result.output


@pytest.mark.parametrize("words", [["report"], ["evaluate"], ["train", "--resume"]])
def test_a_folder_that_is_no_run_is_said_so(tmp_path, words):
    result = runner.invoke(app, [*words, str(tmp_path / "missing")])
    assert result.exit_code == 2
    assert "missing" in result.output.replace("\n", "")
    assert "Traceback" not in result.output


def test_resume_takes_no_other_options(tmp_path):
    result = runner.invoke(app, ["train", "--resume", str(tmp_path), "--method", "ce"])
    assert result.exit_code == 2
    assert "leave the other options out" in result.output


@pytest.mark.parametrize(
    ("seeds", "expected"), [("x", "3, or 0,1,2"), ("0", "at least 1"), (",", "empty")]
)
def test_seeds_that_are_none(seeds, expected):
    result = runner.invoke(app, ["compare", "--methods", "ce", "--seeds", seeds])
    assert result.exit_code == 2
    assert expected in result.output


def test_output_that_nobody_reads_is_no_mistake():
    """As in `fairmargin data show planted | head -1`: click ends quietly on EPIPE."""
    with pytest.raises(BrokenPipeError), exit_on_user_error():
        raise BrokenPipeError(32, "Broken pipe")
