"""Pages on which figures are drawn, and the three files of each figure.

A figure is written as SVG for print, as PNG for the screen, and as JSON with the numbers it shows,
so that it can be checked. Equal numbers give equal files. Sizes are those of a printed page: 7
inches wide, letters of 8 points.
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

from fairmargin.runtime.whole import write_atomically

# Inches.
WIDTH = 7.0
# Dots per inch of the PNG.
DOTS = 220
INK = "#222222"
FAINT = "#8a8f98"
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
    # So that names inside the file do not change from run to run.
    "svg.hashsalt": "fairmargin",
}


@dataclass(frozen=True)
class Drawn:
    """The three files of a figure."""

    svg: Path
    png: Path
    numbers: Path


@contextmanager
def page(height: float) -> Iterator[Figure]:
    """Give a figure as wide as a page; what is drawn inside has the style of this package.

    Args:
        height: in inches.
    """
    with mpl.rc_context(STYLE):
        yield Figure(figsize=(WIDTH, height), layout="constrained")


def save(
    figure: Figure, folder: Path, name: str, numbers: Mapping[str, Any] | Sequence[Any]
) -> Drawn:
    """Write the three files NAME.svg, NAME.png and NAME.json.

    Args:
        numbers: what the figure shows, for the JSON file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = Drawn(folder / f"{name}.svg", folder / f"{name}.png", folder / f"{name}.json")
    for path, metadata in ((drawn.svg, {"Date": None}), (drawn.png, {})):
        buffer = BytesIO()
        figure.savefig(buffer, format=path.suffix[1:], dpi=DOTS, metadata=metadata)
        write_atomically(path, buffer.getbuffer())
    text = json.dumps(numbers, ensure_ascii=False, allow_nan=False)
    write_atomically(drawn.numbers, text.encode())
    return drawn


def caption(figure: Figure, text: str) -> None:
    """Write below everything how the numbers came about, unless the text is empty."""
    if text:
        figure.supxlabel(textwrap.fill(text, 125), fontsize=7.5, color=INK)


def open_frame(ax: Axes) -> None:
    """Show only the left and lower axes, over a faint grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e3e5e8", linewidth=0.6)
    ax.set_axisbelow(True)
