"""Pages name only files, modules and headings that exist."""

import importlib
import re
from pathlib import Path

import pytest

import fairmargin

PACKAGE = Path(fairmargin.__file__).parent
ROOT = PACKAGE.parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Files of other projects that pages mention.
ELSEWHERE = {"main_linear.py"}
LINK = re.compile(r"\]\(([^)\s]+)\)")
DOTTED_NAME = re.compile(r"\b(?:fairmargin|benchmarks)(?:\.[A-Za-z_]\w*)+")
IMPORT = re.compile(r"^from (fairmargin[\w.]*) import ([\w, ]+)", re.MULTILINE)
# Paths from the root of the project.
PROJECT_PATH = re.compile(r"(?<![\w/.-])(?:src|tests|docs|examples|benchmarks)/[\w./+-]*\w")
# Python files in backticks: from the root, from the package, or by name alone.
PYTHON_FILE = re.compile(r"`([\w./-]+\.py)`")

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="not run from a checkout")
every_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)


def anchors(page):
    """What GitHub makes of a page's headings: "## What is *new*?" is #what-is-new."""
    found = set()
    for heading in re.findall(r"^#+ +(.+)$", page.read_text("utf-8"), re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        found.add(kept.replace(" ", "-"))
    return found


def resolve(name):
    """Import the longest part of a dotted name that is a module, and get the rest as attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return found
    raise ModuleNotFoundError(name)


def exists(name):
    try:
        resolve(name)
    except (ModuleNotFoundError, AttributeError):
        return False
    return True


def python_file_exists(name):
    if name in ELSEWHERE or (ROOT / name).is_file() or (PACKAGE / name).is_file():
        return True
    return "/" not in name and any(PACKAGE.rglob(name))


@every_page
def test_links_lead_to_files_and_headings(page):
    broken = []
    for target in LINK.findall(page.read_text("utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@every_page
def test_paths_exist(page):
    text = page.read_text("utf-8")
    paths = [path for path in PROJECT_PATH.findall(text) if not (ROOT / path).exists()]
    files = [name for name in PYTHON_FILE.findall(text) if not python_file_exists(name)]
    assert paths + files == []


@every_page
def test_modules_and_names_exist(page):
    text = page.read_text("utf-8")
    if page.name == "CHANGELOG.md":
        # The first column of its tables has names that are no more.
        text = re.sub(r"^\| [^|]*\|", "|", text, flags=re.MULTILINE)
    names = set(DOTTED_NAME.findall(text))
    for module, imported in IMPORT.findall(text):
        for name in imported.split(","):
            # "from fairmargin import losses as L" imports losses.
            names.add(f"{module}.{name.split(' as ')[0].strip()}")
    assert sorted(name for name in names if not exists(name)) == []


def test_the_checks_notice_what_is_missing():
    assert exists("fairmargin.losses.fairkl")
    assert not exists("fairmargin.losses.fair_kl")
    assert not exists("fairmargin.no_such_module")
    assert python_file_exists("losses/contrastive.py")
    assert not python_file_exists("losses/no_such_file.py")
    assert "three-budgets" in anchors(ROOT / "docs" / "reproduce.md")
