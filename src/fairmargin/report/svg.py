"""Pieces of a drawing: numbers in, SVG out. Colours are CSS classes, so themes need no redrawing.

A chart is 360 units wide, the width of a phone, so its letters are legible there.
"""

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup

WIDTH = 360


def number(x: float) -> str:
    """Write a coordinate with at most one decimal: a tenth of a unit is finer than a pixel."""
    # Adding 0.0 turns −0 into 0.
    return f"{round(x, 1) + 0.0:.1f}".removesuffix(".0")


def short(name: str, letters: int) -> str:
    """Cut a name to this many letters, with "…" at its end.

    Args:
        name: any text.
        letters: how many at most.
    """
    return name if len(name) <= letters else name[: letters - 1] + "…"


def signed(text: str) -> str:
    """Replace hyphens by minus signs, in a number that was written as text."""
    return text.replace("-", "−")


def svg(
    width: float, height: float, label: str, parts: Iterable[Markup], kind: str = "chart"
) -> Markup:
    """Put the parts into one `<svg>`.

    Args:
        width: of the drawing, in units.
        height: of the drawing, in units.
        label: what a screen reader says.
        parts: drawn in this order; later ones cover earlier ones.
        kind: CSS classes.
    """
    head = Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    opening = head.format(kind, number(width), number(height), label)
    return opening + Markup("").join(parts) + Markup("</svg>")


def text(x: float, y: float, content: str, kind: str = "", turn: float = 0) -> Markup:
    """Write `content` at a place.

    Args:
        x: of the anchor.
        y: of the base line.
        content: is escaped.
        kind: CSS classes; "start", "middle" and "end" say where the anchor is.
        turn: degrees, clockwise around the anchor.
    """
    turned: str | Markup = ""
    if turn:
        rotation = Markup(' transform="rotate({} {} {})"')
        turned = rotation.format(number(turn), number(x), number(y))
    classed = Markup(' class="{}"').format(kind) if kind else ""
    element = Markup('<text x="{}" y="{}"{}{}>{}</text>')
    return element.format(number(x), number(y), classed, turned, content)


def column_headings(
    names: Sequence[str], left: float, *, widest: float
) -> tuple[list[Markup], float, float]:
    """Write names above columns that fill the width, turned where they would run into each other.

    Args:
        names: of the columns; long ones are cut.
        left: where the first column begins.
        widest: of a column.

    Returns:
        The headings, the width of a column, and how far down the columns begin.
    """
    tops = [short(name, 13) for name in names]
    longest = max(map(len, tops))
    turned = longest * 5.6 > (WIDTH - left) / len(tops)
    # How far the last turned name leans out.
    over = max(0.0, 4.1 * len(tops[-1]) - 10) if turned else 0.0
    wide = min((WIDTH - left - 2 - over) / len(tops), widest)
    top = 12 + 4.4 * longest if turned else 20.0
    parts = []
    for j, name in enumerate(tops):
        x = left + (j + 0.5) * wide
        if turned:
            parts.append(text(x + 3, top - 5, name, "start", -48))
        else:
            parts.append(text(x, top - 7, name, "middle"))
    return parts, wide, top


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Draw a line from (x1, y1) to (x2, y2)."""
    place = (number(value) for value in (x1, y1, x2, y2))
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(*place, kind)


def path(
    points: Iterable[tuple[float, float]], kind: str, dash: str = "", close: bool = False
) -> Markup:
    """Connect the points.

    Args:
        points: (x, y) each.
        kind: CSS classes.
        dash: pattern of the line; "" for a solid one.
        close: connect the last point with the first.
    """
    d = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
    if close:
        d += "Z"
    dashed = Markup(' stroke-dasharray="{}"').format(dash) if dash else ""
    return Markup('<path d="{}" class="{}"{}/>').format(d, kind, dashed)


def box(kind: str, x: float, y: float, wide: float, tall: float, inset: float = 1.0) -> Markup:
    """Draw a rectangle with round corners, smaller by `inset` on each side.

    Args:
        kind: CSS classes.
        x: of the left side.
        y: of the top.
        wide: width before the inset.
        tall: height before the inset.
        inset: on each side.
    """
    place = (number(v) for v in (x + inset, y + inset, wide - 2 * inset, tall - 2 * inset))
    rectangle = Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="2"/>')
    return rectangle.format(kind, *place)


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return round numbers from low to high, `about` so many.

    Args:
        low: end of the axis.
        high: other end of the axis.
        about: how many are wanted.
    """
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]
