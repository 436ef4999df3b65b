"""suite.html: the rankings of a suite as one self-contained page."""

import math
from collections.abc import Sequence

from markupsafe import Markup

from fairmargin.audit.page import render
from fairmargin.audit.section import Figure, Found, Section, Table
from fairmargin.report import svg
from fairmargin.suite.results import Score
from fairmargin.suite.standings import POINTS, Ranking, Standing, verdict
from fairmargin.suite.tasks import TASKS
from fairmargin.suite.terminal import number

_ROW, _LEFT, _TOP = 22, 128, 26


def page(found: Sequence[Ranking], scores: Sequence[Score], remarks: Sequence[str] = ()) -> str:
    """Return the page as HTML.

    Args:
        found: a ranking for each regime.
        scores: of all runs, for those without a result.
        remarks: about what was left out.
    """
    failed = [one for one in scores if one.failure]
    failures = [f"{one.entry} on {one.task}, seed {one.seed}: {one.failure}" for one in failed]
    sections = [_section(one) for one in found]
    tasks = dict.fromkeys(name for one in found for name in one.tasks)
    sections.append(_tasks(list(tasks)))
    return render(
        Found(
            "FairMargin suite",
            headline(found),
            {},
            sections,
            [*remarks, *failures],
        )
    )


def headline(found: Sequence[Ranking]) -> str:
    """Return who is first in each regime, in one sentence.

    Args:
        found: a ranking for each regime.
    """
    firsts = [f"{' and '.join(one.firsts)} with {one.title}" for one in found if one.ranked]
    if not firsts:
        return "No method has results on every task."
    return f"Best mean rank: {'; '.join(firsts)}."


def _section(found: Ranking) -> Section:
    noise = "Student's t over seeds"
    if found.seeds == 1:
        noise = "from the number of test samples, because there is one seed"
    lead = (
        f"{verdict(found)} Methods here may know the same of the bias and are compared with each "
        f"other only. Accuracies are means over all (class, bias) groups of an unbiased test set; "
        f"intervals are 95 %, {noise}."
    )
    if len(found.ranked) > 1:
        lead += (
            f" Mean ranks that differ by no more than {found.difference:.1f} are not told apart "
            "(Nemenyi's critical difference)."
        )
    title = found.title[:1].upper() + found.title[1:]
    figures = [_rank_chart(found)] if found.ranked else []
    return Section(found.regime, title, lead, figures, [_standings(found), _by_task(found)])


def _rank_chart(found: Ranking) -> Figure:
    """Return mean ranks with their intervals."""
    rows = found.ranked
    most = max(len(rows), 2)
    right = svg.WIDTH - 14
    at = lambda rank: _LEFT + (rank - 1) / (most - 1) * (right - _LEFT)
    bottom = _TOP + _ROW * len(rows)
    parts = []
    for rank in range(1, most + 1):
        parts.append(svg.line(at(rank), _TOP - 6, at(rank), bottom, "grid"))
        parts.append(svg.text(at(rank), _TOP - 12, str(rank), "middle"))
    for k, row in enumerate(rows):
        y = _TOP + _ROW * (k + 0.5)
        parts.append(svg.text(_LEFT - 12, y + 4, svg.short(row.entry, 22), "end"))
        parts.append(svg.line(at(row.rank_low), y, at(row.rank_high), y, "gap"))
        dot = Markup('<circle cx="{}" cy="{}" r="4" class="point"/>')
        parts.append(dot.format(svg.number(at(row.mean_rank)), svg.number(y)))
    label = f"Mean ranks of {len(rows)} methods over {len(found.tasks)} tasks"
    caption = "1 is best. Lines: 95 % of bootstrap draws over tasks and seeds."
    drawing = svg.svg(svg.WIDTH, bottom + 6, label, parts)
    return Figure("Mean rank", drawing, caption)


def _standings(found: Ranking) -> Table:
    head = (
        "method",
        "mean rank",
        "95 %",
        "apart",
        "mean %",
        "conflicting %",
        "most behind",
        "best or equal",
        "seconds",
        "cost",
        "had to know",
    )
    rows = [_standing_cells(found, row) for row in found.rows]
    return Table(head, rows, tuple(range(1, len(head) - 1)))


def _standing_cells(found: Ranking, row: Standing) -> list[str | Markup]:
    name = Markup.escape(row.entry)
    if row.remark:
        name += Markup("<br><small>{}</small>").format(row.remark)
    task = found.farthest(row)
    behind = number(row.most_behind)
    if task:
        behind += f" ({task})"
    if row.ranked and row.most_behind <= POINTS:
        behind += " ✓"
    return [
        name,
        number(row.mean_rank),
        f"{row.rank_low:.1f}–{row.rank_high:.1f}" if row.ranked else "–",
        row.letters or "–",
        number(row.mean),
        number(row.mean_conflicting),
        behind,
        f"{row.wins} of {len(found.tasks)}" if row.ranked else "–",
        number(row.seconds),
        "–" if math.isnan(row.cost) else f"{row.cost:.1f}×",
        row.knows,
    ]


def _by_task(found: Ranking) -> Table:
    rows = []
    for row in found.rows:
        cells: list[str | Markup] = [row.entry]
        for at, good in zip(row.tasks, row.good, strict=True):
            if at is None:
                cells.append("–")
                continue
            text = Markup("{:.1f} <small>± {:.1f}</small>").format(at.mean, at.half_width)
            cells.append(Markup("<strong>{}</strong>").format(text) if good else text)
        rows.append(cells)
    head = ["accuracy by task; bold: best, or not told from it", *found.tasks]
    return Table(head, rows, tuple(range(1, len(head))))


def _tasks(names: Sequence[str]) -> Section:
    rows = [(name, TASKS[name].shows, TASKS[name].dataset) for name in names]
    lead = (
        "What gives the class away in training and says nothing in the test. "
        "“fairmargin data show DATASET” draws one."
    )
    return Section("tasks", "Tasks", lead, (), [Table(("task", "shortcut", "dataset"), rows)])
