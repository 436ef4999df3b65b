"""Every file of `examples/` runs as its docstring says, and shows what it promises to show."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")


def run(name, *words, launcher=()):
    """What an example prints; it must end well."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / name), *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def percentages(text, word):
    """The first percentage after `word` on every line that has one."""
    found = [PERCENT.search(line.partition(word)[2]) for line in text.splitlines()]
    return [float(match.group(1)) for match in found if match]


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {' and '.join(missing)}")


def test_each_file_says_what_it_shows_and_how_to_run_it():
    files = sorted(EXAMPLES.glob("*.py"))
    assert 6 <= len(files) <= 10
    tested = Path(__file__).read_text("utf-8")
    for file in files:
        text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
        assert f"python examples/{file.name}" in text, file.name
        assert f'run("{file.name}"' in tested, f"{file.name} has no test here"


@pytest.mark.slow
def test_own_loop():
    before, after = percentages(run("own_loop.py"), "shortcut:")
    assert after > before + 3


@pytest.mark.slow
def test_own_encoder():
    before, after = percentages(run("own_encoder.py"), "conflicting")
    assert after > before + 10


@pytest.mark.slow
def test_own_dataset():
    text = run("own_dataset.py")
    before, after = percentages(text, "conflicting")
    assert after > before + 5
    before, after = percentages(text, "worst-group")
    assert after > before + 10


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs torch.distributed with gloo")
def test_ddp_gives_the_same_numbers_with_one_process_and_two():
    one = run("ddp.py")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    two = run("ddp.py", launcher=launcher)
    assert "processes: 1" in one
    assert "processes: 2" in two
    (before,), (after,) = percentages(one, "before training:"), percentages(one, "after training:")
    assert after > before + 30
    loss_one, loss_two = (float(re.search(r"last loss: (\S+)", t).group(1)) for t in (one, two))
    assert loss_two == pytest.approx(loss_one, rel=1e-2)
    (with_two,) = percentages(two, "after training:")
    assert with_two == pytest.approx(after, abs=1)


@pytest.mark.slow
def test_audit_folder(tmp_path):
    text = run("audit_folder.py", str(tmp_path / "made"))
    assert re.search("strongest attribute: background colou?r -> shortcut", text)
    before, after = percentages(text, "worst-group accuracy:")
    assert before < 20
    assert after > 80
    fails, passes = text.splitlines()[1:]
    assert "fails the check" in fails
    assert "passes the check" in passes
    assert (tmp_path / "made" / "audit" / "audit.html").is_file()


@pytest.mark.slow
def test_no_bias_labels():
    before, after = percentages(run("no_bias_labels.py"), "conflicting")
    assert before < 30
    assert after > 80


@pytest.mark.slow
def test_frozen_embeddings():
    text = run("frozen_embeddings.py")
    (before,) = percentages(text, "logistic regression")
    (after,) = percentages(text, "  projector  ")
    assert after > before + 10
    (before,), (after,) = percentages(text, "before:"), percentages(text, "after:")
    assert after > before + 20


@pytest.mark.slow
def test_sklearn_classifier():
    text = run("sklearn_classifier.py")
    assert "chosen: ce\n" not in text
    before, after = percentages(text, "misleads:")
    assert after > before + 15


@pytest.mark.slow
@needs("fairlearn")
def test_fairlearn_metrics():
    gaps = re.findall(r"equalized odds difference: (\S+)", run("fairlearn_metrics.py"))
    before, after = map(float, gaps)
    assert before > 0.5
    assert after < 0.1


@pytest.mark.slow
@needs("onnx", "onnxscript", "onnxruntime")
def test_export_onnx():
    text = run("export_onnx.py")
    before, after = percentages(text, "ONNX Runtime")
    assert after > before + 50
    differences = re.findall(r"difference from PyTorch (\S+)", text)
    assert max(map(float, differences)) < 1e-4


def test_a_missing_optional_package_is_a_message(tmp_path):
    """Not a traceback: an example that needs more says so and ends."""
    (tmp_path / "fairlearn.py").write_text("raise ImportError")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "fairlearn_metrics.py")],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("skipped: this example needs fairlearn")
