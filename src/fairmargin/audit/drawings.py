"""Draw an attribute: its values class by class, and pictures that follow or contradict it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fairmargin.report.colours import heat_step
from fairmargin.report.pictures import picture
from fairmargin.report.svg import (
    WIDTH,
    box,
    column_headings,
    line,
    number,
    short,
    signed,
    svg,
    text,
    ticks,
)

# Height of a class.
ROW = 19.0
# Levels of a channel, for bars of colours.
SHADES = 6
# Colours shown of each class; the others are one grey piece.
COLOURS = 12
# Pixels. Smaller pictures are enlarged without smoothing.
PIXELATED = 48


def colour_bars(
    colours: NDArray[np.floating], labels: np.ndarray, names: Sequence[str], label: str
) -> Markup:
    """Draw a bar for each class, cut into its commonest colours in proportion.

    Args:
        colours: [n, 3] from 0 to 1.
        labels: [n] positions in `names`.
        names: of the classes.
        label: what a screen reader says.
    """
    left = _left(names)
    rect = Markup(
        '<rect x="{}" y="{}" width="{}" height="{}" fill="rgb({},{},{})"><title>{}</title></rect>'
    )
    parts = []
    for y, name in enumerate(names):
        top = 2 + y * ROW
        parts.append(text(left - 6, top + 12, short(name, 13), "end"))
        mine = colours[labels == y]
        at = left
        for share, (r, g, b), told in _commonest(mine):
            wide = share * (WIDTH - 2 - left)
            place = number(at), number(top), number(wide + 0.2), number(ROW - 4)
            parts.append(rect.format(*place, r, g, b, f"{name}: {told}, {100 * share:.0f} %"))
            at += wide
    return svg(WIDTH, 2 + len(names) * ROW, label, parts)


def _commonest(colours: NDArray[np.floating]) -> list[tuple[float, tuple[int, int, int], str]]:
    """Return (share, mean colour, its name) of the commonest colours, and of all the others."""
    if not len(colours):
        return []
    level = np.minimum((colours * SHADES).astype(int), SHADES - 1)
    _, box, size = np.unique(level, axis=0, return_inverse=True, return_counts=True)
    box = box.reshape(-1)
    shown = np.argsort(-size, kind="stable")[:COLOURS]
    pieces = []
    for k in shown:
        r, g, b = (round(255 * float(v)) for v in colours[box == k].mean(0))
        pieces.append((float(size[k] / len(colours)), (r, g, b), f"#{r:02x}{g:02x}{b:02x}"))
    rest = 1 - sum(share for share, _, _ in pieces)
    return [*pieces, (rest, (128, 128, 128), "other colours")] if rest > 1e-9 else pieces


def boxes(
    values: NDArray[np.floating], labels: np.ndarray, names: Sequence[str], label: str
) -> Markup:
    """Draw for each class its middle value, half of its samples (thick) and nine tenths (thin).

    Args:
        values: [n] numbers.
        labels: [n] positions in `names`.
        names: of the classes.
        label: what a screen reader says.
    """
    left = _left(names)
    bottom = 4 + len(names) * ROW
    low, high = (float(v) for v in np.quantile(values, [0.005, 0.995]))
    if high <= low:
        high = low + 1

    def across(v: float) -> float:
        return left + (min(max(v, low), high) - low) / (high - low) * (WIDTH - 14 - left)

    parts = []
    for v in ticks(low, high, 4):
        parts.append(line(across(v), 2, across(v), bottom, "grid"))
        parts.append(text(across(v), bottom + 13, signed(f"{v:.3g}"), "middle"))
    for y, name in enumerate(names):
        middle = 3 + (y + 0.5) * ROW
        parts.append(text(left - 6, middle + 3.5, short(name, 13), "end"))
        if (labels == y).any():
            q = [float(v) for v in np.quantile(values[labels == y], [0.05, 0.25, 0.5, 0.75, 0.95])]
            told = f"{name}: middle {q[2]:.3g}, half from {q[1]:.3g} to {q[3]:.3g}"
            parts.append(_box([across(v) for v in q], middle, told))
    return svg(WIDTH, bottom + 18, label, parts)


def _box(q: Sequence[float], y: float, told: str) -> Markup:
    thin = line(q[0], y, q[4], y, "axis")
    rect = Markup('<rect x="{}" y="{}" width="{}" height="8" rx="2" class="h5"/>')
    thick = rect.format(number(q[1]), number(y - 4), number(max(q[3] - q[1], 1)))
    dot = Markup('<circle cx="{}" cy="{}" r="2.6" class="unseen"/>').format(number(q[2]), number(y))
    return Markup("<g><title>{}</title>{}{}{}</g>").format(told, thin, thick, dot)


def share_map(
    share: NDArray[np.floating], rows: Sequence[str], columns: Sequence[str], label: str
) -> Markup:
    """Draw the shares of each row in per cent, darker for more; the row's largest is framed.

    Args:
        share: [rows, columns] from 0 to 1.
        rows: names of the rows.
        columns: names of the columns.
        label: what a screen reader says.
    """
    left = _left(rows)
    parts, wide, top = column_headings(columns, left, widest=60)
    frames = []
    for i, name in enumerate(rows):
        y = top + i * ROW
        parts.append(text(left - 6, y + ROW / 2 + 3.5, short(name, 13), "end"))
        for j, column in enumerate(columns):
            step = heat_step(float(share[i, j]))
            place = left + j * wide, y, wide, ROW
            told = Markup("<title>{}</title>").format(f"{name}: {100 * share[i, j]:.1f} % {column}")
            inside = [told, box(f"h{step}", *place)]
            if wide >= 19:
                x = left + (j + 0.5) * wide
                said = f"{100 * share[i, j]:.0f}"
                inside.append(text(x, y + ROW / 2 + 3.5, said, f"middle i{step}"))
            parts.append(Markup("<g>") + Markup("").join(inside) + Markup("</g>"))
            if share[i, j] > 0 and j == int(share[i].argmax()):
                frames.append(box("aligned", *place))
    return svg(WIDTH, top + len(rows) * ROW + 2, label, [*parts, *frames], "chart heat")


def _left(names: Sequence[str]) -> float:
    return 10 + 5.8 * max(len(short(name, 13)) for name in names)


@dataclass(frozen=True)
class Shown:
    """A picture [C, H, W], the class the attribute takes it for, and its name."""

    pixels: NDArray[np.uint8]
    told_as: str
    name: str = ""


@dataclass(frozen=True)
class Contrast:
    """Pictures of one class: some that the attribute expects, and some that contradict it."""

    name: str
    typical: Sequence[Shown]
    contradicting: Sequence[Shown]
    # Share of the class that contradicts.
    share: float


def contrasts(rows: Sequence[Contrast], attribute: str) -> Markup:
    """Return one row of pictures for each class.

    Args:
        rows: the classes.
        attribute: its name.
    """
    head = Markup(
        '<div class="contrast-head" aria-hidden="true"><span></span>'
        "<span>follow the attribute</span><span>contradict it: taken for</span></div>"
    )
    body = Markup("").join(_contrast(row, attribute) for row in rows)
    return Markup('<div class="contrasts">{}{}</div>').format(head, body)


def _contrast(row: Contrast, attribute: str) -> Markup:
    said = f"{100 * row.share:.0f} % contradict"
    alt = f"{row.name}, as the {attribute} expects"
    typical = Markup("").join(_shown(one, alt, "") for one in row.typical)
    others = Markup("")
    for one in row.contradicting:
        alt = f"{row.name}, which the {attribute} takes for {one.told_as}"
        others += _shown(one, alt, one.told_as)
    none = Markup('<span class="none">none seen</span>')
    element = Markup(
        '<div class="contrast"><p class="class-name"><b>{}</b> <small>{}</small></p>'
        '<div class="pictures">{}</div><div class="pictures">{}</div></div>'
    )
    return element.format(row.name, said, typical or none, others or none)


def _shown(one: Shown, alt: str, below: str) -> Markup:
    kind = Markup(' class="pixelated"') if max(one.pixels.shape[1:]) < PIXELATED else ""
    note = Markup("<small>{}</small>").format(short(below, 9)) if below else ""
    if one.name:
        # The end of a path tells most.
        shown = one.name.rsplit("/", 1)[-1]
        note += Markup('<small class="file" title="{}">{}</small>').format(one.name, shown)
        alt = f"{one.name}: {alt}"
    element = Markup('<span><img src="{}" alt="{}"{}>{}</span>')
    return element.format(picture(one.pixels), alt, kind, note)
