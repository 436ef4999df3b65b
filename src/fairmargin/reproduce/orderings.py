"""The two orderings that the paper argues for, looked up in the ledger, whichever way they come out.

FairKL     a method with FairKL is above every method without it, on the same data under the same budget
ε losses   ε-SupInfoNCE is at least as good as ε-SupCon, with FairKL and without
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairmargin.reproduce.ledger import Line
from fairmargin.reproduce.published import as_printed

TABLES = ("3", "4")  # which have both kinds of methods
EPS = ("eps-supinfonce", "eps-supcon")


@dataclass(frozen=True)
class Ordering:
    """`above` against `below`, both published and ours; a claim that ties count for is written with ≥."""

    above: Line
    below: Line
    ties: bool = False

    @property
    def in_the_paper(self) -> bool:
        return self._holds(self.above.published, self.below.published)

    @property
    def here(self) -> bool:
        return self._holds(self.above.ours or 0.0, self.below.ours or 0.0)

    def _holds(self, above: float, below: float) -> bool:
        return above >= below if self.ties else above > below


def found(lines: Sequence[Line]) -> list[Ordering]:
    """Of finished runs. FairKL is held against the best method without it, which stands for all of them."""
    finished = [line for line in lines if line.budget and line.whole and line.table in TABLES]
    orderings = []
    for line in finished:
        alike = [
            other
            for other in finished
            if _column(other) == _column(line) and _same_reading(line, other)
        ]
        without = [other for other in alike if not _fairkl(other)]
        if _fairkl(line) and without:
            orderings.append(Ordering(line, max(without, key=lambda other: other.ours or 0.0)))
        orderings += [Ordering(line, other, ties=True) for other in alike if _losses(line, other)]
    return sorted(orderings, key=lambda one: (one.ties, _column(one.above), one.above.method))


def _column(line: Line) -> tuple[str, ...]:
    return line.table, line.dataset, line.setting, line.budget


def _fairkl(line: Line) -> bool:
    return "fairkl" in line.method


def _same_reading(line: Line, other: Line) -> bool:
    return other.reading in ("", line.reading)


def _losses(line: Line, other: Line) -> bool:
    """ε-SupInfoNCE beside ε-SupCon, everything else equal."""
    above, below = EPS
    return line.method.startswith(above) and other.method == below + line.method.removeprefix(above)


def markdown(orderings: Iterable[Ordering]) -> str:
    """A table; empty without orderings."""
    rows = []
    for one in orderings:
        above, below = one.above, one.below
        claim = f"{_name(above)} {'≥' if one.ties else '>'} {_name(below)}"
        says = f"{as_printed(above.published)} / {as_printed(below.published)}{'' if one.in_the_paper else ' (no)'}"
        ours = f"{above.ours or 0.0:.1f} / {below.ours or 0.0:.1f}"
        where = f"{above.dataset}, {above.setting}, {above.budget}"
        rows.append(f"| {claim} | {where} | {says} | {ours} | {'yes' if one.here else '**no**'} |")
    return (
        "\n".join(["| claim | where | paper | ours | holds |", "|---|---|---|---|---|", *rows])
        if rows
        else ""
    )


def _name(line: Line) -> str:
    return f"{line.method}{f' ({line.reading})' if line.reading else ''}"
