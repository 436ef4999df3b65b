"""Write what an audit found: one self-contained HTML page, a JSON file, and a row an image."""

import base64
import hashlib
import json
from pathlib import Path

from markupsafe import Markup

from fairmargin.audit.rows import to_csv
from fairmargin.audit.section import Found
from fairmargin.report import template
from fairmargin.runtime.whole import write_bytes

PAGE, NUMBERS = "audit.html", "audit.json"


def write(found: Found, folder: Path) -> tuple[Path, Path]:
    """Write `audit.html` and `audit.json`, and perhaps `audit.csv`; return the first two paths.

    Args:
        found: the outcome of an audit.
        folder: where to; it is made.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"cannot write into {folder}, which is a file; give a folder with --out")
    page = write_page(found, folder / PAGE)
    return page, folder / NUMBERS


def write_page(found: Found, file: Path) -> Path:
    """Write a page, the numbers beside it as .json and the pictures as .csv; return its path.

    Args:
        found: the outcome of an audit.
        file: with the ending .html; a folder, or a name without an ending, stands for audit.html in
            it.
    """
    if file.is_dir() or not file.suffix:
        file = file / PAGE
    if file.suffix not in (".html", ".htm"):
        raise ValueError(f"an audit is written as .html, with its numbers as .json; got {file}")
    numbers = json.dumps(found.json, indent=1, ensure_ascii=False, allow_nan=False)
    write_bytes(file.with_suffix(".json"), numbers.encode())
    if found.columns is not None:
        write_bytes(file.with_suffix(".csv"), to_csv(found.columns))
    write_bytes(file, render(found).encode())
    return file


def render(found: Found) -> str:
    """Return the page as HTML."""
    ids = [section.id for section in found.sections]
    if len(set(ids)) < len(ids):
        raise ValueError(f"sections of a page need ids of their own; got {', '.join(ids)}")
    environment = template.environment("fairmargin.audit")
    script = None
    if any(section.lists for section in found.sections):
        script = environment.get_template("names-script.html").render()
    policy = Markup("" if script is None else f"; script-src '{_digest(script)}'")
    page = environment.get_template("page.html")
    return page.render(found=found, script=script, policy=policy)


def _digest(script: str) -> str:
    """Return what a content policy calls this script, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
