"""Colours and symbols of samples around an anchor, and their legend."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D

ALIGNED = "#2f6db5"
CONFLICTING = "#e8862e"
ANCHOR = "#1f7a3a"
# The same, dark enough for letters and outlines.
DARK = {ALIGNED: "#1d4a80", CONFLICTING: "#a1540e"}


def star() -> Line2D:
    """Return the legend's symbol of an anchor."""
    return _symbol(marker="*", color=ANCHOR, markersize=10, markeredgewidth=0)


def dot(colour: str) -> Line2D:
    """Return the legend's symbol of a sample."""
    return _symbol(marker="o", color=colour, markersize=7, markeredgewidth=0)


def ring(colour: str) -> Line2D:
    """Return the legend's symbol of a sample of any bias: an outline."""
    return _symbol(marker="o", markersize=7, markerfacecolor="white", markeredgecolor=colour)


def sign(marker: str, colour: str) -> Line2D:
    """Return the sign inside a sample: "+" for the anchor's class, "_" for another.

    Args:
        marker: "+" or "_".
        colour: of the sign.
    """
    return _symbol(marker=marker, markersize=4.5, markeredgecolor=colour, markeredgewidth=1.1)


def _symbol(**style: Any) -> Line2D:
    return Line2D([], [], linestyle="none", **style)


def legend(figure: Figure, handles: dict[str, Any]) -> None:
    """Draw a legend in one row below everything.

    Args:
        handles: the symbol of each label; several in a tuple are drawn over each other.
    """
    figure.legend(
        handles=list(handles.values()),
        labels=list(handles),
        handler_map={tuple: HandlerTuple(ndivide=1)},
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
        handletextpad=0.2,
        columnspacing=1.6,
    )
