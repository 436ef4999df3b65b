"""The rankings of a suite as tables for a terminal of 80 columns."""

import math
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fairmargin.suite.standings import Ranking, Standing, verdict


def shown(found: Ranking) -> Iterator[RenderableType]:
    """Yield what is printed about one ranking.

    Args:
        found: of one regime.
    """
    yield Text(f"\n{found.title}", style="bold")
    yield Text(verdict(found))
    yield Text("\nWho is ahead; methods that share a letter cannot be told apart:")
    yield _standings(found)
    yield Text("\nUnbiased test accuracy by task, in percent; *: best, or not told from it:")
    yield _by_task(found)
    numbered = [f"{k} {name}" for k, name in enumerate(found.tasks, 1)]
    yield Text("tasks: " + ", ".join(numbered))
    for row in found.rows:
        if row.remark:
            yield Text(f"{row.entry}: {row.remark}")


def _standings(found: Ranking) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("method", overflow="fold", max_width=26)
    for name in ("rank", "95 %", "apart", "mean", "confl.", "behind", "wins", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.rows:
        table.add_row(*_standing_cells(row))
    return table


def _standing_cells(row: Standing) -> list[str]:
    interval = f"{row.rank_low:.1f}–{row.rank_high:.1f}" if row.ranked else "–"
    return [
        row.entry,
        number(row.mean_rank),
        interval,
        row.letters or "–",
        number(row.mean),
        number(row.mean_conflicting),
        number(row.most_behind),
        f"{row.wins}" if row.ranked else "–",
        "–" if math.isnan(row.cost) else f"{row.cost:.1f}×",
    ]


def _by_task(found: Ranking) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold", max_width=26)
    for k in range(1, len(found.tasks) + 1):
        table.add_column(str(k), justify="right", no_wrap=True)
    for row in found.rows:
        cells = []
        for at, good in zip(row.tasks, row.good, strict=True):
            cells.append("–" if at is None else f"{at.mean:.0f}{'*' if good else ''}")
        table.add_row(row.entry, *cells)
    return table


def number(value: float) -> str:
    """Write a number with one decimal; "–" if there is none.

    Args:
        value: NaN if there is none.
    """
    return "–" if math.isnan(value) else f"{value:.1f}"
