"""`tools/house.py`, on a package that is made up here."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "house.py"

CLEAN = '''
class Base:
    """A base."""

    def act(self, force):
        """Act.

        Args:
            force: how hard.
        """

class Child(Base):
    """A child."""

    def act(self, force):
        return force

    @property
    def size(self):
        """The size."""
        return 1

def _private(x):
    return x
'''


@pytest.fixture
def house():
    spec = importlib.util.spec_from_file_location("house", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module
    yield spec.loader.exec_module(module) or module
    del sys.modules["house"]


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "made_up"
    (folder / "inner" / "tests").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "clean.py").write_text(CLEAN)
    (folder / "inner" / "tests" / "test_it.py").write_text("def untested(): pass\n")
    return folder


def check(folder, *options):
    command = [sys.executable, str(SCRIPT), str(folder), "--check", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_clean_package_passes(package):
    done = check(package)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "100.0%" in done.stdout


def test_everything_is_counted(house, package):
    dense = "def f(x):\n    return [y if y else 0 for y in {z for z in x}]\n"
    (package / "dense.py").write_text(dense + "class Base:\n    pass\n")
    found = house.measure(package)
    assert found.top_modules == ["clean", "dense"]
    assert found.lines == len(CLEAN.splitlines()) + 4
    assert (found.comprehensions, found.conditionals) == (2, 1)
    assert found.repeated == ["Base (2)"]
    # act, size and f; the one-line override of a documented method needs no text.
    assert found.functions == 3
    assert [entry.split()[-1] for entry in found.undocumented] == ["f"]
    assert (found.with_parameters, found.with_args) == (2, 1)
    assert dict(house.rows(found))["comprehensions per 1,000 lines"] == f"{2000 / found.lines:.1f}"


def test_google_numpy_and_sphinx_sections_count_alike(house):
    for section in ("Args:\n    x: it", "Parameters\n----------\nx : int", ":param x: it"):
        assert house.ARGS_SECTION.search(f"Do it.\n\n{section}\n"), section
    assert not house.ARGS_SECTION.search("Args is a word of this sentence.")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("long.py", f"x = {'1' * 100}\n", "long.py:1: longer than 100 columns"),
        ("bare.py", "def bare():\n    return 1\n", "bare.py:1 bare: no docstring"),
        (
            "args.py",
            'def a(x):\n    """A."""\n\ndef b(x):\n    """B."""\n',
            "33.3% of public functions have an Args section",
        ),
    ],
)
def test_check_names_what_breaks_a_limit(package, file, text, message):
    (package / file).write_text(text)
    done = check(package)
    assert done.returncode == 1
    assert message in done.stderr


def test_check_counts_modules_at_the_top(package):
    for number in range(10):
        (package / f"module{number}.py").write_text("")
    done = check(package)
    assert done.returncode == 1
    assert "11 top-level modules, at most 10: clean, module0" in done.stderr


def test_a_missing_folder_is_an_error(tmp_path):
    done = check(tmp_path / "nowhere")
    assert done.returncode == 2
    assert "is not a folder" in done.stderr


def test_classes_that_inherit_from_each_other_end(house, package):
    (package / "a.py").write_text("class A(B):\n    def f(self):\n        return 1\n")
    (package / "b.py").write_text("class B(A):\n    pass\n")
    assert len(house.measure(package).undocumented) == 1
