"""Charts as small SVG texts: numbers in, one `<svg>` out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fairmargin.report.colours import STEPS, category_colour, heat_step, is_square
from fairmargin.report.svg import (
    WIDTH,
    box,
    column_headings,
    line,
    number,
    path,
    short,
    signed,
    svg,
    text,
    ticks,
)

Array = NDArray[np.floating]


def thin_bar(
    value: float, low: float | None, high: float | None, reference: float | None = None
) -> Markup:
    """Draw a bar from 0 to 1 that fills the width of its place.

    The number stands beside it, so it is hidden from screen readers.

    Args:
        value: length of the bar.
        low: beginning of the interval; None for no interval.
        high: end of the interval.
        reference: where to draw a thin line, such as chance.
    """
    parts = [Markup('<rect class="track" width="100" height="8"/>')]
    parts.append(Markup('<rect class="bar" width="{}" height="8"/>').format(f"{100 * value:.2f}"))
    if low is not None and high is not None and high > low:
        low, high = max(low, 0.0), min(high, 1.0)
        interval = Markup('<rect class="interval" x="{}" y="2.6" width="{}" height="2.8"/>')
        parts.append(interval.format(f"{100 * low:.2f}", f"{100 * (high - low):.2f}"))
    if reference is not None:
        mark = Markup('<rect class="reference" x="{}" width=".35" height="8"/>')
        parts.append(mark.format(f"{100 * reference:.2f}"))
    head = Markup(
        '<svg class="thin" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
    )
    return head + Markup("").join(parts) + Markup("</svg>")


@dataclass(frozen=True)
class Cells:
    """Right answers by label (rows) and bias (columns); arrays are [rows, columns]."""

    rows: Sequence[str]
    columns: Sequence[str]
    # Test samples.
    n: NDArray[np.integer]
    correct: NDArray[np.integer]
    # Training samples.
    train: NDArray[np.integer] | None
    # Groups that the training set over-represents.
    aligned: NDArray[np.bool_]


def heat_map(cells: Cells, label: str) -> Markup:
    """Draw one square per cell with its accuracy in per cent.

    Aligned cells are outlined; cells without training samples have a dot.

    Args:
        cells: what is drawn.
        label: what a screen reader says.
    """
    rows, columns = len(cells.rows), len(cells.columns)
    names = [short(name, 13) for name in cells.rows]
    left = 10 + 5.8 * max(map(len, names))
    parts, wide, top = column_headings(cells.columns, left, widest=84)
    tall = min(max(wide, 15), 30) if columns > 4 else 46
    # Frames are drawn last, so that no neighbour covers them.
    outlines = []
    for i, name in enumerate(names):
        y = top + i * tall
        parts.append(text(left - 6, y + tall / 2 + 3.5, name, "end"))
        for j in range(columns):
            place = left + j * wide, y, wide, tall
            parts.append(_cell(cells, i, j, place))
            if cells.aligned[i, j]:
                outlines.append(box("aligned", *place, inset=0.6))
    return svg(WIDTH, top + rows * tall + 2, label, [*parts, *outlines], "chart heat")


def _cell(cells: Cells, i: int, j: int, place: tuple[float, float, float, float]) -> Markup:
    x, y, wide, tall = place
    n, right = int(cells.n[i, j]), int(cells.correct[i, j])
    seen = None if cells.train is None else int(cells.train[i, j])
    told = f"{cells.rows[i]}, {cells.columns[j]}: "
    told += f"{right} of {n} right" if n else "no test sample"
    if seen is not None:
        told += f"; {seen:,} in training"
    inside = [Markup("<title>{}</title>").format(told)]
    step = heat_step(right / n) if n else None
    fill = "empty" if step is None else f"h{step}"
    ink = "" if step is None else f" i{step}"
    # A dark cell needs a light ring inside its frame.
    inset = 3.4 if cells.aligned[i, j] and wide > 16 else 1.0
    inside.append(box(fill, x, y, wide, tall, inset))
    if wide >= 21 and tall >= 14:
        middle = x + wide / 2, y + tall / 2
        shown = f"{100 * right / n:.0f}" if n else "–"
        both = wide > 55 and seen is not None
        inside.append(text(middle[0], middle[1] + (-1 if both else 3.5), shown, f"middle{ink}"))
        if both:
            inside.append(text(middle[0], middle[1] + 12, f"train {seen:,}", f"middle{ink} tiny"))
    if seen == 0:
        dot = Markup('<circle class="unseen{}" cx="{}" cy="{}" r="1.6"/>')
        inside.append(dot.format(ink, number(x + wide - 5), number(y + 5)))
    return Markup("<g>") + Markup("").join(inside) + Markup("</g>")


def heat_legend() -> Markup:
    """Draw the steps of a heat map from 0 to 1."""
    step = Markup('<rect class="h{}" x="{}" width="10.3" height="10"/>')
    boxes = [step.format(k, number(10 * k)) for k in range(STEPS)]
    head = Markup(
        '<svg class="key" viewBox="0 0 110 10" width="110" height="10" aria-hidden="true">'
    )
    return head + Markup("").join(boxes) + Markup("</svg>")


@dataclass(frozen=True)
class Histogram:
    """Pairs per bin, drawn as a filled area or as a dashed outline."""

    # [bins]
    counts: Array
    mean: float | None
    # CSS class.
    kind: str
    filled: bool


def histograms(
    edges: Array, sets: Sequence[Histogram], span: tuple[float, float], tallest: float, label: str
) -> Markup:
    """Draw histograms over each other.

    Args:
        edges: of the bins, [bins + 1].
        sets: what is drawn; outlines stand above areas.
        span: ends of the horizontal axis, so that neighbouring charts have one scale.
        tallest: share of pairs in a bin that fills the height.
        label: what a screen reader says.
    """
    height, left, right, top, bottom = 200.0, 8.0, WIDTH - 8.0, 16.0, 170.0
    low, high = span

    def across(v: float) -> float:
        return left + (min(max(v, low), high) - low) / (high - low) * (right - left)

    parts = [line(left, bottom, right, bottom, "axis")]
    for v in ticks(low, high, 5):
        parts.append(line(across(v), bottom, across(v), bottom + 4, "axis"))
        parts.append(text(across(v), bottom + 16, signed(f"{v:.2g}"), "middle"))
    for one in sorted(sets, key=lambda one: not one.filled):
        share = one.counts / max(one.counts.sum(), 1)
        used = np.flatnonzero(share)
        if not len(used):
            continue
        steps: list[tuple[float, float]] = [(across(edges[used[0]]), bottom)]
        for k in range(used[0], used[-1] + 1):
            y = bottom - share[k] / (tallest or 1) * (bottom - top)
            steps += [(across(edges[k]), y), (across(edges[k + 1]), y)]
        steps.append((steps[-1][0], bottom))
        if one.filled:
            parts.append(path(steps, f"area {one.kind}"))
        else:
            parts.append(path(steps, f"outline {one.kind}", "5 2.5"))
    for one in sets:
        if one.mean is not None and low <= one.mean <= high:
            x, tip = across(one.mean), 3.6
            triangle = [(x, bottom - 1), (x - tip, bottom + 6), (x + tip, bottom + 6)]
            look = "full" if one.filled else "hollow"
            parts.append(path(triangle, f"mean {one.kind} {look}", close=True))
    parts.append(text((left + right) / 2, height - 2, "cosine similarity", "middle axis-name"))
    return svg(WIDTH, height, label, parts)


def scatter(
    points: Array, category: NDArray[np.integer], names: Sequence[str], label: str
) -> Markup:
    """Draw one path of dots per category.

    Args:
        points: [N, 2] in the unit square.
        category: [N] positions in `names`; −1 for unknown.
        names: of the categories.
        label: what a screen reader says.
    """
    size, edge = 320.0, 8.0
    dots = Markup(
        '<path class="dots" data-c="{}" stroke-linecap="{}" style="stroke:{}" d="{}">'
        "<title>{}</title></path>"
    )
    parts = []
    for k in [int(k) for k in np.unique(category)]:
        name, colour, shape = "unknown", "var(--faint)", "round"
        if k >= 0:
            name = names[k]
            colour = category_colour(k, name, names)
            shape = "square" if is_square(k) else "round"
        places = [
            f"M{number(edge + x * (size - 16))} {number(edge + (1 - y) * (size - 16))}h0"
            for x, y in points[category == k]
        ]
        parts.append(dots.format(k, shape, colour, "".join(places), name))
    return svg(size, size, label, parts, "chart map")


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    x: Sequence[float]
    y: Sequence[float]
    # CSS class that sets the colour.
    kind: str
    dash: str = ""


def curves(
    lines: Sequence[Line],
    label: str,
    *,
    x_name: Literal["epoch", "step"],
    y_range: tuple[float, float] | None = None,
    percent: bool = False,
    logarithmic: bool = False,
    height: float = 190,
) -> Markup:
    """Draw lines over epochs or steps.

    Args:
        lines: what is drawn.
        label: what a screen reader says.
        x_name: name of the horizontal axis.
        y_range: ends of the vertical axis; None fits them to the lines.
        percent: write values as per cent.
        logarithmic: of the vertical axis; values below 1 are drawn at 1.
        height: of the chart, in units.
    """
    xs = [x for one in lines for x in one.x] or [0.0]
    ys = [y for one in lines for y in one.y] or [0.0]
    first, last = min(xs), max(xs)
    scale: Callable[[float], float] = float
    if logarithmic:
        scale = _log10
        powers = math.ceil(math.log10(max(*ys, 10.0)))
        low, high = 1.0, 10.0**powers
        marks = [10.0**k for k in range(powers + 1)]
    else:
        low, high = y_range or _padded(min(ys), max(ys))
        marks = ticks(low, high, 4 if height > 150 else 2)
    written = [f"{100 * v:.0f} %" if percent else _plain(v) for v in marks]
    left, right = 12 + 5.6 * max(map(len, written)), WIDTH - 10.0
    top, bottom = 8.0, height - 20

    def place(x: float, y: float) -> tuple[float, float]:
        along = (x - first) / (last - first) if last > first else 0.5
        up = (scale(y) - scale(low)) / (scale(high) - scale(low))
        return left + along * (right - left), bottom - up * (bottom - top)

    parts = []
    for v, said in zip(marks, written, strict=True):
        y = place(first, v)[1]
        parts += [line(left, y, right, y, "grid"), text(left - 5, y + 3.5, said, "end")]
    whole = [v for v in ticks(first, last, 5) if v == int(v)] or [first]
    for v in whole:
        x = place(v, low)[0]
        # The name of the axis stands at its right end.
        if x < right - 12 - 6 * len(x_name):
            parts.append(text(x, bottom + 14, f"{v:,.0f}", "middle"))
    parts.append(text(right, bottom + 14, x_name, "end axis-name"))
    point = Markup('<circle class="point {}" cx="{}" cy="{}" r="3"/>')
    for one in lines:
        dots = [place(x, y) for x, y in thinned(one.x, one.y)]
        if len(dots) == 1:
            parts.append(point.format(one.kind, *map(number, dots[0])))
        elif dots:
            parts.append(path(dots, f"line {one.kind}", one.dash))
    return svg(WIDTH, height, label, parts)


def thinned(x: Sequence[float], y: Sequence[float], most: int = 300) -> list[tuple[float, float]]:
    """Return at most `most` points, each the mean of some neighbours.

    Args:
        x: ascending.
        y: one for each x.
        most: points to return.
    """
    if len(x) <= most:
        return list(zip(x, y, strict=True))
    xs = np.array_split(np.asarray(x, float), most)
    ys = np.array_split(np.asarray(y, float), most)
    return [(float(a.mean()), float(b.mean())) for a, b in zip(xs, ys, strict=True)]


def _log10(y: float) -> float:
    return math.log10(max(y, 1.0))


def _padded(low: float, high: float) -> tuple[float, float]:
    # A loss is read against zero unless it is far below.
    if low > -0.25 * abs(high):
        low = min(low, 0.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _plain(v: float) -> str:
    return signed(f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.3g}")


@dataclass(frozen=True)
class Bin:
    """Samples of about one confidence: its mean, the share that is right, and how many."""

    confidence: float
    accuracy: float
    n: int


def reliability(bins: Sequence[Bin], label: str) -> Markup:
    """Draw accuracy over confidence; the area of a dot is its share of the samples.

    On the diagonal a model is right as often as it says.

    Args:
        bins: one dot each.
        label: what a screen reader says.
    """
    size, left, right, top, bottom = 250.0, 54.0, 242.0, 8.0, 206.0

    def place(x: float, y: float) -> tuple[float, float]:
        return left + x * (right - left), bottom - y * (bottom - top)

    parts = []
    for v in (0.0, 0.5, 1.0):
        x, y = place(v, v)
        said = f"{100 * v:.0f} %"
        parts += [line(left, y, right, y, "grid"), text(left - 5, y + 3.5, said, "end")]
        parts.append(text(x, bottom + 14, said, "end" if v == 1 else "middle"))
    parts.append(path([place(0, 0), place(1, 1)], "diagonal", "4 3"))
    most = max((b.n for b in bins), default=1)
    dot = Markup('<circle class="point" cx="{}" cy="{}" r="{}"><title>{}</title></circle>')
    for b in bins:
        if b.n == 0:
            continue
        x, y = place(b.confidence, b.accuracy)
        ideal = place(b.confidence, b.confidence)[1]
        parts.append(line(x, ideal, x, y, "gap"))
        told = (
            f"confidence {100 * b.confidence:.0f} %, right {100 * b.accuracy:.0f} %, "
            f"{b.n:,} samples"
        )
        radius = 2 + 7 * math.sqrt(b.n / most)
        parts.append(dot.format(number(x), number(y), number(radius), told))
    parts.append(text((left + right) / 2, size - 8, "confidence", "middle axis-name"))
    parts.append(text(10, (top + bottom) / 2, "accuracy", "middle axis-name", -90))
    return svg(size, size, label, parts, "chart small")
