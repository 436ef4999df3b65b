"""Numbers as the pages about models write them."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from fairmargin.report.figures import thin_bar
from fairmargin.report.svg import signed

Json = dict[str, Any]


def percent(share: float) -> str:
    """Return per cent with one decimal: 0.314 → "31.4 %"."""
    return f"{100 * share:.1f} %"


def interval(at: Json) -> str:
    """Return the ends of an interval in per cent: "29.0–33.9".

    Args:
        at: "low" and "high" as fractions.
    """
    return f"{100 * at['low']:.1f}–{100 * at['high']:.1f}"


def bar(at: Json) -> Markup:
    """Return a share in per cent, and a bar with its interval.

    Args:
        at: "value", "low" and "high" as fractions.
    """
    drawn = thin_bar(at["value"], at["low"], at["high"])
    return Markup("{}{}").format(percent(at["value"]), drawn)


def number(x: float | None, decimals: int = 2) -> str:
    """Return a number with so many decimals; "–" for None.

    Args:
        x: None if it was not measured.
        decimals: how many.
    """
    return "–" if x is None else signed(f"{x:.{decimals}f}")


def p_value(p: float) -> str:
    """Return a p-value with three decimals, or "< 0.001"."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def shares(values: Sequence[Json]) -> str:
    """Return names with their shares: "cat 80 %, dog 20 %".

    Args:
        values: "name" and "share" of each.
    """
    return ", ".join(f"{one['name']} {100 * one['share']:.0f} %" for one in values)
