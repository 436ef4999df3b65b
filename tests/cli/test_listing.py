"""`fairmargin list`: every name whole at 80 columns, at once, and as the code has it."""

import io
import json
import subprocess
import sys
from importlib.resources import files

import pytest
from rich.console import Console

from fairmargin.cli import catalog
from fairmargin.cli.listing import LAYOUTS, catalogue

LIST = """
import sys
from typer.testing import CliRunner
from fairmargin.cli.app import app
shown = CliRunner().invoke(app, sys.argv[1:])
print(shown.output)
assert "torch" not in sys.modules, "list needs no PyTorch"
sys.exit(shown.exit_code)
"""


@pytest.mark.parametrize("path", ["cli/listing.json", "methods/titles.json"])
def test_generated_files_are_those_of_the_code(path):
    kept = json.loads((files("fairmargin") / path).read_text("utf-8"))
    made = json.loads(catalog.generated()[path])
    assert _sorted(kept) == _sorted(made), "run: python -m fairmargin.cli.catalog"


def _sorted(content):
    """Rows in alphabetical order: tests that take a method out put it back at the end."""
    return {
        name: sorted(rows) if isinstance(rows, list) else rows for name, rows in content.items()
    }


@pytest.mark.parametrize("what", LAYOUTS)
@pytest.mark.parametrize("width", [80, 120])
def test_no_name_is_cut(what, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(catalogue(what, width))
    shown = console.file.getvalue()
    words = shown.split()
    assert [row[0] for row in catalog.CATALOGUES[what]() if row[0] not in words] == []
    assert "…" not in shown


def test_a_wide_terminal_has_more_columns():
    headings = {}
    for width in (80, 120):
        columns = catalogue("methods", width).columns
        headings[width] = [column.header for column in columns]
    assert headings == {
        80: ["method", "paper", "needs", "cost"],
        120: ["method", "paper", "needs", "networks", "cost"],
    }


def test_lists_and_mistyped_lists_do_not_load_pytorch():
    for words, code, said in ((["list"], 0, "group-dro"), (["list", "methds"], 2, "'methods'")):
        done = subprocess.run(
            [sys.executable, "-c", LIST, *words], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (code, "")
        assert said in done.stdout


def test_lists_among_defaults_are_written_as_a_configuration_writes_them():
    console = Console(file=io.StringIO(), width=80)
    console.print(catalog.options("networks", "resnet18"))
    console.print(catalog.options("datasets", "folder"))
    assert "[64, 128, 256, 512]" in console.file.getvalue()
    assert '["bias"]' in console.file.getvalue()
    assert "folder: --set data.OPTION=VALUE" in console.file.getvalue()
