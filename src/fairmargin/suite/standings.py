"""A ranking for each regime: from the scores of all runs to rows of tables."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from fairmargin.suite import ranking
from fairmargin.suite.entries import TITLES
from fairmargin.suite.ranking import Measured
from fairmargin.suite.results import HEADLINE, Score, measured

# Shown in every regime beside those who know more, and what costs are measured by.
REFERENCE = "ce"
# "Never more than so many points behind the best."
POINTS = 3.0


@dataclass(frozen=True)
class Standing:
    """One entry of a ranking.

    Args:
        tasks: what it got on each task, None where a run has no result.
        conflicting: the same for the groups where the shortcut misleads.
        good: for each task, whether it is the best or cannot be told from it.
        behind: for each task, points behind the best of the ranking.
        ranked: False for the reference and for entries without results on some task.
        remark: why it is not ranked.
        mean_rank: over the tasks; NaN if not ranked. So are the next ones.
        letters: two entries that share a letter cannot be told apart.
        cost: training time relative to cross-entropy's; NaN if that did not run.
    """

    entry: str
    knows: str
    tasks: tuple[Measured | None, ...]
    conflicting: tuple[Measured | None, ...]
    good: tuple[bool, ...]
    behind: tuple[float, ...]
    ranked: bool
    seconds: float
    cost: float
    remark: str = ""
    mean_rank: float = math.nan
    rank_low: float = math.nan
    rank_high: float = math.nan
    letters: str = ""

    @property
    def mean(self) -> float:
        """Mean accuracy over the tasks with results."""
        return _mean(self.tasks)

    @property
    def mean_conflicting(self) -> float:
        """Mean accuracy on conflicting groups over the tasks with results."""
        return _mean(self.conflicting)

    @property
    def wins(self) -> int:
        """On how many tasks it is the best or cannot be told from it."""
        return sum(self.good)

    @property
    def most_behind(self) -> float:
        """Points behind the best on the task where it is farthest behind."""
        return max((one for one in self.behind if not math.isnan(one)), default=math.nan)


@dataclass(frozen=True)
class Ranking:
    """All entries with the same knowledge of the bias.

    Args:
        tasks: names, in the order of the columns.
        rows: ranked entries by mean rank, then the others.
        difference: the critical difference of mean ranks.
    """

    regime: str
    tasks: tuple[str, ...]
    seeds: int
    rows: tuple[Standing, ...]
    difference: float

    @property
    def title(self) -> str:
        """The regime in words."""
        return TITLES[self.regime]  # type: ignore[index]

    @property
    def firsts(self) -> list[str]:
        """The entries with the best mean rank: several if they are equal."""
        rows = self.ranked
        return [row.entry for row in rows if math.isclose(row.mean_rank, rows[0].mean_rank)]

    @property
    def ranked(self) -> list[Standing]:
        """The ranked entries, best first."""
        return [row for row in self.rows if row.ranked]

    def farthest(self, row: Standing) -> str:
        """Return the task on which an entry is farthest behind; empty if it is nowhere behind."""
        if not row.most_behind > 0:
            return ""
        return self.tasks[row.behind.index(row.most_behind)]


def rankings(scores: Sequence[Score], tasks: Sequence[str]) -> list[Ranking]:
    """Return a ranking for each regime in which something ran.

    Args:
        scores: of all runs.
        tasks: names of the tasks, in order.
    """
    there = {one.regime for one in scores}
    return [_ranking(regime, scores, tasks) for regime in TITLES if regime in there]


def _ranking(regime: str, scores: Sequence[Score], tasks: Sequence[str]) -> Ranking:
    mine = [one for one in scores if one.regime == regime]
    entries = list(dict.fromkeys(one.entry for one in mine))
    rows = {name: _cells(mine, name, tasks) for name in entries}
    complete = [name for name in entries if None not in rows[name]]
    table = [[rows[name][i] for name in complete] for i in range(len(tasks))]
    full: list[list[Measured]] = [[at for at in row if at is not None] for row in table]
    places = _places(complete, full)
    difference = ranking.critical_difference(len(complete), len(tasks))
    marks = ranking.letters([places[name][0] for name in complete], difference)
    bests = [max((at.mean for at in row), default=math.nan) for row in full]
    good = [ranking.as_good_as_best(row) if row else [] for row in full]
    standings = []
    for name in entries:
        row = _standing(name, mine, scores, tasks, bests)
        if name in complete:
            k = complete.index(name)
            rank, low, high = places[name]
            row = _placed(row, rank, low, high, marks[k], tuple(task[k] for task in good))
        standings.append(row)
    standings.sort(key=lambda row: (not row.ranked, row.mean_rank if row.ranked else 0))
    if REFERENCE not in entries and any(one.entry == REFERENCE for one in scores):
        theirs = [one for one in scores if one.entry == REFERENCE]
        remark = "for reference: knows less, and is not ranked here"
        standings.append(_standing(REFERENCE, theirs, scores, tasks, bests, remark))
    seeds = len({one.seed for one in mine})
    return Ranking(regime, tuple(tasks), seeds, tuple(standings), difference)


def _places(
    complete: Sequence[str], full: Sequence[Sequence[Measured]]
) -> dict[str, tuple[float, float, float]]:
    """Return (mean rank, low, high) of each entry with results on all tasks."""
    if not complete:
        return {}
    by_task = [ranking.ranks([at.mean for at in row]) for row in full]
    intervals = ranking.rank_intervals(full)
    found = {}
    for k, name in enumerate(complete):
        mean_rank = fmean(row[k] for row in by_task)
        found[name] = (mean_rank, *intervals[k])
    return found


def _placed(
    row: Standing, rank: float, low: float, high: float, mark: str, good: tuple[bool, ...]
) -> Standing:
    kept = {name: getattr(row, name) for name in row.__dataclass_fields__}
    placed = {"ranked": True, "mean_rank": rank, "rank_low": low, "rank_high": high}
    return Standing(**{**kept, **placed, "letters": mark, "good": good, "remark": ""})


def _cells(
    scores: Sequence[Score], entry: str, tasks: Sequence[str], name: str = "unbiased"
) -> tuple[Measured | None, ...]:
    """Return what an entry got on each task."""
    found = []
    for task in tasks:
        runs = [one for one in scores if one.entry == entry and one.task == task]
        found.append(measured(runs, name))
    return tuple(found)


def _standing(
    entry: str,
    mine: Sequence[Score],
    scores: Sequence[Score],
    tasks: Sequence[str],
    bests: Sequence[float],
    remark: str = "",
) -> Standing:
    """Return an entry that is not ranked yet."""
    cells = _cells(mine, entry, tasks)
    behind = []
    for at, best in zip(cells, bests, strict=True):
        behind.append(math.nan if at is None else max(best - at.mean, 0.0))
    lacking = [task for task, at in zip(tasks, cells, strict=True) if at is None]
    seconds, cost = _times(entry, mine, scores, tasks)
    return Standing(
        entry,
        next(one.knows for one in mine if one.entry == entry),
        cells,
        _cells(mine, entry, tasks, "conflicting"),
        (False,) * len(tasks),
        tuple(behind),
        False,
        seconds,
        cost,
        remark or f"not ranked: no result on {', '.join(lacking)}",
    )


def _times(
    entry: str, mine: Sequence[Score], scores: Sequence[Score], tasks: Sequence[str]
) -> tuple[float, float]:
    """Return (mean seconds of a run, how many times those of the reference)."""
    own, theirs = [], []
    for task in tasks:
        took = [one.seconds for one in mine if (one.entry, one.task) == (entry, task)]
        other = [one.seconds for one in scores if (one.entry, one.task) == (REFERENCE, task)]
        took = [one for one in took if not math.isnan(one)]
        other = [one for one in other if not math.isnan(one)]
        if took and other:
            own.append(fmean(took))
            theirs.append(fmean(other))
    everything = [one.seconds for one in mine if one.entry == entry and one.has_result]
    seconds = fmean(everything) if everything else math.nan
    return seconds, ranking.cost(own, theirs) if own else math.nan


def _mean(cells: Sequence[Measured | None]) -> float:
    values = [at.mean for at in cells if at is not None and not math.isnan(at.mean)]
    return fmean(values) if values else math.nan


def verdict(found: Ranking) -> str:
    """Return what a ranking says, in a sentence or two.

    Args:
        found: of one regime.
    """
    rows = found.ranked
    if not rows:
        return "No method has results on every task."
    first = rows[0]
    if len(rows) == 1:
        return f"Only {first.entry} ran: {first.mean:.1f} % on average."
    alike = [row.entry for row in rows if set(row.letters) & set(first.letters)]
    peers = [name for name in alike if name not in found.firsts]
    have = "has" if len(found.firsts) == 1 else "have"
    said = f"{' and '.join(found.firsts)} {have} the best mean rank, {first.mean_rank:.1f}"
    if len(alike) == len(rows):
        said += f", but {len(found.tasks)} tasks do not tell the {len(rows)} methods apart."
    elif peers:
        said += f"; not told apart from {', '.join(peers)}."
    else:
        said += ", apart from all others."
    close = [row.entry for row in rows if row.most_behind <= POINTS]
    if close:
        never = f"Never more than {POINTS:g} points behind the best: {', '.join(close)}."
    else:
        never = f"Each method is more than {POINTS:g} points behind the best on some task."
    return f"{said} {never}"


def summary(found: Sequence[Ranking], remarks: Sequence[str] = ()) -> dict[str, Any]:
    """Return the rankings as suite.json keeps them.

    Args:
        found: a ranking for each regime.
        remarks: about what was left out.
    """
    kept = []
    for one in found:
        rows = [_row(one, row) for row in one.rows]
        kept.append(
            {
                "regime": one.regime,
                "tasks": list(one.tasks),
                "seeds": one.seeds,
                "critical_difference": one.difference,
                "verdict": verdict(one),
                "standings": rows,
            }
        )
    return {"headline": HEADLINE, "rankings": kept, "remarks": list(remarks)}


def _row(found: Ranking, row: Standing) -> dict[str, Any]:
    numbers = {
        "mean": row.mean,
        "mean_conflicting": row.mean_conflicting,
        "mean_rank": row.mean_rank,
        "rank_low": row.rank_low,
        "rank_high": row.rank_high,
        "most_behind": row.most_behind,
        "seconds": row.seconds,
        "cost": row.cost,
    }
    cells = {}
    for task, at, good in zip(found.tasks, row.tasks, row.good, strict=True):
        if at is not None:
            cells[task] = {**asdict(at), "mean": at.mean, "half": at.half_width, "good": good}
    return {
        "entry": row.entry,
        "knows": row.knows,
        "ranked": row.ranked,
        "letters": row.letters,
        "wins": row.wins,
        "most_behind_on": found.farthest(row),
        "remark": row.remark,
        **{name: None if math.isnan(value) else value for name, value in numbers.items()},
        "by_task": cells,
    }
