"""`tools/pins.py`, which writes requirements/, and what it wrote. Nothing here asks an index."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tools" / "pins.py"
A, B, C, D = (letter * 64 for letter in "abcd")

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="not run from a checkout")


@pytest.fixture(scope="module")
def pins():
    spec = importlib.util.spec_from_file_location("pins", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["pins"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["pins"]


def page(*files):
    """A page of an index: files with their SHA-256, and perhaps more attributes."""
    links = [f'<a href="../f/{file}#sha256={digest}"{more}>x</a>' for file, digest, more in files]
    return "<html><body>" + "".join(links) + "</body></html>"


def test_what_is_written_agrees_with_the_versions_and_is_complete(pins):
    assert pins.problems(ROOT) == []


def test_every_file_that_make_installs_has_a_hash():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "--require-hashes" in makefile
    named = set(re.findall(r"-r (requirements/\w+\.txt)", makefile))
    assert named == {f"requirements/{path.name}" for path in (ROOT / "requirements").iterdir()}
    # Without hashes: torch, and FairMargin itself, which takes nothing along.
    unhashed = re.findall(r"\$\(PIP\) (.+?)(?: &&|$)", makefile, re.MULTILINE)
    assert unhashed == ["torch", "--no-deps --no-build-isolation --editable ."]


def test_wheels_of_every_system_are_taken_and_nothing_else(pins):
    text = page(
        ("a_b-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", A, ""),
        ("a_b-1.0-cp314-cp314-macosx_11_0_arm64.whl", B, ""),
        ("a_b-1.0-cp39-abi3-win_amd64.whl", C, ""),
        ("a_b-1.0-py3-none-any.whl", D, ""),
        ("a_b-1.0-cp310-cp310-manylinux_2_28_x86_64.whl", "1" * 64, ""),
        ("a_b-1.0-cp314-cp314t-manylinux_2_28_x86_64.whl", "2" * 64, ""),
        ("a_b-1.0.tar.gz", "3" * 64, ""),
        ("a_b-1.1-py3-none-any.whl", "4" * 64, ""),
        ("other-1.0-py3-none-any.whl", "5" * 64, ""),
        ("a_b-1.0-1-py3-none-any.whl", "6" * 64, ' data-yanked="bad"'),
        ("a_b-1.0-2-py3-none-any.whl", "7" * 63, ""),
    )
    assert pins.hashes(text, "a-b", "1.0") == [A, B, C, D]


def test_a_version_without_wheels_is_refused(pins):
    with pytest.raises(pins.PinError, match=r"no wheel of a 1\.0"):
        pins.hashes(page(("a-1.0.tar.gz", A, "")), "a", "1.0")


def test_requirements_of_other_systems_and_pythons_count(pins):
    needs = {
        "a": ['b; sys_platform == "darwin"', 'c; python_version >= "3.14"', "d[x]"],
        "d": ['e; extra == "x"', 'f; extra == "y"', 'g; sys_platform == "win32"', "a"],
    }
    assert pins.closure(["a>=1"], lambda name: needs.get(name, [])) == set("abcde")


@pytest.fixture
def project(tmp_path):
    (tmp_path / "constraints.txt").write_text("# Versions.\nA_b==1.0\nmaker==2\ntorch==3\n")
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["maker"]\n[project]\ndependencies = ["A_b", "torch"]\n'
        "[project.optional-dependencies]\ndev = []\nbench = []\ndocs = []\n"
    )
    return tmp_path


def test_the_index_is_the_one_that_pip_asks(pins, monkeypatch):
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    assert pins.index().startswith("https://")
    assert pins.index().endswith("/simple")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple/")
    assert pins.index() == "https://mirror.example/simple"


def test_files_are_renewed_from_an_index(pins, project):
    asked = []

    def fetch(name):
        asked.append(name)
        version = {"a-b": "1.0", "maker": "2"}[name]
        return page((f"{name.replace('-', '_')}-{version}-py3-none-any.whl", A, ""))

    pins.renew(project, fetch, requires=lambda name: [])
    assert asked == ["a-b", "maker"]
    text = (project / "requirements" / "runtime.txt").read_text()
    assert text.endswith(f"a-b==1.0 \\\n    --hash=sha256:{A}\n")
    assert pins.read(text) == {"a-b": ("1.0", [A])}
    assert pins.problems(project, lambda name: []) == []
    (project / "constraints.txt").write_text("a-b==1.1\nmaker==2\n")
    found = pins.problems(project, lambda name: [])
    assert found == ["runtime.txt has a-b 1.0, constraints.txt another"]


def test_nothing_is_written_if_a_version_is_missing(pins, project):
    (project / "constraints.txt").write_text("maker==2\n")
    with pytest.raises(pins.PinError, match=r"no version of a-b"):
        pins.renew(project, lambda address: "", requires=lambda name: [])
    assert not (project / "requirements").exists()


def test_a_package_that_is_not_here_is_said(pins):
    with pytest.raises(pins.PinError, match="no-such-package is not installed here"):
        pins.surely_installed("no-such-package")


def test_security_says_what_is_not_trusted_and_how_to_report():
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    for word in (
        "archives", "images", "tables", "run folders", "checkpoints", "embeddings", "class names",
        "file names", "control characters", "requirements/", "Report a vulnerability",
    ):  # fmt: skip
        assert word in text, word
