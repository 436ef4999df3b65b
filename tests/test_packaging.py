import json
import os
import shutil
import site
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fairmargin

PACKAGE = Path(fairmargin.__file__).parent
PROJECT = PACKAGE.parents[1] / "pyproject.toml"


@pytest.mark.skipif(not PROJECT.is_file(), reason="not run from a checkout")
def test_a_wheel_has_every_file_that_the_package_reads():
    """The editable install that these tests use has them in any case."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["fairmargin"]
    shipped = set()
    for pattern in patterns:
        shipped |= set(PACKAGE.glob(pattern))
    files = {path for path in PACKAGE.rglob("*") if path.is_file()}
    read = {path for path in files if path.suffix not in (".py", ".pyc")}
    assert len(read) > 20
    assert read == shipped


def call(*words, folder):
    """What a command prints; it must end well."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A virtual environment with the wheel, which finds other packages in that of these tests."""
    folder = tmp_path_factory.mktemp("wheel")
    # Building leaves files in the tree.
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT.parent / name, source)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(PROJECT.parent / "src", source / "src", ignore=unwanted)
    offline = ("--no-index", "--no-deps", "--disable-pip-version-check")
    pip = (sys.executable, "-m", "pip")
    call(*pip, "wheel", *offline, "--no-build-isolation", "-w", folder, source, folder=folder)
    (wheel,) = folder.glob("fairmargin-*.whl")
    call(sys.executable, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    places = "Scripts" if os.name == "nt" else "bin"
    python = folder / "venv" / places / "python"
    install = ("install", *offline, "--ignore-installed", wheel)
    call(*pip, "--python", python, *install, folder=folder)
    (packages,) = (folder / "venv").rglob("site-packages")
    # A folder that a .pth file names is searched last, and its own .pth files, such as that of an
    # editable install, are not read.
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()), "utf-8")
    shutil.rmtree(source)
    return python


@pytest.mark.slow
@pytest.mark.skipif(not PROJECT.is_file(), reason="not run from a checkout")
def test_python_from_end_to_end_with_the_wheel(installed, tmp_path):
    """`-I` ignores PYTHONPATH and the script's folder, so that only the wheel can be found."""
    script = Path(__file__).with_name("python_block.py")
    found = json.loads(call(installed, "-I", script, folder=tmp_path).splitlines()[-1])
    assert Path(found["package"]).is_relative_to(installed.parents[1])
    assert "| worst-group |" in found["table"]
    assert 0 <= found["worst"] <= 1
    assert set(found["labels"]) <= {"upright", "lying"}
    assert len(found["probabilities"]) == len(found["labels"]) == 3
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in found["probabilities"])
    # An array and its pixels as a tensor are the same picture.
    assert found["logits"][0] == pytest.approx(found["probabilities"][2], abs=1e-5)
    assert found["features"] == [1, 4]
    assert found["mine"]
    assert found["first"] == "shortcut"
    assert "tells the label" in found["verdict"]
    assert "weakest group" in found["of_run"]
    assert "is right" in found["of_vectors"]
    assert found["score"] > 0.9
    assert found["pickled"]
    assert found["cloned"]
    assert found["files"] == ["audit.html", "report.html"]
    for name in ("runs/photos/result.json", "runs/mine/result.json", "audit.json"):
        assert (tmp_path / name).is_file(), name
    command = installed.with_name("fairmargin")
    card = call(command, "card", "runs/photos", folder=tmp_path)
    assert card.startswith("---\nlibrary_name: fairmargin")
