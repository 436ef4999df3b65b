"""One self-contained HTML page, and a JSON file, of what an audit found."""

import json
from pathlib import Path

from fairmargin.audit.section import Found
from fairmargin.report import template
from fairmargin.runtime.files import write_atomically

PAGE, NUMBERS = "audit.html", "audit.json"


def write(found: Found, folder: Path) -> tuple[Path, Path]:
    """(page, numbers): `audit.html` and `audit.json` in the folder, which is made."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"cannot write into {folder}, which is a file; give a folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    numbers = json.dumps(found.json, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(folder / NUMBERS, numbers.encode())
    write_atomically(folder / PAGE, render(found).encode())
    return folder / PAGE, folder / NUMBERS


def render(found: Found) -> str:
    repeated = [section.id for section in found.sections]
    if len(set(repeated)) < len(repeated):
        raise ValueError(f"sections of a page need ids of their own; got {', '.join(repeated)}")
    return template.environment("fairmargin.audit").get_template("page.html").render(found=found)
