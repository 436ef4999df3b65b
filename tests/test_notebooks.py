"""Every notebook is stored without outputs; its cells run in order and show what they promise."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Runs the cells of a notebook in one namespace, as Jupyter does: the value of a last expression is
# shown, in Markdown if it can be.
RUNNER = """
import ast, json, sys

def display(value):
    shown = getattr(value, "_repr_markdown_", None)
    print(shown() if shown else repr(value))

names = {"__name__": "__main__", "display": display}
for number, cell in enumerate(json.load(open(sys.argv[1], encoding="utf-8"))["cells"]):
    if cell["cell_type"] != "code":
        continue
    tree = ast.parse("".join(cell["source"]), f"cell {number}")
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"cell {number}", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
        if value is not None:
            display(value)
"""

pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="not run from a checkout")


def run(name, folder):
    """What a notebook prints in a process of its own, in an empty folder; it must end well."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(ROOT / "notebooks" / name)],
        env=os.environ | own,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.name)
def test_is_stored_without_outputs(file):
    notebook = json.loads(file.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["cells"][0]["cell_type"] == "markdown"
    assert notebook["cells"][0]["source"][0].startswith("# ")
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.name)
def test_links_lead_to_files(file):
    for cell in json.loads(file.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            for link in re.findall(r"\]\(([^)\s#]+)", "".join(cell["source"])):
                assert "://" in link or (file.parent / link).is_file(), link


def test_every_notebook_is_run_here():
    tested = Path(__file__).read_text("utf-8")
    assert len(NOTEBOOKS) == 4
    for file in NOTEBOOKS:
        assert f'run("{file.name}"' in tested, f"{file.name} has no test here"


@pytest.mark.slow
def test_five_lines(tmp_path):
    text = run("five_lines.ipynb", tmp_path)
    assert "**eps-supinfonce+fairkl** on" in text
    assert float(re.search(r"worst group: ([\d.]+)% right", text).group(1)) > 60
    assert "**ce+fairkl** on own" in text
    assert re.search("features \\(1, 16\\) logits \\(1, 2\\)", text)
    assert "Item(attribute='background colour'" in text
    assert float(re.search(r"bias misleads: ([\d.]+)% right", text).group(1)) > 60
    for name in ("report.html", "audit.html", "audit.json", "runs/mine/result.json"):
        assert (tmp_path / name).is_file(), name


@pytest.mark.slow
def test_own_loop(tmp_path):
    text = run("own_loop.ipynb", tmp_path)
    before, after = map(float, re.findall(r"([\d.]+)% right without", text))
    assert after > before + 3


@pytest.mark.slow
def test_own_photographs(tmp_path):
    text = run("own_photographs.ipynb", tmp_path)
    assert re.search("[Bb]ackground colou?r", text.splitlines()[0])
    before, after = map(float, re.findall(r"worst group: ([\d.]+)% right", text))
    assert before < 20
    assert after > 60
    assert "**group-balanced** on" in text
    for name in ("audit/audit.html", "report.html", "README.md", "bars.pt2"):
        assert (tmp_path / name).is_file(), name


@pytest.mark.slow
def test_the_paper_in_ten_minutes(tmp_path):
    text = run("paper_in_ten_minutes.ipynb", tmp_path)
    before, after = (float(x) for x in re.findall(r"^\| plain \| ([\d.]+)", text, re.MULTILINE))
    assert before < 20
    assert after > before + 20
    assert "published 97.86" in text
    assert "seed 0 ran" in text
    assert "'not run'" in text
    assert (tmp_path / "runs" / "reproduce" / "figures" / "figure1.png").is_file()
