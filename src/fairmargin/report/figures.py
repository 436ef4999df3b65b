"""Charts as small SVG texts: numbers in, one `<svg>` out. Colours are CSS variables of the page, so themes need no redrawing.

A chart is drawn 360 units wide, the width of a phone, so that its letters are legible there and never shrink below that.
"""

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

WIDTH = 360
THUMBNAIL = (
    96  # pixels; larger images are reduced to this, smaller ones are enlarged by the browser
)
DASHES = (
    "",
    "7 3",
    "2 3",
    "9 3 2 3",
    "4 2",
    "1 2",
    "12 3",
    "6 2 1 2",
)  # a second cue beside the colour

LOW_TO_HIGH = {  # accuracy 0, ½, 1 on a light and on a dark page
    "light": ("#f1f4f9", "#84b1de", "#0c3a75"),
    "dark": ("#1c2533", "#3c6ea8", "#c4e0ff"),
}
STEPS = 11

CATEGORIES = {  # told apart by lightness as well as by hue
    "light": ("#3b2f9e", "#2a93cc", "#1f8a70", "#6f9a1c", "#b48f00", "#d96f12", "#c8475d", "#7d1f5c", "#a04bbf", "#6b7280"),
    "dark": ("#9a92f5", "#56b8ee", "#43c3a3", "#a2cf4f", "#e8cd3f", "#f59b45", "#f58599", "#d978b2", "#d193ea", "#a3acb8"),
}  # fmt: skip
NAMED = {  # a bias that is a colour is drawn in it, in a shade that shows on white and on black
    "red": "#e03131", "green": "#2f9e44", "blue": "#3b6ef5", "yellow": "#d4ac06", "magenta": "#cf30c4", "cyan": "#10a9bd",
    "orange": "#f07c1b", "pink": "#f0528f", "violet": "#8b5cf6", "purple": "#8b5cf6", "spring green": "#17b978",
    "grey": "#8a8f98", "gray": "#8a8f98", "brown": "#9a6a3f",
}  # fmt: skip

Array = NDArray[np.floating]


def number(x: float) -> str:
    """At most one decimal: a tenth of a unit is finer than a pixel."""
    return f"{round(x, 1) + 0.0:.1f}".removesuffix(".0")  # + 0.0 turns −0 into 0


def short(name: str, letters: int) -> str:
    return name if len(name) <= letters else name[: letters - 1] + "…"


def svg(
    width: float, height: float, label: str, parts: Iterable[Markup], kind: str = "chart"
) -> Markup:
    head = Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    return (
        head.format(kind, number(width), number(height), label)
        + Markup("").join(parts)
        + Markup("</svg>")
    )


def _text(x: float, y: float, content: str, kind: str = "", turn: float = 0) -> Markup:
    turned = (
        Markup(' transform="rotate({} {} {})"').format(number(turn), number(x), number(y))
        if turn
        else ""
    )
    classed = Markup(' class="{}"').format(kind) if kind else ""
    return Markup('<text x="{}" y="{}"{}{}>{}</text>').format(
        number(x), number(y), classed, turned, content
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    place = (number(value) for value in (x1, y1, x2, y2))
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(*place, kind)


def _path(
    points: Iterable[tuple[float, float]], kind: str, dash: str = "", close: bool = False
) -> Markup:
    d = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points) + ("Z" if close else "")
    dashed = Markup(' stroke-dasharray="{}"').format(dash) if dash else ""
    return Markup('<path d="{}" class="{}"{}/>').format(d, kind, dashed)


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers from low to high, `about` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def thin_bar(
    value: float, low: float | None, high: float | None, reference: float | None = None
) -> Markup:
    """A bar from 0 to 1 that stretches with its place; beside it stands the number, so it is hidden from screen readers."""
    parts = [Markup('<rect class="track" width="100" height="8"/>')]
    parts.append(Markup('<rect class="bar" width="{}" height="8"/>').format(f"{100 * value:.2f}"))
    if low is not None and high is not None and high > low:
        low, high = max(low, 0.0), min(high, 1.0)
        interval = Markup('<rect class="interval" x="{}" y="2.6" width="{}" height="2.8"/>')
        parts.append(interval.format(f"{100 * low:.2f}", f"{100 * (high - low):.2f}"))
    if reference is not None:
        parts.append(
            Markup('<rect class="reference" x="{}" width=".35" height="8"/>').format(
                f"{100 * reference:.2f}"
            )
        )
    head = Markup(
        '<svg class="thin" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
    )
    return head + Markup("").join(parts) + Markup("</svg>")


@dataclass(frozen=True)
class Cells:
    """Right answers by label (rows) and bias (columns)."""

    rows: Sequence[str]
    columns: Sequence[str]
    n: NDArray[np.integer]  # [rows, columns] test samples
    correct: NDArray[np.integer]
    train: NDArray[np.integer] | None  # training samples
    aligned: NDArray[np.bool_]  # the column seen most with a row in training


def heat_step(share: float) -> int:
    return min(STEPS - 1, max(0, round(share * (STEPS - 1))))


def heat_map(cells: Cells, label: str) -> Markup:
    """One square per cell with its accuracy in per cent; aligned cells outlined, cells never trained on dotted."""
    rows, columns = len(cells.rows), len(cells.columns)
    names = [short(name, 13) for name in cells.rows]
    tops = [short(name, 13) for name in cells.columns]
    left = 10 + 5.8 * max(map(len, names))
    turned = max(map(len, tops)) * 5.6 > (WIDTH - left) / columns
    over = (
        max(0.0, 4.1 * len(tops[-1]) - 10) if turned else 0.0
    )  # how far the last turned name leans out
    wide = min((WIDTH - left - 2 - over) / columns, 84)
    tall = min(max(wide, 15), 30) if columns > 4 else 46
    top = 12 + 4.4 * max(map(len, tops)) if turned else 20
    parts = []
    for j, name in enumerate(tops):
        x = left + (j + 0.5) * wide
        parts.append(
            _text(x + 3, top - 5, name, "start", -48)
            if turned
            else _text(x, top - 7, name, "middle")
        )
    outlines = []  # frames are drawn last, so that no neighbour covers them
    for i, name in enumerate(names):
        y = top + i * tall
        parts.append(_text(left - 6, y + tall / 2 + 3.5, name, "end"))
        for j in range(columns):
            place = left + j * wide, y, wide, tall
            parts.append(_cell(cells, i, j, place))
            if cells.aligned[i, j]:
                outlines.append(_box("aligned", *place, inset=0.6))
    return svg(
        max(WIDTH, left + columns * wide + 2 + over),
        top + rows * tall + 2,
        label,
        [*parts, *outlines],
        "chart heat",
    )


def _box(kind: str, x: float, y: float, wide: float, tall: float, inset: float = 1.0) -> Markup:
    place = (number(v) for v in (x + inset, y + inset, wide - 2 * inset, tall - 2 * inset))
    return Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="2"/>').format(
        kind, *place
    )


def _cell(cells: Cells, i: int, j: int, place: tuple[float, float, float, float]) -> Markup:
    x, y, wide, tall = place
    n, right = int(cells.n[i, j]), int(cells.correct[i, j])
    seen = None if cells.train is None else int(cells.train[i, j])
    told = f"{cells.rows[i]}, {cells.columns[j]}: " + (
        f"{right} of {n} right" if n else "no test sample"
    )
    told += "" if seen is None else f"; {seen:,} in training"
    inside = [Markup("<title>{}</title>").format(told)]
    step = heat_step(right / n) if n else None
    inset = (
        3.4 if cells.aligned[i, j] and wide > 16 else 1.0
    )  # leaves a light ring inside the frame, which a dark cell needs
    inside.append(_box("empty" if step is None else f"h{step}", x, y, wide, tall, inset))
    if wide >= 21 and tall >= 14:
        both = wide > 55 and seen is not None
        shown = f"{100 * right / n:.0f}" if n else "–"
        ink = "middle" if step is None else f"middle i{step}"
        inside.append(_text(x + wide / 2, y + tall / 2 + (-1 if both else 3.5), shown, ink))
        if both:
            inside.append(_text(x + wide / 2, y + tall / 2 + 12, f"train {seen:,}", ink + " tiny"))
    if seen == 0:
        dot = Markup('<circle class="unseen{}" cx="{}" cy="{}" r="1.6"/>')
        inside.append(
            dot.format("" if step is None else f" i{step}", number(x + wide - 5), number(y + 5))
        )
    return Markup("<g>") + Markup("").join(inside) + Markup("</g>")


def heat_legend() -> Markup:
    boxes = [
        Markup('<rect class="h{}" x="{}" width="10.3" height="10"/>').format(k, number(10 * k))
        for k in range(STEPS)
    ]
    head = Markup(
        '<svg class="key" viewBox="0 0 110 10" width="110" height="10" aria-hidden="true">'
    )
    return head + Markup("").join(boxes) + Markup("</svg>")


@dataclass(frozen=True)
class Histogram:
    """Shares of pairs per bin, drawn as a filled area or as a dashed outline."""

    counts: Array  # [bins]
    mean: float | None
    kind: str  # CSS class: "positive" or "negative"
    filled: bool


def histograms(
    edges: Array, sets: Sequence[Histogram], span: tuple[float, float], tallest: float, label: str
) -> Markup:
    """Overlaid; `span` and `tallest` (a share per bin) are given so that neighbours have one scale."""
    height, left, right, top, bottom = 200.0, 8.0, WIDTH - 8.0, 16.0, 170.0
    low, high = span

    def across(v: float) -> float:
        return left + (min(max(v, low), high) - low) / (high - low) * (right - left)

    parts = [_line(left, bottom, right, bottom, "axis")]
    for v in ticks(low, high, 5):
        parts += [_line(across(v), bottom, across(v), bottom + 4, "axis")]
        parts += [_text(across(v), bottom + 16, f"{v:.2g}".replace("-", "−"), "middle")]
    for one in sorted(sets, key=lambda s: not s.filled):  # outlines above areas
        share = one.counts / max(one.counts.sum(), 1)
        used = np.flatnonzero(share)
        inside = range(used[0], used[-1] + 1) if len(used) else range(0)
        if not inside:
            continue
        steps: list[tuple[float, float]] = [(across(edges[inside[0]]), bottom)]
        for k in inside:
            y = bottom - share[k] / (tallest or 1) * (bottom - top)
            steps += [(across(edges[k]), y), (across(edges[k + 1]), y)]
        steps.append((steps[-1][0], bottom))
        parts.append(
            _path(
                steps,
                f"{'area' if one.filled else 'outline'} {one.kind}",
                "" if one.filled else "5 2.5",
            )
        )
    for one in sets:
        if one.mean is not None and low <= one.mean <= high:
            x, tip = across(one.mean), 3.6
            below = [(x, bottom - 1), (x - tip, bottom + 6), (x + tip, bottom + 6)]
            parts.append(
                _path(below, f"mean {one.kind} {'full' if one.filled else 'hollow'}", close=True)
            )
    parts.append(_text((left + right) / 2, height - 2, "cosine similarity", "middle axis-name"))
    return svg(WIDTH, height, label, parts)


def category_colour(k: int, name: str, all_names: Sequence[str]) -> str:
    """Of category k: its own colour if all categories are colours, else one of ten."""
    if all(other.lower() in NAMED for other in all_names):
        return NAMED[name.lower()]
    return f"var(--c{k % 10})"


def is_square(k: int) -> bool:
    """Neighbouring categories differ in shape too, and the second ten in the other way round."""
    return (k + k // 10) % 2 == 1


def scatter(
    points: Array, category: NDArray[np.integer], names: Sequence[str], label: str
) -> Markup:
    """One path of dots per category; −1 is "unknown"."""
    size, edge = 320.0, 8.0
    parts = []
    for k in [int(k) for k in np.unique(category)]:
        mine = points[category == k]
        dots = "".join(
            f"M{number(edge + x * (size - 16))} {number(edge + (1 - y) * (size - 16))}h0"
            for x, y in mine
        )
        name, colour = (
            ("unknown", "var(--faint)")
            if k < 0
            else (names[k], category_colour(k, names[k], names))
        )
        shape = "square" if k >= 0 and is_square(k) else "round"
        head = Markup(
            '<path class="dots" data-c="{}" stroke-linecap="{}" style="stroke:{}" d="{}"><title>{}</title></path>'
        )
        parts.append(head.format(k, shape, colour, dots, name))
    return svg(size, size, label, parts, "chart map")


@dataclass(frozen=True)
class Line:
    x: Sequence[float]
    y: Sequence[float]
    kind: str  # CSS class that sets the colour
    dash: str = ""


def curves(
    lines: Sequence[Line],
    label: str,
    *,
    x_name: str,
    y_range: tuple[float, float] | None = None,
    percent: bool = False,
    logarithmic: bool = False,
    height: float = 190,
) -> Markup:
    """Lines over epochs or steps; on a logarithmic scale values below 1 are drawn at 1."""
    xs = [x for line in lines for x in line.x] or [0.0]
    ys = [y for line in lines for y in line.y] or [0.0]
    scale: Callable[[float], float] = (lambda y: math.log10(max(y, 1.0))) if logarithmic else float
    first, last = min(xs), max(xs)
    if logarithmic:
        powers = math.ceil(math.log10(max(*ys, 10.0)))
        low, high, marks = 1.0, 10.0**powers, [10.0**k for k in range(powers + 1)]
    else:
        low, high = y_range or _padded(min(ys), max(ys))
        marks = ticks(low, high, 4 if height > 150 else 2)
    written = [f"{100 * v:.0f} %" if percent else _plain(v) for v in marks]
    left, right, top, bottom = 12 + 5.6 * max(map(len, written)), WIDTH - 10.0, 8.0, height - 20

    def place(x: float, y: float) -> tuple[float, float]:
        along = (x - first) / (last - first) if last > first else 0.5
        up = (scale(y) - scale(low)) / (scale(high) - scale(low))
        return left + along * (right - left), bottom - up * (bottom - top)

    parts = []
    for v, said in zip(marks, written, strict=True):
        y = place(first, v)[1]
        parts += [_line(left, y, right, y, "grid"), _text(left - 5, y + 3.5, said, "end")]
    whole = [v for v in ticks(first, last, 5) if v == int(v)] or [first]
    for x, v in ((place(v, low)[0], v) for v in whole):
        if x < right - 12 - 6 * len(x_name):  # where the name of the axis stands
            parts.append(_text(x, bottom + 14, f"{v:,.0f}", "middle"))
    parts.append(_text(right, bottom + 14, x_name, "end axis-name"))
    for line in lines:
        dots = [place(x, y) for x, y in thinned(line.x, line.y)]
        if len(dots) == 1:
            parts.append(
                Markup('<circle class="point {}" cx="{}" cy="{}" r="3"/>').format(
                    line.kind, *map(number, dots[0])
                )
            )
        elif dots:
            parts.append(_path(dots, f"line {line.kind}", line.dash))
    return svg(WIDTH, height, label, parts)


def thinned(x: Sequence[float], y: Sequence[float], most: int = 300) -> list[tuple[float, float]]:
    """At most `most` points: each the mean of a run of neighbours."""
    if len(x) <= most:
        return list(zip(x, y, strict=True))
    parts = zip(
        np.array_split(np.asarray(x, float), most),
        np.array_split(np.asarray(y, float), most),
        strict=True,
    )
    return [(float(a.mean()), float(b.mean())) for a, b in parts]


def _padded(low: float, high: float) -> tuple[float, float]:
    low = (
        min(low, 0.0) if low > -0.25 * abs(high) else low
    )  # a loss is read against zero unless it is far below
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _plain(v: float) -> str:
    return (f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.3g}").replace("-", "−")


@dataclass(frozen=True)
class Bin:
    confidence: float
    accuracy: float
    n: int


def reliability(bins: Sequence[Bin], label: str) -> Markup:
    """Accuracy over confidence: on the diagonal a model is as often right as it says. Area of a dot: share of samples."""
    size, left, right, top, bottom = 250.0, 54.0, 242.0, 8.0, 206.0

    def place(x: float, y: float) -> tuple[float, float]:
        return left + x * (right - left), bottom - y * (bottom - top)

    parts = []
    for v in (0.0, 0.5, 1.0):
        (x, _), (_, y) = place(v, 0), place(0, v)
        parts += [
            _line(left, y, right, y, "grid"),
            _text(left - 5, y + 3.5, f"{100 * v:.0f} %", "end"),
        ]
        parts.append(_text(x, bottom + 14, f"{100 * v:.0f} %", "end" if v == 1 else "middle"))
    parts.append(_path([place(0, 0), place(1, 1)], "diagonal", "4 3"))
    most = max((b.n for b in bins), default=1)
    for b in bins:
        if b.n == 0:
            continue
        (x, y), (_, ideal) = place(b.confidence, b.accuracy), place(b.confidence, b.confidence)
        parts.append(_line(x, ideal, x, y, "gap"))
        told = f"confidence {100 * b.confidence:.0f} %, right {100 * b.accuracy:.0f} %, {b.n:,} samples"
        dot = Markup('<circle class="point" cx="{}" cy="{}" r="{}"><title>{}</title></circle>')
        parts.append(dot.format(number(x), number(y), number(2 + 7 * math.sqrt(b.n / most)), told))
    parts.append(_text((left + right) / 2, size - 8, "confidence", "middle axis-name"))
    parts.append(_text(10, (top + bottom) / 2, "accuracy", "middle axis-name", -90))
    return svg(size, size, label, parts, "chart small")


def heat_colours(theme: str) -> list[tuple[str, str]]:
    """(fill, the ink that is read best on it) for each step."""
    fills = [_mix(LOW_TO_HIGH[theme], k / (STEPS - 1)) for k in range(STEPS)]
    return [(fill, max(("#0b0f14", "#ffffff"), key=partial(contrast, fill))) for fill in fills]


def contrast(a: str, b: str) -> float:
    """WCAG contrast ratio of two #rrggbb colours, 1 to 21."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [v / 255 for v in _rgb(colour)]
    r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _mix(stops: tuple[str, str, str], t: float) -> str:
    low, high, within = (stops[0], stops[1], 2 * t) if t < 0.5 else (stops[1], stops[2], 2 * t - 1)
    mixed = (round(a + (b - a) * within) for a, b in zip(_rgb(low), _rgb(high), strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def picture(pixels: NDArray[np.uint8]) -> str:
    """A PNG data URI of an image [C, H, W]; photographs are reduced in size and to 256 colours."""
    channels = pixels.shape[0]
    if channels == 3:
        image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    else:  # a grey image, or a stack of channels that is none: show its mean
        image = Image.fromarray(pixels.mean(axis=0).round().astype(np.uint8))
    if max(image.size) > THUMBNAIL:
        image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
        image = image.quantize(256) if channels == 3 else image
    stream = BytesIO()
    image.save(stream, format="PNG", optimize=True)
    return "data:image/png;base64," + b64encode(stream.getvalue()).decode()
