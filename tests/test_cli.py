import subprocess
import sys

import pytest
from PIL import Image
from typer.testing import CliRunner

from fairmargin.cli import app
from fairmargin.report.toy import toy_pair
from fairmargin.version import __version__

runner = CliRunner()


def test_demo_writes_its_picture_and_its_table(tmp_path):
    result = runner.invoke(app, ["demo", "--out", str(tmp_path / "deep" / "demo")])
    assert result.exit_code == 0, result.output
    assert "FairKL" in result.output
    with Image.open(tmp_path / "deep" / "demo" / "toy.png") as picture:
        assert picture.width > 1000
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 100  # drawn, not blank


def test_toy_says_what_the_paper_says():
    different, equal = toy_pair()
    assert different.divergence["mean"] == pytest.approx(0, abs=1e-12)
    assert different.divergence["kl"] > 0.5
    assert max(equal.divergence.values()) == pytest.approx(0, abs=1e-12)


def test_demo_into_a_file_says_so(tmp_path):
    (tmp_path / "taken").write_text("")
    result = runner.invoke(app, ["demo", "--out", str(tmp_path / "taken")])
    assert result.exit_code == 2
    assert "cannot write into" in result.output
    assert "--out" in result.output


def test_version_and_module():
    assert runner.invoke(app, ["--version"]).output.strip() == f"fairmargin {__version__}"
    done = subprocess.run([sys.executable, "-m", "fairmargin", "--help"], capture_output=True, text=True, check=True)
    assert "demo" in done.stdout
