"""A figure in three files: SVG for print, PNG for the screen, and JSON with the numbers it shows, so that it can be checked.

Equal numbers give equal files. Sizes are those of a printed page: 7 inches wide, letters of 8 points.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fairmargin.runtime.files import write_atomically

WIDTH = 7.0  # inches
DOTS = 220  # of the PNG, per inch
INK, FAINT = "#222222", "#8a8f98"
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "legend.fontsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "fairmargin",  # names inside the file that do not change from run to run
}


@dataclass(frozen=True)
class Drawn:
    """Where a figure is."""

    svg: Path
    png: Path
    numbers: Path


@contextmanager
def page(height: float) -> Iterator[Figure]:
    """A figure as wide as a page; letters and lines made inside have the style of this package."""
    with mpl.rc_context(STYLE):
        yield Figure(figsize=(WIDTH, height), layout="constrained")


def save(
    figure: Figure, folder: Path, name: str, numbers: Mapping[str, Any] | Sequence[Any]
) -> Drawn:
    """Write the three files `name`.svg, .png and .json."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = Drawn(*(folder / f"{name}.{kind}" for kind in ("svg", "png", "json")))
    for path, facts in ((drawn.svg, {"Date": None}), (drawn.png, {})):
        buffer = BytesIO()
        figure.savefig(buffer, format=path.suffix[1:], dpi=DOTS, metadata=facts)
        write_atomically(path, buffer.getbuffer())
    text = json.dumps(numbers, ensure_ascii=False, allow_nan=False)
    write_atomically(drawn.numbers, text.encode())
    return drawn


def caption(figure: Figure, text: str) -> None:
    """A line under everything: how the numbers came about."""
    if text:
        figure.supxlabel(textwrap.fill(text, 125), fontsize=7.5, color=INK)


def open_frame(ax: Axes) -> None:
    """Axes left and below only, over a faint grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e3e5e8", linewidth=0.6)
    ax.set_axisbelow(True)
