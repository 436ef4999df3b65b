"""Colours of the pages: steps of a heat map, and categories that also differ without colour."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

Theme = Literal["light", "dark"]

# Accuracy 0, ½ and 1 on a light and on a dark page.
LOW_TO_HIGH: dict[Theme, tuple[str, str, str]] = {
    "light": ("#f1f4f9", "#84b1de", "#0c3a75"),
    "dark": ("#1c2533", "#3c6ea8", "#c4e0ff"),
}
STEPS = 11
# Ten categories, told apart by lightness as well as by hue.
CATEGORIES: dict[Theme, tuple[str, ...]] = {
    "light": (
        "#3b2f9e", "#2a93cc", "#1f8a70", "#6f9a1c", "#b48f00",
        "#d96f12", "#c8475d", "#7d1f5c", "#a04bbf", "#6b7280",
    ),
    "dark": (
        "#9a92f5", "#56b8ee", "#43c3a3", "#a2cf4f", "#e8cd3f",
        "#f59b45", "#f58599", "#d978b2", "#d193ea", "#a3acb8",
    ),
}  # fmt: skip
# A bias that is a colour is drawn in it, in a shade that shows on white and on black.
NAMED = {
    "red": "#e03131", "green": "#2f9e44", "blue": "#3b6ef5", "yellow": "#d4ac06",
    "magenta": "#cf30c4", "cyan": "#10a9bd", "orange": "#f07c1b", "pink": "#f0528f",
    "violet": "#8b5cf6", "purple": "#8b5cf6", "spring green": "#17b978",
    "grey": "#8a8f98", "gray": "#8a8f98", "brown": "#9a6a3f",
}  # fmt: skip
# Patterns of lines, so that methods differ in more than their colour.
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2", "12 3", "6 2 1 2")


def heat_step(share: float) -> int:
    """Return the step of a heat map, 0 to 10, for a share from 0 to 1."""
    return min(STEPS - 1, max(0, round(share * (STEPS - 1))))


def heat_colours(theme: Theme) -> list[tuple[str, str]]:
    """Return (fill, the ink that reads best on it) for each step.

    Args:
        theme: of the page.
    """
    fills = [_mix(LOW_TO_HIGH[theme], k / (STEPS - 1)) for k in range(STEPS)]
    return [(fill, max(("#0b0f14", "#ffffff"), key=partial(contrast, fill))) for fill in fills]


def category_colour(k: int, name: str, all_names: Sequence[str]) -> str:
    """Return the colour of a category: its own if all categories are colours, else one of ten.

    Args:
        k: position of the category.
        name: of the category.
        all_names: of all categories.
    """
    if all(other.lower() in NAMED for other in all_names):
        return NAMED[name.lower()]
    return f"var(--c{k % 10})"


def is_square(k: int) -> bool:
    """Return True if category k has square dots.

    Neighbours differ in shape too. The second ten have the shapes the other way round, so that two
    categories of one colour differ.
    """
    return (k + k // 10) % 2 == 1


def contrast(a: str, b: str) -> float:
    """Return the WCAG contrast ratio of two #rrggbb colours, 1 to 21."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    r, g, b = (_linear(v / 255) for v in _rgb(colour))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _linear(v: float) -> float:
    return v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _mix(stops: tuple[str, str, str], t: float) -> str:
    """Return the colour at t, from 0 at the first stop to 1 at the last."""
    low, high, within = stops[0], stops[1], 2 * t
    if t >= 0.5:
        low, high, within = stops[1], stops[2], 2 * t - 1
    mixed = (round(a + (b - a) * within) for a, b in zip(_rgb(low), _rgb(high), strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)
