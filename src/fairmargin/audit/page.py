"""One self-contained HTML page, and a JSON file, of what an audit found."""

import json
from importlib import resources
from pathlib import Path

import jinja2

from fairmargin.audit.section import Found
from fairmargin.checkpoint import write_atomically
from fairmargin.report import figures

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
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fairmargin.audit", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    colours = {
        "heat": {theme: figures.heat_colours(theme) for theme in ("light", "dark")},
        "categories": figures.CATEGORIES,
    }
    style = environment.from_string(_report_style()).render(colours)
    return environment.get_template("page.html").render(found=found, style=style)


def _report_style() -> str:
    """The style sheet of the report's page, so that both pages look alike and figures of either fit the other."""
    source = resources.files("fairmargin.report").joinpath("page.html").read_text("utf-8")
    return source.partition("<style>")[2].partition("</style>")[0]
