"""What an attribute looks like: its values class by class, and pictures that follow or contradict it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fairmargin.report.colours import heat_step
from fairmargin.report.pictures import picture
from fairmargin.report.svg import WIDTH, number, short, svg, ticks

ROW = 19.0  # height of a class
SHADES = 6  # levels of a channel, for bars of colours
COLOURS = 12  # shown of each class; the others are one grey piece
PIXELATED = 48  # pixels; smaller pictures are enlarged without smoothing


def colour_bars(
    colours: NDArray[np.floating], labels: np.ndarray, names: Sequence[str], label: str
) -> Markup:
    """For each class a bar cut into its commonest colours, in proportion; `colours` are [n, 3] from 0 to 1."""
    left = _left(names)
    parts = []
    for y, name in enumerate(names):
        top = 2 + y * ROW
        parts.append(_text(left - 6, top + 12, short(name, 13), "end"))
        mine = colours[labels == y]
        at = left
        for share, (r, g, b), told in _commonest(mine):
            wide = share * (WIDTH - 2 - left)
            rect = Markup(
                '<rect x="{}" y="{}" width="{}" height="{}" fill="rgb({},{},{})"><title>{}</title></rect>'
            )
            place = number(at), number(top), number(wide + 0.2), number(ROW - 4)
            parts.append(rect.format(*place, r, g, b, f"{name}: {told}, {100 * share:.0f} %"))
            at += wide
    return svg(WIDTH, 2 + len(names) * ROW, label, parts)


def _commonest(colours: NDArray[np.floating]) -> list[tuple[float, tuple[int, int, int], str]]:
    """(share, mean colour, its name in words) of the fullest boxes of colours, and of all the others together."""
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
    """For each class its middle value, the middle half of its samples (thick) and the middle nine tenths (thin)."""
    left, bottom = _left(names), 4 + len(names) * ROW
    low, high = (float(v) for v in np.quantile(values, [0.005, 0.995]))
    high = high if high > low else low + 1

    def across(v: float) -> float:
        return left + (min(max(v, low), high) - low) / (high - low) * (WIDTH - 14 - left)

    parts = []
    for v in ticks(low, high, 4):
        line = Markup('<line x1="{0}" y1="2" x2="{0}" y2="{1}" class="grid"/>')
        parts += [
            line.format(number(across(v)), number(bottom)),
            _text(across(v), bottom + 13, f"{v:.3g}".replace("-", "−"), "middle"),
        ]
    for y, name in enumerate(names):
        middle = 3 + (y + 0.5) * ROW
        parts.append(_text(left - 6, middle + 3.5, short(name, 13), "end"))
        if (labels == y).any():
            q = [float(v) for v in np.quantile(values[labels == y], [0.05, 0.25, 0.5, 0.75, 0.95])]
            told = f"{name}: middle {q[2]:.3g}, half from {q[1]:.3g} to {q[3]:.3g}"
            parts.append(_box([across(v) for v in q], middle, told))
    return svg(WIDTH, bottom + 18, label, parts)


def _box(q: Sequence[float], y: float, told: str) -> Markup:
    line = Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="axis"/>').format(
        number(q[0]), number(y), number(q[4]), number(y)
    )
    thick = Markup('<rect x="{}" y="{}" width="{}" height="8" rx="2" class="h5"/>').format(
        number(q[1]), number(y - 4), number(max(q[3] - q[1], 1))
    )
    dot = Markup('<circle cx="{}" cy="{}" r="2.6" class="unseen"/>').format(number(q[2]), number(y))
    return Markup("<g><title>{}</title>{}{}{}</g>").format(told, line, thick, dot)


def share_map(
    share: NDArray[np.floating], rows: Sequence[str], columns: Sequence[str], label: str
) -> Markup:
    """Shares of each row in per cent, darker for more; the row's largest is framed."""
    left, tops = _left(rows), [short(name, 13) for name in columns]
    turned = max(map(len, tops)) * 5.6 > (WIDTH - left) / len(tops)
    over = (
        max(0.0, 4.1 * len(tops[-1]) - 10) if turned else 0.0
    )  # how far the last turned name leans out
    wide = min((WIDTH - left - 2 - over) / len(tops), 60)
    top = 12 + 4.4 * max(map(len, tops)) if turned else 18.0
    parts = []
    for j, name in enumerate(tops):
        x = left + (j + 0.5) * wide
        parts.append(
            _text(x + 3, top - 5, name, "start", -48)
            if turned
            else _text(x, top - 6, name, "middle")
        )
    frames = []
    for i, name in enumerate(rows):
        y = top + i * ROW
        parts.append(_text(left - 6, y + ROW / 2 + 3.5, short(name, 13), "end"))
        for j, column in enumerate(columns):
            step = heat_step(float(share[i, j]))
            rect = Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="2"/>')
            place = number(left + j * wide + 1), number(y + 1), number(wide - 2), number(ROW - 2)
            told = Markup("<title>{}</title>").format(f"{name}: {100 * share[i, j]:.1f} % {column}")
            inside = [told, rect.format(f"h{step}", *place)]
            if wide >= 19:
                x = left + (j + 0.5) * wide
                inside.append(
                    _text(x, y + ROW / 2 + 3.5, f"{100 * share[i, j]:.0f}", f"middle i{step}")
                )
            parts.append(Markup("<g>") + Markup("").join(inside) + Markup("</g>"))
            if share[i, j] > 0 and j == int(share[i].argmax()):
                frames.append(rect.format("aligned", *place))
    return svg(WIDTH, top + len(rows) * ROW + 2, label, [*parts, *frames], "chart heat")


def _left(names: Sequence[str]) -> float:
    return 10 + 5.8 * max(len(short(name, 13)) for name in names)


def _text(x: float, y: float, content: str, kind: str, turn: float = 0) -> Markup:
    turned = (
        Markup(' transform="rotate({} {} {})"').format(number(turn), number(x), number(y))
        if turn
        else ""
    )
    return Markup('<text x="{}" y="{}" class="{}"{}>{}</text>').format(
        number(x), number(y), kind, turned, content
    )


@dataclass(frozen=True)
class Shown:
    """A picture and what the attribute takes it for."""

    pixels: NDArray[np.uint8]  # [C, H, W]
    told_as: str


@dataclass(frozen=True)
class Contrast:
    """Pictures of one class: such as the attribute expects, and such as contradict it."""

    name: str
    typical: Sequence[Shown]
    contradicting: Sequence[Shown]
    share: float  # of the class that contradict


def contrasts(rows: Sequence[Contrast], attribute: str) -> Markup:
    """One row for each class."""
    head = Markup(
        '<div class="contrast-head" aria-hidden="true"><span></span><span>follow the attribute</span>'
        "<span>contradict it: taken for</span></div>"
    )
    return Markup('<div class="contrasts">{}{}</div>').format(
        head, Markup("").join(_contrast(row, attribute) for row in rows)
    )


def _contrast(row: Contrast, attribute: str) -> Markup:
    said = f"{100 * row.share:.0f} % contradict"
    typical = Markup("").join(
        _shown(one, f"{row.name}, as the {attribute} expects", "") for one in row.typical
    )
    others = Markup("").join(
        _shown(one, f"{row.name}, which the {attribute} takes for {one.told_as}", one.told_as)
        for one in row.contradicting
    )
    none = Markup('<span class="none">none seen</span>')
    return Markup(
        '<div class="contrast"><p class="class-name"><b>{}</b> <small>{}</small></p><div class="pictures">{}</div>'
        '<div class="pictures">{}</div></div>'
    ).format(row.name, said, typical or none, others or none)


def _shown(one: Shown, alt: str, below: str) -> Markup:
    kind = Markup(' class="pixelated"') if max(one.pixels.shape[1:]) < PIXELATED else ""
    note = Markup("<small>{}</small>").format(short(below, 9)) if below else ""
    return Markup('<span><img src="{}" alt="{}"{}>{}</span>').format(
        picture(one.pixels), alt, kind, note
    )
